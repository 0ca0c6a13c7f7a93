"""What is measured, when, and what it is compared with."""

import os
import socket
import time
from functools import partial
from itertools import combinations
from types import SimpleNamespace

import pytest
from patience import assert_becomes

from emulator.hosts.netns import Network
from emulator.links import fidelity
from emulator.links.fidelity import PathFidelity, expected_goodput, probe, schedule
from emulator.links.flows import Flow, together
from emulator.topology import load


def topology_of(tmp_path, hosts, paths):
    file = tmp_path / "world.yaml"
    file.write_text(f"name: world\nsites: [s]\nhosts:\n{hosts}paths:\n{paths}")
    return load(file)


def six(tmp_path, access=""):
    return topology_of(tmp_path, "".join(f"  h{i}: {{site: s{access}}}\n" for i in range(6)),
                       "  - {between: [s, s], delay: 10 ms, rate: 1 MB/s}\n")


def test_paths_with_limits_of_their_own_take_two_rounds(tmp_path):
    world = six(tmp_path)
    rounds = schedule(world, world.paths)
    assert [{(path.source < path.target) for path in paths} for paths in rounds] == [{True}, {False}]
    assert [len(paths) for paths in rounds] == [15, 15]


def test_a_limited_host_is_in_one_flow_at_a_time(tmp_path):
    world = six(tmp_path, ", access: {up: 1 MB/s}")
    rounds = schedule(world, world.paths)
    assert sum(map(len, rounds)) == 30
    for paths in rounds:
        for one, other in combinations(paths, 2):
            assert not {one.source, one.target} & {other.source, other.target}


def test_a_fast_path_has_a_round_of_its_own(tmp_path):
    world = topology_of(tmp_path, "  a: {site: s}\n  b: {site: s}\n  c: {site: s}\n",
                        "  - {between: [s, s], delay: 10 ms, rate: 1 MB/s}\n  - {between: [a, b], rate: 30 MB/s}\n")
    alone = [[(path.source, path.target) for path in paths] for paths in schedule(world, world.paths)
             if paths[0].rate > 2e6]
    assert alone == [[("a", "b")], [("b", "a")]]


def test_windows_are_measured_a_few_at_a_time(tmp_path):
    # 64 KiB each 20 ms are 3.3 MB/s: six of them side by side are within 20 MB/s.
    world = topology_of(tmp_path, "".join(f"  h{i}: {{site: s}}\n" for i in range(6)),
                        "  - {between: [s, s], delay: 10 ms, window: 64 KiB}\n")
    assert [len(paths) for paths in schedule(world, world.paths)] == [6, 6, 6, 6, 6]


def test_goodput_is_what_the_tightest_limit_leaves(tmp_path):
    world = topology_of(
        tmp_path, "  a: {site: s, access: {up: 4 MB/s}}\n  b: {site: s, access: {down: 2 MB/s}}\n  c: {site: s}\n",
        "  - {between: [s, s], delay: 50 ms}\n  - {from: c, to: a, rate: 3 MB/s}\n"
        "  - {from: b, to: c, window: 64 KiB}\n")

    def expected(source, target):
        return expected_goodput(world, world.path(source, target))

    assert expected("a", "b") == pytest.approx(2e6 * 1448 / 1514)
    assert expected("a", "c") == pytest.approx(4e6 * 1448 / 1514)
    assert expected("c", "a") == pytest.approx(3e6 * 1448 / 1514)
    assert expected("b", "c") == pytest.approx(655_360)      # 65,536 bytes each 100 ms
    assert expected("b", "a") is None


def test_a_path_is_valid_within_one_per_cent_and_three_tenths_of_a_millisecond():
    def valid(rtt=0.07, goodput=1e6, expected=1e6):
        return PathFidelity("a", "b", rtt, 0.07, goodput, expected).valid

    assert valid(rtt=0.0720, goodput=1.0099e6)
    assert not valid(rtt=0.0722)
    assert not valid(goodput=0.989e6)
    assert valid(goodput=5e6, expected=None)
    assert PathFidelity("a", "b", 0.00069, 0.0004, 1, None).valid      # 3 % of 0.4 ms would be 12 us
    assert not PathFidelity("a", "b", 0.00071, 0.0004, 1, None).valid


def test_jitter_may_move_the_median_by_chance():
    # Both ways have 3 and 4 ms: a round trip 5 ms. The median of 21 has an error of sqrt(pi / 42) = 0.2735 of that.
    assert PathFidelity("a", "b", 0.07 + 0.0021 + 0.0041, 0.07, 1, None, jitter=0.005).valid
    assert not PathFidelity("a", "b", 0.07 + 0.0021 + 0.0042, 0.07, 1, None, jitter=0.005).valid


def test_a_path_that_is_off_is_measured_again(tmp_path, monkeypatch):
    world = topology_of(tmp_path, "  a: {site: s}\n  b: {site: s}\n",
                        "  - {between: [s, s], delay: 35 ms, rate: 1 MB/s}\n")
    right = 1e6 * 1448 / 1514
    asked = []

    def goodputs(network, paths):
        asked.append([(path.source, path.target) for path in paths])
        # a -> b was disturbed once; b -> a is 2 % too slow.
        return {pair: right * (0.98 if pair == ("b", "a") or len(asked) == 1 else 1)
                for pair in asked[-1]}

    class Still:
        shaped, namespaces, addresses = world, {}, {}

        def check(self):
            pass

    monkeypatch.setattr(fidelity, "round_trips", lambda namespaces, addresses, expected, count: expected)
    monkeypatch.setattr(fidelity, "goodputs", goodputs)
    one, other = probe(Still())
    assert (one.valid, one.attempts, one.goodput) == (True, 2, right)
    assert (other.valid, other.attempts, other.goodput) == (False, 3, right * 0.98)
    assert asked == [[("a", "b")], [("b", "a")], [("a", "b")], [("b", "a")], [("b", "a")]]


@pytest.mark.root
def test_links_are_what_the_topology_says(tmp_path):
    world = topology_of(tmp_path, "  a: {site: s}\n  b: {site: s}\n  c: {site: s}\n",
                        "  - {between: [s, s], delay: 35 ms, rate: 0.7 MB/s}\n  - {from: a, to: b, rate: 1.4 MB/s}\n"
                        "  - {between: [b, c], window: 64 KiB, rate: unlimited}\n")
    told = []

    def wrong(path):
        # 7 ms there and back; 7 and 14 MB/s with Ethernet's headers; and 65,535 bytes each round trip. Twice what a
        # campaign is allowed.
        if {path.source, path.target} == {"b", "c"}:
            goodput = path.goodput * path.rtt == pytest.approx(65_535, rel=0.06)
        else:
            rate = 14e6 if (path.source, path.target) == ("a", "b") else 7e6
            goodput = path.goodput == pytest.approx(rate * 1448 / 1514, rel=0.02)
        return not (goodput and path.rtt == pytest.approx(7e-3, abs=0.6e-3))

    with Network(world, f"fidelity-{os.getpid()}", speedup=10) as network:
        def off():
            found = probe(network, lambda *args: told.append(args[:2]))
            assert {(path.source, path.target) for path in found} == {(a, b) for a in "abc" for b in "abc" if a != b}
            return [path for path in found if wrong(path)]

        assert_becomes([], off)
    assert told[0] == (0, 6)
    assert told[-1] == (6, 6)


@pytest.mark.root
def test_two_flows_share_an_access_max_min_fairly(tmp_path):
    world = topology_of(
        tmp_path, "  a: {site: s, access: {up: 20 MB/s}}\n  b: {site: s}\n  c: {site: s}\n"
        "  d: {site: s, access: {down: 20 MB/s}}\n",
        "  - {between: [s, s], delay: 5 ms}\n  - {from: a, to: d, rate: 4 MB/s}\n")
    limit = 20e6 * 1448 / 1514
    with Network(world, f"share-{os.getpid()}") as network:
        def assert_shares(expected, *pairs):
            assert_becomes(pytest.approx(expected, rel=0.02), lambda: [
                goodput / limit for goodput in together(network, [world.path(*pair) for pair in pairs], 0.3, 1)])

        assert_shares([1 / 2, 1 / 2], ("a", "b"), ("a", "c"))
        assert_shares([1 / 2, 1 / 2], ("b", "d"), ("c", "d"))
        # What the slow one leaves is the other's.
        assert_shares([1 / 5, 4 / 5], ("a", "d"), ("a", "b"))


def test_what_came_before_the_kernel_stamped_it_has_come(tmp_path):
    world = topology_of(tmp_path, "  a: {site: s}\n  b: {site: s}\n", "  - {between: [s, s], delay: 1 ms}\n")
    loopback = SimpleNamespace(socket=partial(socket.socket, socket.AF_INET))
    network = SimpleNamespace(namespaces={"a": loopback, "b": loopback}, addresses=dict.fromkeys("ab", "127.0.0.1"))
    flow = Flow(world.path("a", "b"), network)
    try:
        flow.receiver.setsockopt(socket.SOL_SOCKET, 35, 0)      # SO_TIMESTAMPNS
        flow.receiver.setblocking(True)
        before = time.time()
        flow.sender.send(b"frog")
        flow.receive(memoryview(bytearray(8)))
        assert flow.received == 4
        assert before <= flow.arrived <= time.time()
    finally:
        flow.close()
