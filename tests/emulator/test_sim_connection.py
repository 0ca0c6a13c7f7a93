"""Messages through TCP channels, worked out by hand."""

import pytest
from simpy import Environment

from emulator.sim.channel import KERNEL_BUFFER, Channel, wire_bytes
from emulator.sim.connection import Connections
from emulator.sim.flow import Flow, Link
from emulator.sim.network import Network
from emulator.topology import Group, Host, Path, Topology

SEGMENT, FRAME = 1448, 1514


def topology(hosts, paths, groups=()):
    return Topology("test", "test.yaml", tuple(hosts), list(paths), tuple(groups), "cubic", "")


def two(**path):
    """Hosts a and b, 35 ms apart."""
    return topology([Host("a", "s"), Host("b", "s", slots=2)],
                    [Path(*ends, **({"rate": None, "delay": 0.035} | path)) for ends in (("a", "b"), ("b", "a"))])


@pytest.fixture
def env():
    return Environment()


@pytest.fixture
def times(env):
    """Note when the events of messages happen: times(message) -> {"first": …, "left": …, "arrived": …}."""
    def watch(message):
        seen = {}
        message.left.callbacks.append(lambda _: seen.setdefault("left", env.now))
        message.arrived.callbacks.append(lambda _: seen.update(arrived=env.now, first=message.first))
        return seen
    return watch


def channel(env, rate=FRAME, delay=0.0, **options):
    """A channel over one link, of one full segment a second unless said otherwise."""
    return Channel(Network(env), Flow([Link("a", rate)]), delay, 2 * delay, **options)


def test_headers_for_every_segment():
    assert [wire_bytes(n) for n in (1, 1448, 1449, 14480)] == [67, 1514, 1449 + 132, 15140]


def test_delay_and_transfer_overlap(env, times):
    seen = times(channel(env, delay=3).send(10 * SEGMENT))
    env.run()
    assert seen == {"first": 3, "left": 10, "arrived": 13}


def test_messages_leave_in_order(env, times):
    way = channel(env, delay=3)
    first, second = times(way.send(10 * SEGMENT)), times(way.send(SEGMENT))
    env.run()
    assert (first["arrived"], second["first"], second["arrived"]) == (13, 13, 14)


def test_an_urgent_message_goes_ahead_of_those_that_wait(env, times):
    way = channel(env)
    one, two_, urgent = times(way.send(SEGMENT)), times(way.send(SEGMENT)), times(way.send(SEGMENT, urgent=True))
    env.run()
    assert (urgent["arrived"], one["arrived"], two_["arrived"]) == (1, 2, 3)


def test_an_urgent_message_overtakes_what_the_kernel_does_not_have(env, times):
    # 1000 segments; 100 are gone when the urgent one comes, and the kernel has 131072 B more. All bytes count once.
    way = channel(env)
    bulk = times(way.send(1000 * SEGMENT))
    env.run(until=100)
    urgent = times(way.send(SEGMENT, urgent=True))
    env.run()
    assert urgent["arrived"] == pytest.approx(100 + KERNEL_BUFFER / FRAME + 1)
    assert bulk["arrived"] == pytest.approx(1001)
    assert bulk["first"] == 0


def test_messages_that_are_not_urgent_wait_for_a_long_one(env, times):
    way = channel(env)
    bulk, later = times(way.send(1000 * SEGMENT)), times(way.send(SEGMENT))
    env.run()
    assert (bulk["arrived"], later["arrived"]) == (1000, 1001)


def test_slow_start_doubles_every_round_trip(env, times):
    # A link that takes no time worth naming: 10, 20, 40 segments, at 0, 1 and 2 round trips of 70 ms.
    way = channel(env, rate=1e15, delay=0.035, cold=True)
    arrived = [times(way.send(n * SEGMENT)) for n in (10, 20, 40)]
    env.run()
    assert [seen["arrived"] for seen in arrived] == pytest.approx([0.035, 0.105, 0.175])


def test_slow_start_ends_when_the_link_is_the_limit(env, times):
    # Round trip 35 s at one segment a second: 10 segments in 10 s, 20 at 35..55 s, 40 at 70..110 s, when the first
    # acknowledgement of the round has been back for 5 s. From then on there is no gap.
    way = channel(env, delay=17.5, cold=True)
    seen = times(way.send(1000 * SEGMENT))
    env.run()
    assert seen["left"] == pytest.approx(110 + 1000 - 70)


def test_a_warm_connection_has_no_slow_start(env, times):
    seen = times(channel(env, rate=1e15, delay=0.035).send(1000 * SEGMENT))
    env.run()
    assert seen["arrived"] == pytest.approx(0.035)


def arrive(env, times, world, sends, hosts=("a", "b")):
    connections = Connections(env, world, hosts)
    seen = [times(connections.channel(a, b).send(n)) for a, b, n in sends]
    env.run()
    return [one["arrived"] for one in seen]


def test_a_path_has_a_rate_a_burst_and_a_delay(env, times):
    # HTB lets a frame go at once (a millisecond of this rate is less), and half a packet, of two.
    world = two(rate=100 * FRAME)
    assert arrive(env, times, world, [(0, 1, 1000 * SEGMENT)]) == pytest.approx([0.035 + 9.98], rel=1e-6)


@pytest.mark.parametrize(("segments", "rounds"), [(10, 0), (11, 1), (20, 1), (40, 3), (41, 4)])
def test_a_window_leaves_once_a_round_trip_on_each_connection(env, times, segments, rounds):
    """A shaped window showed these steps: 2 windows and 64 B take two round trips of 94 ms, 8 and 256 B take eight."""
    sends = [(0, 1, segments * SEGMENT), (0, 2, segments * SEGMENT)]
    arrived = arrive(env, times, two(window=10 * SEGMENT), sends, ("a", "b", "b"))
    assert arrived == pytest.approx([0.035 + rounds * 0.07] * 2)


def test_a_window_that_the_link_takes_longer_for_than_a_round_trip_is_no_limit(env, times):
    seen = times(channel(env, delay=4, window=10 * SEGMENT).send(1000 * SEGMENT))
    env.run()
    assert seen["left"] == pytest.approx(1000)


def test_a_window_that_the_link_is_too_fast_for(env, times):
    # 10 segments in 10 s, every 16 s.
    seen = times(channel(env, delay=8, window=10 * SEGMENT).send(100 * SEGMENT))
    env.run()
    assert seen["left"] == pytest.approx(9 * 16 + 10)


def test_a_segment_waits_until_it_fits_whole(env, times):
    """What a small message leaves of the window is too little for a tenth segment, though it is acknowledged first."""
    way = channel(env, rate=1e15, delay=0.5, window=10 * SEGMENT)
    way.send(100)
    env.run(until=0.25)
    seen = times(way.send(20 * SEGMENT))
    env.run()
    # 15140 - 166 B leave at 0.25 s, nothing at 1 s, 15140 B at 1.25 s, and the last 166 B at 2.25 s.
    assert seen["left"] == pytest.approx(2.25)


def test_after_a_pause_the_window_is_free_again(env, times):
    way = channel(env, delay=8, window=10 * SEGMENT)
    way.send(9 * SEGMENT)
    env.run(until=30)
    seen = times(way.send(10 * SEGMENT))
    env.run()
    assert seen["left"] == pytest.approx(40)


def test_access_is_shared_by_all_paths_of_a_host(env, times):
    # a's up is shared by two; c's down by two more; 1000 segments at 50 a second.
    names = "abc"
    world = topology([Host("a", "s", up=100 * FRAME), Host("b", "s"), Host("c", "s", down=1000 * FRAME)],
                     [Path(x, y, None, 0.035) for x in names for y in names if x != y])
    sends = [(0, 1, 1000 * SEGMENT), (0, 2, 1000 * SEGMENT)]
    assert arrive(env, times, world, sends, names) == pytest.approx([20 - 0.02 + 0.035] * 2, rel=1e-4)


def test_a_group_is_one_bottleneck_of_its_paths(env, times):
    names = "abc"
    pairs = [(x, y) for x in names for y in names if x != y]
    world = topology([Host(name, "s") for name in names], [Path(*ends, None, 0.0) for ends in pairs],
                     [Group("sea", 100 * FRAME, frozenset({("a", "b"), ("c", "b")}))])
    sends = [(0, 1, 1000 * SEGMENT), (2, 1, 1000 * SEGMENT), (0, 2, 1000 * SEGMENT)]
    assert arrive(env, times, world, sends, names) == pytest.approx([20 - 0.02, 20 - 0.02, 0], rel=1e-4)


def test_ranks_on_one_host_do_without_a_network(env, times):
    world = two(rate=1.0)
    assert arrive(env, times, world, [(1, 2, 10**9)], ("a", "b", "b")) == [0]


@pytest.mark.parametrize(("options", "message"), [
    ({"loss": 0.03}, r"^test.yaml:7: path b -> a loses 3 % of its packets, .* up to 2 %"),
    ({"loss": 0.01, "congestion": "bbr"}, r"^test.yaml:7: path b -> a loses packets.* no rate of bbr .*cubic and reno"),
])
def test_loss_that_no_law_is_for_is_refused_where_it_is_written(options, message):
    congestion = options.pop("congestion", "cubic")
    paths = [Path("a", "b", None, 0.1), Path("b", "a", None, 0.1, **options, line=7)]
    world = Topology("test", "test.yaml", (Host("a", "s"), Host("b", "s")), paths, (), congestion, "")
    with pytest.raises(ValueError, match=message):
        Connections(Environment(), world, ["a", "b"])
    Connections(Environment(), world, ["a"])  # nobody takes that path


@pytest.mark.parametrize(("congestion", "least"), [("cubic", 60_000), ("reno", 140_000)])
def test_a_queue_that_leaves_a_path_idle_is_refused(congestion, least):
    """1 MB/s and a round trip of 140 ms hold 140 kB: Reno needs as much of queue, CUBIC three sevenths of it."""
    def connect(queue, **options):
        paths = [Path("a", "b", 1e6, 0.07, queue=queue, line=7, **options), Path("b", "a", None, 0.07)]
        Connections(Environment(), Topology("test", "test.yaml", (Host("a", "s"), Host("b", "s")), paths, (),
                                            congestion, ""), ["a", "b"])

    connect(least + 1)
    connect(20_000, window=150_000)  # never full
    with pytest.raises(ValueError, match=r"^test.yaml:7: path a -> b has a queue .* idle .* or none"):
        connect(least - 1)
