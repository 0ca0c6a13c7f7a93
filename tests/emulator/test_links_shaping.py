"""HTB's classes and netem's as text; nothing here touches the kernel."""

import re
from dataclasses import replace

import pytest

from emulator.links import netem, shaping
from emulator.links.shaping import Leaf
from emulator.topology import Path, load

ADDRESS = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}


def topology_of(tmp_path, hosts, paths):
    file = tmp_path / "world.yaml"
    file.write_text(f"name: world\nsites: [s]\nhosts:\n{hosts}paths:\n{paths}")
    return load(file)


def path(**fields):
    return Path("a", "b", **({"rate": 0.7e6, "delay": 0.035} | fields))


def test_a_queue_is_twice_the_bandwidth_delay_product():
    # 30 MB/s times 70 ms is 2.1 MB.
    assert shaping.queue_size(path(), 0.07, 30e6) == 4_200_000


def test_a_queue_holds_at_least_two_of_the_largest_packets():
    # 0.7 MB/s times 70 ms is 49 kB: less than a single GSO packet, which would never get through.
    assert shaping.queue_size(path(), 0.07, 0.7e6) == 147_456


def test_a_queue_and_what_netem_holds_are_numbers_of_32_bits_as_tc_takes_no_others():
    # 100 GB/s for a round trip of 120 s, in bytes; and for 60 s and four times the jitter, in packets.
    assert shaping.queue_size(path(), 120, 1e11) == 4_294_967_295
    assert netem.limit(path(rate=1e11, delay=60, jitter=60)) == 4_294_967_295


@pytest.mark.parametrize(("access", "rate"), [(None, 1e2), (1e2, None), (None, 1e11), (1e11, None)])
def test_the_slowest_and_the_fastest_rate_are_such_that_tc_takes_them(access, rate):
    for k in (1, 10):
        limits = [None if limit is None else limit * k for limit in (access, rate)]
        text = " ".join(shaping.tree("eth0", limits[0], [Leaf("ip dst 10.0.0.2/32", limits[1], 262144)]))
        bursts = [int(burst) for burst in re.findall(r"burst (\d+)", text)]
        # Bytes in 32 bits; and the time that they take at this rate, in 64 ns.
        assert max(bursts) < 2 ** 32
        assert max(bursts) / (limits[0] or limits[1]) / 64e-9 < 2 ** 32


def test_a_queue_that_the_topology_gives_is_taken():
    assert shaping.queue_size(path(queue=30_000), 0.07, 30e6) == 30_000


def test_a_path_is_a_class_with_its_rate_and_no_borrowing():
    assert shaping.tree("eth0", None, [Leaf("ip dst 10.0.0.2/32", 0.7e6, 262144)]) == [
        "qdisc add dev eth0 root handle 1: htb",
        "class add dev eth0 parent 1: classid 1:1 "
        "htb rate 700000bps ceil 700000bps burst 1514 cburst 1514 quantum 1514",
        "qdisc add dev eth0 parent 1:1 handle 2: bfifo limit 262144",
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.0.0.2/32 flowid 1:1",
    ]


def test_a_millisecond_of_a_rate_may_go_at_once_and_four_of_a_shared_one():
    assert shaping.burst(30e6) == 30_000
    assert shaping.burst(30e6, shared=True) == 120_000
    assert shaping.burst(0.3e6, shared=True) == 1514


def test_paths_share_an_access_evenly_and_borrow_up_to_it():
    lines = shaping.tree("eth0", 3e6, [Leaf("m1", None, 1), Leaf("m2", 1.2e6, 1), Leaf("m3", 0.5e6, 1)])
    classes = [line.split("burst")[0].split("classid ")[1] for line in lines if line.startswith("class")]
    # Nothing is assured, or as good as nothing, to any: all is borrowed, up to a path's own rate.
    assert classes == [
        "1:fff htb rate 3000000bps ceil 3000000bps ",
        "1:1 htb rate 25bps ceil 3000000bps ",
        "1:2 htb rate 25bps ceil 1200000bps ",
        "1:3 htb rate 25bps ceil 500000bps ",
    ]
    # 4 ms of what is shared may go at once, 1 ms of what is a path's own; but for its turns no leaf has a burst.
    assert [line.split(" burst ")[1] for line in lines if line.startswith("class")] == [
        "12000 cburst 12000 quantum 3000", "1 cburst 12000 quantum 3000", "1 cburst 1514 quantum 3000",
        "1 cburst 1514 quantum 3000"]


def test_nothing_is_made_where_nothing_is_limited():
    assert shaping.tree("eth0", None, [Leaf("m1", None, 1)]) == []


def test_an_unlimited_path_beside_a_limited_one_has_no_class():
    lines = shaping.tree("eth0", None, [Leaf("m1", None, 1), Leaf("m2", 1e6, 1)])
    assert [line for line in lines if line.startswith("filter")] == [
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match m2 flowid 1:1"]


def test_access_up_is_by_destination_and_down_by_source(tmp_path):
    world = topology_of(tmp_path, "  a: {site: s, access: {up: 2 MB/s, down: 1 MB/s}}\n  b: {site: s}\n",
                        "  - {between: [s, s], delay: 10 ms}\n")
    up = shaping.up(world, "a", "eth0", ADDRESS)
    down = shaping.down(world, "a", "host0", ADDRESS)
    assert [line for line in up if "match" in line] == [
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.0.0.2/32 flowid 1:1"]
    assert [line for line in down if "match" in line] == [
        "filter add dev host0 parent 1: protocol ip prio 1 u32 match ip src 10.0.0.2/32 flowid 1:1"]
    assert any("1:fff htb rate 2000000bps" in line for line in up)
    assert any("1:fff htb rate 1000000bps" in line for line in down)
    assert shaping.up(world, "b", "eth0", ADDRESS) == shaping.down(world, "b", "host1", ADDRESS) == []


@pytest.mark.parametrize(("window", "clamp"), [(65_536, 65_535), (65_000, 65_535), (131_072, 131_070),
                                               (2**20, 1_048_560), (100_000, None), (32_768, None)])
def test_a_window_is_what_the_field_and_its_scale_allow(window, clamp):
    assert shaping.window_clamp(window) == clamp


def test_segments_are_joined_less_where_queues_are_short_packets_lost_or_limits_shared(tmp_path):
    def joined(host, path="", a="", more=""):
        hosts = f"  a: {{site: s{a}}}\n  b: {{site: s}}\n  c: {{site: s}}\n"
        rules = f"  - {{between: [s, s], delay: 1 ms}}\n  - {{from: a, to: b, delay: 1 ms{path}}}\n{more}"
        return shaping.segments(topology_of(tmp_path, hosts, rules), host)

    assert joined("a") is None
    assert joined("a", ", rate: 1 MB/s") is None
    assert joined("a", ", queue: 40 kB") == 6       # a fourth is 10,000 B, of frames of 1514
    assert joined("a", ", queue: 3 kB") == 1
    assert joined("b", ", queue: 3 kB") is None     # the path begins elsewhere
    assert joined("a", ", loss: 1 %") == 1
    assert joined("a", a=", access: {up: 1 MB/s}") == 2
    assert joined("a", a=", access: {up: 300 MB/s}") == 3      # 50,000 packets a second, of frames of 1514 B
    assert joined("b", a=", access: {up: 1 MB/s}") is None
    assert joined("b", a=", access: {down: 1 MB/s}") == joined("c", a=", access: {down: 1 MB/s}") == 2
    trunk = "groups:\n  trunk: {rate: 1 MB/s, paths: [{from: a, to: b}, {from: c, to: b}]}\n"
    assert [joined(host, more=trunk) for host in "abc"] == [2, None, 2]


def test_an_outage_is_no_reason_to_join_less(tmp_path):
    world = topology_of(tmp_path, "  a: {site: s}\n  b: {site: s}\n", "  - {between: [s, s], delay: 1 ms}\n")
    cut = replace(world, paths=tuple(replace(path, loss=1) for path in world.paths))
    assert shaping.segments(cut, "a") is None      # nothing comes through, however it is joined


def test_netem_has_room_for_all_that_is_on_the_way():
    # 30 MB/s for 45 ms is 1.35 MB, in acknowledgements of 66 bytes 20,455.
    assert netem.limit(path(rate=30e6)) == 20_455


def test_netem_says_delay_jitter_and_loss():
    one = path(jitter=0.002, loss=0.001)
    assert netem.options(one, 0.0002, begin=7) == (f"limit {netem.limit(one)} delay 34800.0us 2000.0us distribution "
                                                   "normal loss 0.100000% seed 7 rate 12500000000bps")
    assert netem.options(path(loss=1)).endswith(" loss 100.000000% rate 12500000000bps")


