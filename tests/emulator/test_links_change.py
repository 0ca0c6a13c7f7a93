"""Links that change while packets pass: the new values hold, and the change itself costs nothing."""

import os
import socket
import struct
import threading
import time
from dataclasses import replace

import pytest
from patience import assert_becomes

from emulator.hosts.netns import Network
from emulator.links import shaping
from emulator.links.flows import Flow, pump
from emulator.links.loss import lost
from emulator.links.namespace import LinkError
from emulator.links.ping import round_trips
from emulator.topology import TopologyError, load

ENGINES = ("nfqueue", "tun")
PAYLOAD = 1448 / 1514
ADDRESS = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}


@pytest.fixture
def world(tmp_path):
    def made(rules, more="", access=""):
        file = tmp_path / "world.yaml"
        file.write_text(f"name: world\nsites: [s]\nhosts:\n  a: {{site: s{access}}}\n  b: {{site: s}}\n"
                        f"  c: {{site: s}}\npaths:\n  - {{between: [s, s], delay: 5 ms, rate: 4 MB/s}}\n{rules}{more}")
        return load(file)
    return made


def altered(topology, pair, **fields):
    return replace(topology, paths=tuple(replace(path, **fields) if (path.source, path.target) == pair else path
                                         for path in topology.paths))


def test_a_change_is_in_place(world):
    before = world("")
    after = altered(before, ("a", "b"), rate=1e6)
    lines = shaping.up(before, "a", "eth0", ADDRESS, after)
    assert [line.split()[:2] for line in lines] == [["class", "change"], ["qdisc", "change"]] * 2
    assert lines[0].startswith("class change dev eth0 parent 1: classid 1:1 htb rate 1000000bps ceil 1000000bps ")
    # What has room stays: the longest queue ever needed. 2 x 4 MB/s x 10 ms is less than the least, 144 KiB.
    assert lines[1] == "qdisc change dev eth0 parent 1:1 handle 2: bfifo limit 147456"
    long = altered(before, ("a", "b"), delay=0.045)      # and 50 ms need 400,000 B
    assert shaping.up(before, "a", "eth0", ADDRESS, long)[1].endswith(" limit 400000")


def test_a_queue_has_room_for_every_second_of_the_timeline(world):
    later = world("", "timeline:\n  changes:\n    - {at: 5 s, from: a, to: b, delay: 45 ms}\n")
    lines = shaping.up(later, "a", "eth0", ADDRESS)
    queues = [line.split()[-1] for line in lines if "bfifo" in line]
    assert queues == ["400000", "147456"]


def test_losses_of_the_timeline_are_prepared(world):
    later = world("", "timeline:\n  changes:\n    - {at: 5 s, from: a, to: b, loss: 1 %}\n")
    assert [shaping.segments(later, host) for host in "abc"] == [1, None, None]
    shaping.refuse_change(later, later.state(5))
    shaping.refuse_change(later, later.state(0))


@pytest.mark.parametrize(("change", "complaint"), [
    (lambda world: altered(world, ("a", "b"), window=65536), "the window of a -> b cannot change"),
    (lambda world: altered(world, ("a", "b"), queue=65536), "the queue of a -> b cannot change"),
    (lambda world: altered(world, ("a", "b"), rate=None), "path a -> b is limited, and cannot become unlimited"),
    (lambda world: replace(world, hosts=tuple(replace(host, up=1e6) for host in world.hosts)),
     "the access up of a is unlimited, and cannot become limited"),
    (lambda world: altered(world, ("b", "c"), loss=0.01), ":8: path b -> c cannot begin to lose packets"),
    (lambda world: replace(world, congestion="reno"), "the congestion control cannot change"),
    (lambda world: replace(world, groups=()), "the groups cannot change"),
    (lambda world: world.select("ab"), "the hosts cannot change"),
])
def test_what_cannot_change_is_refused(world, change, complaint):
    made = world("", "groups:\n  trunk: {rate: 1 MB/s, paths: [{from: a, to: b}]}\n")
    with pytest.raises(TopologyError, match=complaint):
        shaping.refuse_change(made, change(made))
    shaping.refuse_change(made, made)


class Watched:
    """A flow from a to b that goes on while things are done to its network."""

    def __init__(self, network):
        self.network = network
        self.flow = Flow(network.shaped.path("a", "b"), network)
        self.flows = pump([self.flow])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.flow.done = True
        for _ in self.flows:
            pass
        self.flow.close()

    def assert_rate(self, expected):
        """Bytes of frames per second."""
        assert_becomes(pytest.approx(expected, rel=0.02), lambda: self.rate(0.5, 1.5))

    def assert_nothing_lost(self):
        """No segment was sent again but such as had arrived: on a busy machine an acknowledgement can be too late."""
        def lost():
            self.rate(0, 0.2)      # what is being repaired, or told, is so soon
            info = self.flow.sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            # tcpi_total_retrans, and tcpi_dsack_dups of segments that came twice, of linux/tcp.h
            resent, twice = (struct.unpack_from("I", info, place)[0] for place in (100, 216))
            return resent - twice

        assert_becomes(0, lost)

    def rate(self, settling, seconds):
        """Bytes of frames per second, counted after `settling` seconds."""
        counted = []
        begun = time.monotonic()
        for flow in self.flows:
            now = time.monotonic()
            if now >= begun + settling:
                counted.append((flow.arrived, flow.received))
            if now >= begun + settling + seconds:
                break
        (start, before), (end, after) = counted[0], counted[-1]
        return (after - before) / (end - start) / PAYLOAD


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_flow_goes_on_at_the_new_rate_with_nothing_lost(world, engine):
    made = world("")
    with Network(made, f"change-{engine}-{os.getpid()}", engine=engine) as network, Watched(network) as watched:
        watched.assert_rate(4e6)
        # To a quarter, with a longer delay; then up beyond the first, with a shorter one.
        network.change(altered(made, ("a", "b"), rate=1e6, delay=0.012))
        watched.assert_rate(1e6)
        network.change(altered(made, ("a", "b"), rate=8e6, delay=0.002))
        watched.assert_rate(8e6)
        network.change(made)
        watched.assert_rate(4e6)
        watched.assert_nothing_lost()
        network.check()


@pytest.mark.root
@pytest.mark.slow
def test_accesses_and_groups_change_too(world):
    made = world("", "groups:\n  trunk: {rate: 2 MB/s, paths: [{from: a, to: b}, {from: c, to: b}]}\n",
                 access=", access: {up: 3 MB/s}")
    wide = replace(made, groups=tuple(replace(group, rate=6e6) for group in made.groups))
    narrow = replace(made, hosts=tuple(replace(host, up=host.up and 1e6) for host in made.hosts))
    with Network(made, f"change-{os.getpid()}") as network, Watched(network) as watched:
        watched.assert_rate(2e6)
        network.change(wide)
        watched.assert_rate(3e6)      # now the access binds
        network.change(narrow)
        watched.assert_rate(1e6)
        watched.assert_nothing_lost()


def assert_round_trips(network, seconds, tolerance):
    expected = {("a", "b"): seconds, ("b", "a"): seconds}
    assert_becomes(pytest.approx(expected, abs=tolerance),
                   lambda: round_trips(network.namespaces, network.addresses, expected, 31))


@pytest.mark.root
@pytest.mark.parametrize("engine", ENGINES)
def test_packets_keep_their_order_when_a_delay_shrinks_and_their_calibration_stays(world, engine):
    made = world("  - {between: [a, b], delay: 20 ms}\n")
    short = altered(altered(made, ("a", "b"), delay=0.005), ("b", "a"), delay=0.005)
    with Network(made, f"change-{engine}-{os.getpid()}", engine=engine) as network:
        sender = network.namespaces["a"].socket(socket.SOCK_DGRAM)
        receiver = network.namespaces["b"].socket(socket.SOCK_DGRAM)
        with sender, receiver:
            receiver.bind((network.addresses["b"], 0))
            receiver.settimeout(60)
            receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 20)      # SO_RCVBUFFORCE: nothing is read meanwhile
            for number in range(400):
                sender.sendto(struct.pack("!I", number), receiver.getsockname())
                time.sleep(0.0005)
                if number == 200:
                    network.change(short)
            got = [struct.unpack("!I", receiver.recv(4))[0] for _ in range(400)]
        assert got == list(range(400))
        # Within what a path may be off; without the calibration an engine adds about that to each way.
        assert_round_trips(network, 0.01, 0.3e-3)


@pytest.mark.root
@pytest.mark.parametrize("engine", ENGINES)
def test_a_path_that_was_too_short_to_be_held_becomes_long(world, engine):
    made = world("  - {between: [a, b], delay: 0 s}\n")
    long = altered(made, ("a", "b"), delay=0.02)
    with Network(made, f"change-{engine}-{os.getpid()}", engine=engine) as network:
        assert ("a", "b") not in network.engine.held
        network.change(long)
        assert_round_trips(network, 0.02, 0.6e-3)      # it had no calibration of its own
        network.change(made)
        assert_round_trips(network, 0.0, 0.6e-3)


@pytest.mark.root
@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_timeline_needs_outlives_the_thread_that_plays_it(world, engine):
    made = world("  - {from: a, to: b, delay: 0 s}\n  - {from: c, to: b, delay: 0 s}\n",
                 "timeline:\n  changes:\n    - {at: 5 s, from: a, to: b, delay: 20 ms}\n")
    with Network(made, f"change-{engine}-{os.getpid()}", engine=engine) as network:
        player = threading.Thread(target=lambda: network.change(made.state(5)))
        player.start()
        player.join()
        time.sleep(0.2)
        network.check()      # a process dies with the thread that started it
        assert ("a", "b") in network.engine.held


@pytest.mark.root
@pytest.mark.parametrize("engine", ENGINES)
def test_an_outage_comes_and_goes(world, engine):
    made = world("  - {from: a, to: b, loss: 10 %}\n")
    cut = altered(made, ("a", "b"), loss=1)
    with Network(made, f"change-{engine}-{os.getpid()}", engine=engine) as network:
        path = made.path("a", "b")
        network.change(altered(made, ("a", "b"), loss=0))
        assert lost(network, path, 500) == []
        network.change(cut)
        with pytest.raises(LinkError, match="a -> b: none of 500 datagrams came through"):
            lost(network, path, 500)
        assert lost(network, made.path("b", "a"), 500) == []
        network.change(made)
        assert 20 < len(lost(network, path, 500)) < 90
