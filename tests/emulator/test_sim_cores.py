"""Ranks on one box, worked out by hand."""

import pytest
from simpy import Environment

from emulator.sim import Bucket, Costs, Workload, all_reduce, step
from emulator.sim.cores import Cores
from emulator.topology import Host, Path, Topology

D = 0.035


def far(size):
    names = [f"h{i}" for i in range(size)]
    return Topology("far", "far.yaml", tuple(Host(n, "s") for n in names),
                    [Path(a, b, None, D) for a in names for b in names if a != b], (), "cubic", ""), names


def done(env, *events):
    times = [None] * len(events)
    for i, event in enumerate(events):
        event.callbacks.append(lambda _, i=i: times.__setitem__(i, env.now))
    env.run()
    return times


def test_a_thread_does_one_thing_after_the_other_on_one_core():
    env = Environment()
    thread = Cores(env, 4, 1).handling[0]
    assert done(env, thread.work(1), thread.work(2), thread.work(0)) == [1, 3, 3]


def test_threads_share_the_cores():
    # Three on two cores: 2/3 of a core each; the short one ends at 1.5 s, and then there are cores enough for two.
    env = Environment()
    cores = Cores(env, 2, 3)
    assert done(env, *(cores.handling[i].work(seconds) for i, seconds in enumerate((1, 2, 3)))) == pytest.approx(
        [1.5, 2.5, 3.5])


def test_computing_is_as_long_as_it_was_measured_with_all_at_work():
    env = Environment()
    cores = Cores(env, 2, 4)
    assert done(env, *(cores.compute(rank, 3) for rank in range(4))) == pytest.approx([3] * 4)
    env = Environment()
    assert done(env, Cores(env, 2, 4).compute(0, 3)) == [1.5]  # alone it has a whole core, not half of one


def test_a_box_has_cores():
    with pytest.raises(ValueError, match="at least 1 core, not 0"):
        all_reduce(*far(2), "whole", 4, costs=Costs(cores=0))


@pytest.mark.parametrize(("cores", "seconds"), [(None, D + 1), (6, D + 5), (2, 15 + D / 5), (1, 30)])
def test_messages_wait_for_a_core(cores, seconds):
    """All six send five messages at once and get five, of a second each: side by side, on a thread each, on few cores.

    Half a second is the sender's. The last rank is everybody's last: its five arrive together, D after all have sent,
    while the other five have 2.5 s left each of taking theirs in. On one core somebody always works; on two, what the
    others did in D (0.4 D each) is what the last rank does alone at the end, with the other core idle.
    """
    outcome = all_reduce(*far(6), "whole", 4000, costs=Costs(message=1.0, cores=cores))
    assert outcome.seconds == pytest.approx(seconds)


def test_what_handles_messages_takes_from_what_computes():
    """Two ranks on one core: each computes 10 s of 20, all of backward; at 35 ms a message comes that needs 2 s.

    Until both have handled theirs there are four threads on the core, a quarter each: 8 s, in which backward gets on by
    as much as it would in 4. Without the messages it would end at 20 s; the core has 4 s more to do.
    """
    work = Workload((Bucket(4000),), backward=20.0)
    outcome = step(*far(2), "whole", work, costs=Costs(message=2.0, cores=1))
    assert outcome.ends == pytest.approx([24.0, 24.0])
