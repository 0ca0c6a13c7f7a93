"""Steps one after another in one virtual time."""

import pytest

from emulator.sim import Bucket, Costs, Workload, step, train
from emulator.sim.world import World
from emulator.topology import Host, Path, Topology

FREE = Costs()
D = 0.035


def uniform(size, rate=700e3):
    names = [f"h{i}" for i in range(size)]
    return Topology("uniform", "uniform.yaml", tuple(Host(n, "s") for n in names),
                    [Path(a, b, rate, D) for a in names for b in names if a != b], (), "cubic", ""), names


@pytest.mark.parametrize("arm", ["gloo", "shard"])
def test_every_step_on_a_network_that_stays_as_it_is_takes_as_long(arm):
    world = uniform(2)
    work = Workload((Bucket(1_400_000, 0.5),), forward=1, backward=0.5, optimiser=2)
    once = step(*world, arm, work, costs=FREE).seconds
    steps = train(*world, arm, work, 3, costs=FREE)
    assert [one.seconds for one in steps] == pytest.approx([once] * 3)
    assert [one.end for one in steps] == pytest.approx([once, 2 * once, 3 * once])
    assert steps[1].starts == steps[0].ends


def test_a_straggler_holds_all_up():
    """Computing 3 s instead of 1: what the others gain by being early they lose waiting for its gradients."""
    world = uniform(3, rate=None)
    work = Workload((Bucket(12_000, 1.0),), backward=1.0)
    first, second = train(*world, "whole", work, 2, costs=FREE, factors={"h1": 3.0})
    # The others' small cells were with h1 before it was ready; a delay later they have its own.
    assert first.ends == pytest.approx((3 + D, 3, 3 + D))
    assert second.ends == pytest.approx((6 + D, 6, 6 + D))
    assert (first.start, second.start, second.seconds) == pytest.approx((0, 3, 3))


def begun(size, costs, work, factors):
    """When each rank's collectives of one step of shard begin (its buckets are ready), and when the ranks end."""
    names = uniform(size, rate=None)
    world, drivers = World(*names, "shard", 4, costs, False, factors), [[] for _ in range(size)]
    ends = world.run(world.step(rank, work, own) for rank, own in enumerate(drivers))
    return [[driver.account.start for driver in own] for own in drivers], ends


def test_a_straggler_by_hand():
    """Forward, two buckets within backward, optimiser: h1 takes three times as long for each.

    Its buckets are ready at 3 × (1 + 0.5) and 3 × (1 + 2). The others have been waiting then. Cells are so small that
    nobody has to ask for them, so a delay later its contribution to their slices is there, and one more later they have
    each other's sums; they end with their optimiser, of 0.2 s. It has their contributions itself, and computes on until
    3 × (1 + 2.5), longer than the exchange takes; and its optimiser takes 0.6 s.
    """
    work = Workload((Bucket(12_000, 0.5), Bucket(24_000, 2.0)), forward=1, backward=2.5, optimiser=0.2)
    starts, ends = begun(3, FREE, work, {"h1": 3.0})
    assert starts == [pytest.approx([1.5, 3.0]), pytest.approx([4.5, 9.0]), pytest.approx([1.5, 3.0])]
    assert ends == pytest.approx([9.2 + 2 * D, 11.1, 9.2 + 2 * D])
    # The slow one is never waiting, so its steps are all of the same length; the others' next is as late as theirs was.
    steps = train(*uniform(3, rate=None), "shard", work, 3, costs=FREE, factors={"h1": 3.0})
    assert [one.ends[1] for one in steps] == pytest.approx([11.1, 22.2, 33.3])
    assert [one.ends[0] for one in steps] == pytest.approx([9.2 + 2 * D + 11.1 * n for n in range(3)])


def test_what_a_straggler_waits_takes_no_core_from_others():
    """One core for two ranks: while both compute each takes its second, alone half of it; h1 waits two more."""
    work = Workload((Bucket(8000, 1.0),), forward=1, backward=1)
    starts, _ = begun(2, Costs(cores=1), work, {"h1": 3.0})
    # Forward together until 1; h0's backward alone until 1.5; h1 waits until 3, computes alone until 3.5, waits 2.
    assert starts == [pytest.approx([1.5]), pytest.approx([5.5])]


@pytest.mark.parametrize("factors", [{"h1": 0.5}, {"h1": float("inf")}, {"h9": 2.0}])
def test_a_factor_that_means_nothing_is_refused(factors):
    with pytest.raises(ValueError, match="a factor of computing is 1 or more, and of a host that takes part"):
        train(*uniform(2), "shard", Workload(()), 1, factors=factors)
