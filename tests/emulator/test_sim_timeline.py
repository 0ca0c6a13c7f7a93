"""Networks that change while messages are under way, worked out by hand."""

import dataclasses

import pytest
from simpy import Environment

from emulator.sim import Bucket, Costs, Workload, train
from emulator.sim.connection import Connections
from emulator.timeline import Change, Timeline, Traffic
from emulator.topology import Group, Host, Path, Topology

SEGMENT, FRAME = 1448, 1514
D = 0.035
HOSTS = Host("a", "s"), Host("b", "s")
THERE, BACK = Path("a", "b", 100 * FRAME, D), Path("b", "a", 100 * FRAME, D)


def path(**fields):
    return dataclasses.replace(THERE, **fields)


def arrivals(*changes, traffic=(), sends=((0.0, 1000),), there=THERE, hosts=HOSTS, groups=()):
    """When messages from a to b, (second, segments), arrive. Unchanged: 100 segments a second, 35 ms, 2 at once."""
    world = Topology("test", "test.yaml", hosts, (there, BACK), groups, "cubic", "", Timeline(changes, traffic))
    env = Environment()
    channel = Connections(env, world, ["a", "b"]).channel(0, 1)
    seen = {}

    def send(at, segments):
        yield env.timeout(at)
        yield channel.send(segments * SEGMENT).arrived
        seen[at] = env.now

    for one in sends:
        env.process(send(*one))
    env.run()
    return [seen[at] for at, _ in sends]


def test_without_changes():
    assert arrivals() == pytest.approx([9.98 + D])


def test_a_rate_that_halves_and_comes_back():
    # 502 by 5 s, 552 by 6 s, the other 448 at 100 a second.
    assert arrivals(Change(5.0, (path(rate=50 * FRAME),)), Change(6.0, (THERE,))) == pytest.approx([10.48 + D])


def test_an_access_and_a_group_change_too():
    hosts = Host("a", "s", up=100 * FRAME), Host("b", "s")
    slower = Change(5.0, hosts=(dataclasses.replace(hosts[0], up=50 * FRAME),))
    assert arrivals(slower, there=path(rate=None), hosts=hosts) == pytest.approx([5 + 498 / 50 + D])
    group = Group("sea", 100 * FRAME, frozenset({("a", "b")}))
    slower = Change(5.0, groups=(dataclasses.replace(group, rate=50 * FRAME),))
    assert arrivals(slower, there=path(rate=None), groups=(group,)) == pytest.approx([5 + 498 / 50 + D])


def test_a_delay_is_that_of_the_second_in_which_the_last_byte_leaves():
    assert arrivals(Change(5.0, (path(delay=1.0),))) == pytest.approx([9.98 + 1])


def test_what_leaves_after_a_delay_has_fallen_overtakes_nothing():
    # The first leaves at 0.98 s and arrives 3 s later; the other would, at 2.98 s.
    seen = arrivals(Change(1.5, (path(delay=0.0),)), sends=((0.0, 100), (2.0, 100)), there=path(delay=3.0))
    assert seen == pytest.approx([3.98, 3.98])


def test_an_outage_ends_when_tcp_tries_again():
    """Lost at 5 s; tried again after 0.27 s, and twice that, and twice that: at 5.27, 5.81, 6.89 and 9.05 s.

    502 had left. Slow start: 1, 2, 4, 8 by 9.26 s, and from 9.33 s on the link is full, after one it let go at once.
    """
    outage = Change(5.0, (path(loss=1.0),)), Change(7.0, (THERE,))
    assert arrivals(*outage) == pytest.approx([9.33 + (1000 - 502 - 15 - 1) / 100 + D])


def test_an_outage_of_the_way_back_stops_a_connection_too():
    lost = dataclasses.replace(BACK, loss=1.0)
    assert arrivals(Change(5.0, (lost,)), Change(7.0, (BACK,))) == arrivals(Change(5.0, (path(loss=1.0),)),
                                                                           Change(7.0, (THERE,)))


def test_an_outage_while_nothing_is_sent_does_nothing():
    assert arrivals(Change(5.0, (path(loss=1.0),)), Change(7.0, (THERE,)), sends=((10.0, 100),)) == pytest.approx(
        [10.98 + D])


@pytest.mark.parametrize(("rate", "connections", "left"), [(None, 1, 50), (20 * FRAME, 1, 80), (None, 3, 25),
                                                           (20 * FRAME, 3, 80)])
def test_traffic_of_others_takes_its_share(rate, connections, left):
    traffic = Traffic("a", "b", 2.0, 6.0, rate, connections)
    assert arrivals(traffic=(traffic,)) == pytest.approx([6 + (1000 - 202 - 4 * left) / 100 + D])


@pytest.mark.parametrize("connections", [1, 3])
def test_paths_that_share_an_access_take_turns_whatever_moves_over_them(connections):
    """a's access of 100 segments a second, its paths to b and to c: 50 each.

    Traffic to b from 2 s to 6 s leaves 50 / (n + 1) of them to the message to b, and to the one to c 50 as before.
    """
    hosts = Host("a", "s", up=100 * FRAME), Host("b", "s"), Host("c", "s")
    paths = [Path(x, y, None, D) for x in "abc" for y in "abc" if x != y]
    timeline = Timeline((), (Traffic("a", "b", 2.0, 6.0, None, connections),))
    env = Environment()
    world = Connections(env, Topology("test", "test.yaml", hosts, paths, (), "cubic", "", timeline), ["a", "b", "c"])
    messages = [world.channel(0, to).send(400 * SEGMENT) for to in (1, 2)]
    seen = {}
    for to, message in enumerate(messages):
        message.arrived.callbacks.append(lambda _, to=to: seen.setdefault(to, env.now))
    env.run()
    # One segment of the burst each. c's: 50 a second to its end at 8 s. b's: 100 in 2 s, 200 / (n + 1) by 6 s, 50 a
    # second by 8 s, and what is left alone.
    left = 399 - 100 - 200 / (connections + 1) - 50 * (7.98 - 6)
    assert [seen[0], seen[1]] == pytest.approx([7.98 + left / 100 + D, 7.98 + D], abs=1e-6)


def test_connections_of_two_ranks_on_one_host_share_the_turn_of_their_path():
    """Two ranks at b: two connections to it have 25 segments a second each, and one to c has 50."""
    hosts = Host("a", "s", up=100 * FRAME), Host("b", "s", slots=2), Host("c", "s")
    paths = [Path(x, y, None, D) for x in "abc" for y in "abc" if x != y]
    env = Environment()
    world = Connections(env, Topology("test", "test.yaml", hosts, paths, (), "cubic", ""), ["a", "b", "b", "c"])
    seen = {}
    for to in (1, 2, 3):
        message = world.channel(0, to).send(300 * SEGMENT)
        message.arrived.callbacks.append(lambda _, to=to: seen.setdefault(to, env.now))
    env.run()
    # Each has a third of the burst of 2: then c's 299.33 at 50 a second; the others have gone half as far, and go on.
    first = (300 - 2 / 3) / 50
    assert [seen[1], seen[2], seen[3]] == pytest.approx([1.5 * first + D] * 2 + [first + D], abs=1e-6)


def test_steps_of_a_training_see_the_network_of_their_seconds():
    """Each step is two buckets' worth of 1.5 s; from second 3 on the paths have a third of their rate."""
    world = Topology("test", "test.yaml", HOSTS, (THERE, BACK), (), "cubic", "")
    slow = tuple(dataclasses.replace(one, rate=one.rate / 3) for one in (THERE, BACK))
    work = Workload((Bucket(300 * SEGMENT),))
    (before,) = train(world, ["a", "b"], "whole", work, 1, costs=Costs())
    changing = dataclasses.replace(world, timeline=Timeline((Change(before.end, slow),)))
    steps = train(changing, ["a", "b"], "whole", work, 3, costs=Costs())
    assert steps[0] == before
    first, second, third = (step.seconds for step in steps)
    # Three times as long but for two delays, and for 2 segments that pass at once.
    assert second == pytest.approx(third) == pytest.approx(2 * D + 3 * (first - 2 * D) + 2 * 0.02, rel=0.01)
