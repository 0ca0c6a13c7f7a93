"""Steps one after another in one virtual time."""

import pytest

from emulator.sim import Bucket, Costs, Workload, step, train
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
