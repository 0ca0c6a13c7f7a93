"""Topologies: what a file becomes, what the operations make of it, and what is refused, with line and mend."""

import hashlib
import re
from itertools import permutations
from pathlib import Path as File

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.topology import Group, Path, Row, Topology, TopologyError, load, rows

ROOT = File(__file__).parents[2]
BROKEN = sorted((ROOT / "tests/broken/topologies").glob("*.yaml"))

COASTS = """\
name: coasts
sites: [west, east]
congestion: reno
hosts:
  w1: {site: west, access: {up: 30 MB/s, down: 240 Mbit/s}}
  w2: {site: west, slots: 2}
  e1: {site: east, access: &slow {down: 0.7 MB/s}}
  e2: {site: east, access: *slow}
defaults: {rate: 0.7 MB/s, jitter: 100 us}
paths:
  - {between: [west, west], delay: 1 ms, rate: unlimited}
  - {between: [east, east], delay: 2 ms}
  - {between: [west, east], delay: 35 ms, loss: 0.5 %, queue: 64 KiB}
  - {from: east, to: w1, delay: 40 ms, window: 48 KiB}
  - {from: e2, to: w1, rate: 5.6 Mbit/s, loss: 0 %}
groups:
  cable: {rate: 5 MB/s, paths: [{from: west, to: east}]}
  last-mile: {rate: 1 MB/s, paths: [{from: e1, to: w1}, {from: e1, to: e2}]}
"""


@pytest.fixture
def coasts(tmp_path: File) -> Topology:
    return read(tmp_path, COASTS)


def read(directory: File, text: str) -> Topology:
    file = directory / "topology.yaml"
    file.write_text(text)
    return load(file)


def test_hosts_keep_the_files_order_and_their_limits(coasts: Topology) -> None:
    assert [(host.name, host.site, host.up, host.down, host.slots, host.line) for host in coasts.hosts] == [
        ("w1", "west", 30e6, 30e6, 1, 5),  # 240 Mbit/s ÷ 8
        ("w2", "west", None, None, 2, 6),
        ("e1", "east", None, 0.7e6, 1, 7),
        ("e2", "east", None, 0.7e6, 1, 8),
    ]
    assert coasts.congestion == "reno"


def test_a_later_rule_overrides_only_the_fields_it_names(coasts: Topology) -> None:
    assert coasts.path("w1", "w2") == Path("w1", "w2", rate=None, delay=0.001, jitter=0.0001, line=11)
    assert coasts.path("w1", "e2") == Path("w1", "e2", 0.7e6, 0.035, 0.0001, loss=0.005, queue=65536, line=13)
    assert coasts.path("e1", "w1") == Path("e1", "w1", 0.7e6, 0.040, 0.0001, 0.005, 65536, window=49152, line=14)
    assert coasts.path("e2", "w1") == Path("e2", "w1", 0.7e6, 0.040, 0.0001, 0.0, 65536, window=49152, line=15)
    assert coasts.path("e2", "w2") == Path("e2", "w2", 0.7e6, 0.035, 0.0001, 0.005, 65536, line=13)


def test_every_ordered_pair_has_its_path_by_index(coasts: Topology) -> None:
    assert [(path.source, path.target) for path in coasts.paths] == [
        ("w1", "w2"), ("w1", "e1"), ("w1", "e2"), ("w2", "w1"), ("w2", "e1"), ("w2", "e2"),
        ("e1", "w1"), ("e1", "w2"), ("e1", "e2"), ("e2", "w1"), ("e2", "w2"), ("e2", "e1")]


def test_the_graph_carries_hosts_and_paths_and_cannot_be_changed(coasts: Topology) -> None:
    assert list(coasts.graph) == ["w1", "w2", "e1", "e2"]
    assert coasts.graph.number_of_edges() == 12
    assert coasts.graph.edges["e1", "w1"]["path"].window == 49152
    assert coasts.graph.nodes["w2"]["host"].slots == 2
    with pytest.raises(Exception, match="Frozen graph"):
        coasts.graph.remove_node("w1")


def test_a_group_holds_the_paths_that_share_it(coasts: Topology) -> None:
    assert coasts.groups == (
        Group("cable", 5e6, frozenset({("w1", "e1"), ("w1", "e2"), ("w2", "e1"), ("w2", "e2")}), line=17),
        Group("last-mile", 1e6, frozenset({("e1", "w1"), ("e1", "e2")}), line=18))


def test_select_keeps_order_paths_and_what_is_left_of_groups(coasts: Topology) -> None:
    part = coasts.select(["e2", "w1", "w2"])
    assert [host.name for host in part.hosts] == ["w1", "w2", "e2"]
    assert [(path.source, path.target) for path in part.paths] == [
        ("w1", "w2"), ("w1", "e2"), ("w2", "w1"), ("w2", "e2"), ("e2", "w1"), ("e2", "w2")]
    assert part.groups == (Group("cable", 5e6, frozenset({("w1", "e2"), ("w2", "e2")}), line=17),)
    assert part.graph.number_of_edges() == 6
    assert part.sha256 == coasts.sha256


def test_faster_scales_rates_and_delays_and_leaves_bytes_alone(coasts: Topology) -> None:
    fast = coasts.faster(10)
    assert fast.path("e1", "w1") == Path("e1", "w1", 7e6, pytest.approx(0.004), pytest.approx(1e-5), 0.005, 65536,
                                         window=49152, line=14)
    assert fast.path("w1", "w2").rate is None
    assert (fast.host("w1").up, fast.host("e1").up, fast.host("e1").down) == (300e6, None, 7e6)
    assert [group.rate for group in fast.groups] == [50e6, 10e6]
    assert coasts.path("e1", "w1").rate == 0.7e6


def test_the_hash_is_that_of_the_file(coasts: Topology) -> None:
    assert coasts.text == COASTS
    assert coasts.sha256 == hashlib.sha256(File(coasts.file).read_bytes()).hexdigest()


def test_what_is_not_there_is_named_with_what_is(coasts: Topology) -> None:
    with pytest.raises(TopologyError, match=r"topology\.yaml:5: no host 'w3'; use one of: w1, w2, e1, e2"):
        coasts.select(["w1", "w3"])
    with pytest.raises(TopologyError, match="'w1' needs no path to itself"):
        coasts.path("w1", "w1")


def test_rows_show_everything_that_bounds_a_path(coasts: Topology) -> None:
    table = rows(coasts)
    assert len(table) == 12
    assert table[0] == Row("w1", "w2", "unlimited", "1 ms", "2 ms", "up 30 MB/s, jitter 100 us")
    # There 40 ms, back 35 ms; 49,152 B in flight ÷ 75 ms = 655,360 B/s.
    assert table[6] == Row("e1", "w1", "0.7 MB/s", "40 ms", "75 ms", "down 30 MB/s, window 48 KiB = 0.6554 MB/s, "
                           "group last-mile 1 MB/s, queue 64 KiB, jitter 100 us, loss 0.5 %")


def test_a_merge_key_brings_fields_in_and_own_fields_win(tmp_path: File) -> None:
    topology = read(tmp_path, """\
name: merged
sites: [lab]
hosts: {a: {site: lab}, b: &b {site: lab, slots: 3}, c: {<<: *b, slots: 2}, d: *b}
paths: [{between: [lab, lab], delay: 1 ms}]
""")
    assert [host.slots for host in topology.hosts] == [1, 3, 2, 3]


@pytest.mark.parametrize("name", ["lan", "seattle-newyork", "seattle-newyork-access", "uniform-access",
                                  "seattle-newyork-window", "shared-uplink"])
def test_shipped_topologies_have_six_hosts_and_all_thirty_paths(name: str) -> None:
    topology = load(ROOT / f"topologies/{name}.yaml")
    assert topology.name == name
    names = [host.name for host in topology.hosts]
    assert len(names) == 6
    assert [(path.source, path.target) for path in topology.paths] == list(permutations(names, 2))
    if name != "lan":
        assert names == ["seattle-ai", "seattle-gateway", "seattle-2", "newyork-1", "newyork-2", "chicago-1"]
        assert topology.path("seattle-ai", "seattle-gateway").delay < 0.001


def rates(name: str) -> set[tuple[bool, float | None, float | None, float | None]]:
    """(near pair?, the path's rate, up at its source, down at its target), of all paths."""
    topology = load(ROOT / f"topologies/{name}.yaml")
    near = {"seattle-ai", "seattle-gateway"}
    return {(near == {path.source, path.target}, path.rate, topology.host(path.source).up,
             topology.host(path.target).down) for path in topology.paths}


def test_the_shipped_networks_limit_where_they_say() -> None:
    assert rates("seattle-newyork") == {(True, 30e6, None, None), (False, 0.7e6, None, None)}
    assert rates("seattle-newyork-access") == {
        (True, None, 30e6, 30e6), (False, None, 30e6, 0.7e6), (False, None, 0.7e6, 30e6), (False, None, 0.7e6, 0.7e6)}
    assert rates("uniform-access") == {(True, None, 0.7e6, 0.7e6), (False, None, 0.7e6, 0.7e6)}
    assert rates("seattle-newyork-window") == {(True, 30e6, None, None), (False, None, None, None)}
    assert rates("shared-uplink") == {(True, 10e6, None, None), (False, 10e6, None, None)}
    uplinks = {group.name: (group.rate, len(group.paths))
               for group in load(ROOT / "topologies/shared-uplink.yaml").groups}
    # Three hosts in Seattle, two in New York, one in Chicago: each talks to those elsewhere.
    assert uplinks == {f"{city}-{way}": (2.1e6, paths) for city, paths in
                       (("seattle", 9), ("new-york", 8), ("chicago", 5)) for way in ("up", "down")}
    windowed = load(ROOT / "topologies/seattle-newyork-window.yaml").path("newyork-1", "seattle-ai")
    assert windowed.window is not None
    assert windowed.window / (2 * windowed.delay) == pytest.approx(0.7e6, rel=0.01)


def test_coast_to_coast_is_35_to_40_ms_one_way_and_delays_agree() -> None:
    per_path, *others = (load(ROOT / f"topologies/{name}.yaml")
                         for name in ("seattle-newyork", "seattle-newyork-access", "uniform-access"))
    for path in per_path.paths:
        if {path.source.split("-")[0], path.target.split("-")[0]} == {"seattle", "newyork"}:
            assert 0.035 <= path.delay <= 0.040
        assert all(other.path(path.source, path.target).delay == path.delay for other in others)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: File) -> None:
    with pytest.raises(TopologyError, match=r"nowhere\.yaml: No such file or directory; give a YAML file"):
        load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(("said", "refusal"), [
    ("name: coasts", "1: 'name' has nothing behind it; write what it is"),
    ("congestion: reno", "3: 'congestion' has nothing behind it; write what it is, or leave it out"),
])
def test_what_has_to_be_there_is_not_to_be_left_out(tmp_path: File, said: str, refusal: str) -> None:
    with pytest.raises(TopologyError) as refused:
        read(tmp_path, COASTS.replace(said, said.partition(" ")[0], 1))
    assert str(refused.value) == f"{tmp_path / 'topology.yaml'}:{refusal}"


@pytest.mark.parametrize(("said", "refusal"), [
    ("9" * 5000, f"'{'9' * 59}… cannot be read (Exceeds the limit (4300 digits) for integer string conversion: value "
                 "has 5000 digits); put quotes around it if it is meant as a word"),
    ("-" + "9" * 4000, f"slots: -{'9' * 59}… is refused; it should be "),
    ("-0x" + "f" * 5000, "slots: a number of thousands of digits is refused; it should be "),
    ("x" * 5000, f"slots: '{'x' * 59}… is refused; it should be "),
])
def test_what_is_long_is_not_repeated_whole(tmp_path: File, said: str, refusal: str) -> None:
    with pytest.raises(TopologyError) as refused:
        read(tmp_path, COASTS.replace("slots: 2", f"slots: {said}"))
    assert str(refused.value).startswith(f"{tmp_path / 'topology.yaml'}:6: {refusal}")
    assert "sys." not in str(refused.value)


def test_endless_nesting_is_refused(tmp_path: File) -> None:
    with pytest.raises(TopologyError, match="1: lists or mappings are nested too deeply; flatten them"):
        read(tmp_path, "[" * 500)


SLIPS = ["", "\t", " ", "\n", "{", "}", "[", "]", ":", "-", "&a ", "*a", "<<: ", "!!set ", "? ", "|", "'", "#", "%",
         "~", "true", "0", ".nan", "2026-13-01", "12:30:45", "0b_", "\x00", "é", "{}", "---\n"]


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, len(COASTS)), gone=st.integers(0, 8), slip=st.sampled_from(SLIPS))
def test_any_slip_of_the_hand_is_read_or_refused_with_a_line_and_a_mend(
        tmp_path_factory: pytest.TempPathFactory, at: int, gone: int, slip: str) -> None:
    message = "topology.yaml:1: read; nothing to mend"
    try:
        read(tmp_path_factory.getbasetemp(), COASTS[:at] + slip + COASTS[at + gone:])
    except TopologyError as refused:
        message = str(refused)
    assert re.search(r"topology\.yaml:[1-9]\d*: .+; .+", message)


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_a_broken_topology_is_refused_with_its_line_and_the_mend(file: File) -> None:
    # The first line of each file says how: "# line: what is wrong; the mend", with " ... " for what is left out.
    expected = file.read_bytes().splitlines()[0].decode().removeprefix("# ")
    with pytest.raises(TopologyError) as refused:
        load(file)
    message = str(refused.value)
    start, *rest = expected.split(" ... ")
    assert message.startswith(f"{file}:{start}")
    assert all(part in message for part in rest)


def test_there_are_twenty_broken_topologies() -> None:
    assert len(BROKEN) >= 20
