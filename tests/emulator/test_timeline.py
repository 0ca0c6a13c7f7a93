"""Timelines: what a file's changes, traces, drift and traffic make of a network, second by second."""

import hashlib
import math
import random
import statistics
from pathlib import Path as File

import pytest
import scipy.stats

from emulator.course import walk
from emulator.timeline import STILL, Traffic, happenings
from emulator.topology import Topology, TopologyError, load

COASTS = """\
name: coasts
sites: [west, east]
hosts:
  w1: {site: west, access: {up: 30 MB/s}}
  w2: {site: west}
  e1: {site: east}
defaults: {rate: 2 MB/s}
paths:
  - {between: [west, west], delay: 1 ms}
  - {between: [west, east], delay: 40 ms, jitter: 2 ms}
groups:
  cable: {rate: 5 MB/s, paths: [{from: west, to: east}]}
"""


def read(directory: File, timeline: str, **traces: str) -> Topology:
    for name, text in traces.items():
        (directory / f"{name}.csv").write_text(text)
    file = directory / "topology.yaml"
    file.write_text(COASTS + "timeline:\n" + timeline)
    return load(file)


def path(topology: Topology, second: float, source: str = "w1", target: str = "e1") -> tuple[float | None, ...]:
    found = topology.state(second).path(source, target)
    return found.rate, found.delay, found.jitter, found.loss


def test_a_network_without_a_timeline_stays_as_it_is(tmp_path: File) -> None:
    topology = read(tmp_path, "  {}\n")
    assert not topology.timeline
    assert topology.timeline == STILL
    assert topology.state(1000).paths == topology.paths


def test_a_change_sets_the_fields_it_names_from_its_second_on(tmp_path: File) -> None:
    topology = read(tmp_path, """\
  changes:
    - {at: 40 s, between: [west, east], rate: 100 %}
    - {at: 20 s, between: [west, east], rate: 10 %, loss: 1 %}
    - {at: 30 s, from: w1, to: e1, delay: 50 ms, jitter: 50 %}
""")
    assert topology.timeline.moments == (20, 30, 40)
    assert path(topology, 0) == path(topology, 19.999) == (2e6, 0.04, 0.002, 0)
    assert path(topology, 20) == (pytest.approx(0.2e6), 0.04, 0.002, 0.01)
    assert path(topology, 30) == (pytest.approx(0.2e6), 0.05, 0.001, 0.01)
    assert path(topology, 30, "e1", "w1") == (pytest.approx(0.2e6), 0.04, 0.002, 0.01)
    assert path(topology, 1e9) == (2e6, 0.05, 0.001, 0.01)
    assert path(topology, 25, "w1", "w2") == (2e6, 0.001, 0, 0)
    assert not topology.state(20).timeline


def test_a_moment_lists_only_what_changes_then(tmp_path: File) -> None:
    topology = read(tmp_path, """\
  changes:
    - {at: 20 s, between: [west, east], rate: 10 %}
    - {at: 20 s, from: w2, to: e1, rate: 100 %}
    - {at: 30 s, host: w1, up: 1 MB/s}
    - {at: 30 s, from: w1, to: e1, rate: 0.2 MB/s}
    - {at: 40 s, group: cable, rate: 150 %}
    - {at: 50 s, group: cable, rate: 7.5 MB/s}
""")
    first, second, third = topology.timeline.changes
    assert [(p.source, p.target) for p in first.paths] == [("w1", "e1"), ("e1", "w1"), ("e1", "w2")]
    assert (first.hosts, first.groups, second.paths) == ((), (), ())
    assert [(host.name, host.up, host.down) for host in second.hosts] == [("w1", 1e6, None)]
    assert [(group.name, group.rate, len(group.paths)) for group in third.groups] == [("cable", 7.5e6, 2)]
    assert [topology.state(at).host("w1").up for at in (0, 30)] == [30e6, 1e6]
    assert [topology.state(at).groups[0].rate for at in (0, 40)] == [5e6, 7.5e6]


def test_what_is_said_of_second_0_is_the_topologys_own(tmp_path: File) -> None:
    topology = read(tmp_path, "  changes: [{at: 0 s, from: w1, to: e1, rate: 50 %}]\n")
    assert topology.timeline.moments == ()
    assert topology.path("w1", "e1").rate == 1e6


def test_an_outage_loses_every_packet_and_ends_by_itself(tmp_path: File) -> None:
    topology = read(tmp_path, """\
  changes:
    - {at: 10 s, between: [w1, e1], outage: 5 s, loss: 2 %}
    - {at: 12 s, between: [w1, e1], rate: 50 %}
    - {at: 14 s, between: [w1, e1], outage: 3 s}
""")
    assert [(at, path(topology, at)[0], path(topology, at)[3]) for at in (9, *topology.timeline.moments)] == [
        (9, 2e6, 0), (10, 2e6, 1), (12, 1e6, 1), (17, 1e6, 0.02)]


def test_a_trace_is_what_the_path_was(tmp_path: File) -> None:
    topology = read(tmp_path, "  traces: [{file: train.csv, from: w1, to: e1}]\n",
                    train="second,rate MB/s,delay ms\n0,1,30\n1.5,0.5,60\n2,0,60\n4,8,60\n")
    assert topology.timeline.moments == (1.5, 2, 4)
    assert [path(topology, at) for at in (0, 1.5, 2, 4)] == [
        (1e6, 0.03, 0.002, 0), (0.5e6, 0.06, 0.002, 0), (0.5e6, 0.06, 0.002, 1), (8e6, 0.06, 0.002, 0)]
    assert path(topology, 2, "e1", "w1") == (2e6, 0.04, 0.002, 0)


def test_the_hash_of_a_topology_covers_its_traces(tmp_path: File) -> None:
    trace = "second,loss %\n0,1\n5,2\n"
    topology = read(tmp_path, "  traces: [{file: train.csv, from: w1, to: e1}]\n", train=trace)
    both = topology.text.encode() + hashlib.sha256(trace.encode()).digest()
    assert topology.sha256 == hashlib.sha256(both).hexdigest()
    assert [(one.name, one.text) for one in topology.traces] == [("train.csv", trace)]


@pytest.mark.parametrize(("trace", "refusal"), [
    ("", "1: no trace; write a line of column names"),
    ("second,rate MB/s\n", "1: no trace; write a line of column names"),
    ("second,speed MB/s\n0,1\n", "1: unknown column 'speed'; use one of: second, rate, delay, loss"),
    ("second,rate\n0,1\n", "1: column 'rate': write 'second' without a unit, and the others with one"),
    ("second s,rate MB/s\n0,1\n", "1: column 'second s': write 'second' without a unit"),
    ("rate MB/s,second\n1,0\n", "1: the columns are 'second', then each at most once, rate, delay and loss"),
    ("second,rate MB/s,rate MB/s\n0,1,1\n", "1: the columns are 'second', then each at most once"),
    ("second,rate MBps\n0,1\n", "2: 'MBps' is no unit of a rate; write a rate with one of B/s, kB/s, MB/s"),
    ("second,rate MB/s\n0,1\n1,1,1\n", "3: 3 values for 2 columns; write one for each"),
    ("second,rate MB/s\n0,1\n1,-1\n", "3: '-1 MB/s' is not more than 0; write a rate above 0"),
    ("second,rate MB/s\n0,1\n1,\n", "3: 'MB/s' is no rate; write a rate with"),
    ("second,rate MB/s\n0,1\n2,1\n2,3\n", "4: second 2 is not after 2; put the lines in order"),
    ("second,loss %\n0,1\n1,100\n", "3: '100 %' is impossible; write a loss of at least 0 % and less than 100 %"),
    ("second,rate kB/s\n0,1\n1,0.09\n", "3: '0.09 kB/s' is less than links can hold; write a rate from 100 B/s to"),
    ("second,delay ms\n0,60000\n1,60001\n", "3: '60001 ms' is more than links can hold; write a time from 0 s to 60 s"),
    ("second,delay ms\n0,40\n1,1\n", "3: from second 1 on a path's jitter is more than its delay"),
    ("second,loss %\n" + "".join(f"{at},1\n" for at in range(10_000)), "10000: a trace has at most 10,000 lines"),
])
def test_a_broken_trace_is_refused_with_its_line_and_the_mend(tmp_path: File, trace: str, refusal: str) -> None:
    with pytest.raises(TopologyError) as refused:
        read(tmp_path, "  traces: [{file: train.csv, from: w1, to: e1}]\n", train=trace)
    assert str(refused.value).startswith(f"{tmp_path / 'train.csv'}:{refusal}")


def test_a_walk_has_the_spread_and_the_memory_that_it_is_given() -> None:
    # The stationary law of an Ornstein–Uhlenbeck process: mean 0, deviation `spread`, correlation e^(−t / memory).
    logarithms = [math.log(factor) for factor in walk("7", 0.3, 10, 40, 100_000).values()]
    assert len(logarithms) == 10_000
    assert statistics.fmean(logarithms) == pytest.approx(0, abs=0.03)
    assert statistics.pstdev(logarithms) == pytest.approx(0.3, rel=0.05)
    for steps in (1, 4):
        assert statistics.correlation(logarithms[:-steps], logarithms[steps:]) == pytest.approx(
            math.exp(-steps * 10 / 40), abs=0.05)


def test_a_walk_begins_where_it_is_and_is_the_same_on_every_machine() -> None:
    first = walk("7", 0.2, 10, 40, 30)
    assert list(first) == [10, 20, 30]
    normal = scipy.stats.norm.ppf((random.Random("7").getrandbits(52) + 0.5) / 2**52)
    assert first[10] == pytest.approx(math.exp(0.2 * math.sqrt(1 - math.exp(-2 * 10 / 40)) * normal), rel=1e-5)
    assert first == walk("7", 0.2, 10, 40, 30)
    assert first != walk("8", 0.2, 10, 40, 30)
    spread = statistics.pstdev(math.log(walk(str(seed), 0.2, 10, 40, 10)[10]) for seed in range(4000))
    assert spread == pytest.approx(0.2 * math.sqrt(1 - math.exp(-2 * 10 / 40)), rel=0.04)


def test_drift_ends_at_what_links_can_hold(tmp_path: File) -> None:
    # With a spread of e^±20 about 2 MB/s and 40 ms a walk of many steps goes beyond both ends of the rate, 100 B/s and
    # 100 GB/s, and beyond 60 s, but never below a delay of 0.
    topology = read(tmp_path, "  drift: [{from: w1, to: e1, rate: 2000 %, delay: 2000 %, every: 1 s, memory: 1 s, "
                              "until: 200 s, seed: 7}]\n")
    rates, delays, jitters, _ = zip(*(path(topology, at) for at in range(200)), strict=True)
    assert (min(rates), max(rates)) == (1e2, 1e11)
    assert max(delays) == max(jitters) == 60


def test_drift_moves_each_path_and_field_by_itself_until_its_end(tmp_path: File) -> None:
    topology = read(tmp_path, """\
  changes: [{at: 25 s, between: [west, east], rate: 50 %}]
  drift: [{between: [west, east], rate: 20 %, delay: 5 %, every: 10 s, memory: 60 s, until: 40 s, seed: 7}]
""")
    assert topology.timeline.moments == (10, 20, 25, 30, 40)
    there = [path(topology, at) for at in (0, *topology.timeline.moments)]
    back = [path(topology, at, "e1", "w1") for at in (0, *topology.timeline.moments)]
    assert there[0] == back[0] == (2e6, 0.04, 0.002, 0)
    assert all(one[0] != other[0] and one[1] != other[1] for one, other in zip(there[1:], back[1:], strict=True))
    assert there[3][0] == pytest.approx(there[2][0] / 2)  # the change comes under the drift, which goes on
    assert there[3][1] == there[2][1]
    assert [one[2] / one[1] for one in there] == [pytest.approx(0.05)] * 6  # the jitter goes with the delay
    assert there[1][0] / 2e6 != pytest.approx(there[1][1] / 0.04, rel=1e-6)


def test_drift_stops_short_of_an_outage(tmp_path: File) -> None:
    topology = read(tmp_path, """\
  changes: [{at: 0 s, from: w1, to: e1, loss: 60 %}]
  drift: [{from: w1, to: e1, loss: 200 %, every: 1 s, memory: 1 s, until: 200 s, seed: 7}]
""")
    losses = [path(topology, at)[3] for at in topology.timeline.moments]
    assert max(losses) == 0.99
    assert min(losses) < 0.1


def test_traffic_has_two_ends_in_space_and_time(tmp_path: File) -> None:
    topology = read(tmp_path, """\
  traffic:
    - {from: w1, to: e1, start: 10 s, end: 30 s, rate: 0.3 MB/s}
    - {from: e1, to: w2, start: 0 s, end: 5 s, connections: 4}
""")
    assert topology.timeline.traffic == (Traffic("w1", "e1", 10, 30, 0.3e6, line=15),
                                         Traffic("e1", "w2", 0, 5, None, 4, line=16))
    assert topology.timeline
    assert topology.timeline.moments == ()


def test_faster_speeds_the_timeline_up_too(tmp_path: File) -> None:
    fast = read(tmp_path, """\
  changes: [{at: 20 s, between: [west, east], rate: 10 %, delay: 50 ms}, {at: 30 s, host: w1, up: 1 MB/s}]
  traffic: [{from: w1, to: e1, start: 10 s, end: 30 s, rate: 0.3 MB/s}, {from: e1, to: w1, start: 1 s, end: 2 s}]
""").faster(10)
    assert fast.timeline.moments == (2, 3)
    assert path(fast, 1.9) == (20e6, 0.004, 0.0002, 0)
    assert path(fast, 2) == (pytest.approx(2e6), 0.005, 0.0002, 0)
    assert fast.state(3).host("w1").up == 10e6
    assert [(flow.start, flow.end, flow.rate) for flow in fast.timeline.traffic] == [(1, 3, 3e6), (0.1, 0.2, None)]


def test_select_keeps_what_happens_to_the_hosts_that_are_left(tmp_path: File) -> None:
    part = read(tmp_path, """\
  changes:
    - {at: 10 s, from: w1, to: e1, rate: 10 %}
    - {at: 20 s, between: [west, east], rate: 20 %}
    - {at: 30 s, host: w1, up: 1 MB/s}
    - {at: 40 s, group: cable, rate: 10 %}
  traffic: [{from: w1, to: e1, start: 1 s, end: 2 s}, {from: w2, to: e1, start: 1 s, end: 2 s}]
""").select(["w2", "e1"])
    assert part.timeline.moments == (20, 40)
    assert [(p.source, p.target) for p in part.timeline.changes[0].paths] == [("w2", "e1"), ("e1", "w2")]
    assert part.state(40).groups[0].paths == {("w2", "e1")}
    assert [flow.source for flow in part.timeline.traffic] == ["w2"]


def test_a_timeline_in_words(tmp_path: File) -> None:
    assert happenings(read(tmp_path, """\
  changes:
    - {at: 20 s, from: w1, to: e1, rate: 10 %, delay: 50 ms}
    - {at: 30 s, from: w1, to: e1, outage: 5 s}
    - {at: 40 s, host: w1, up: 1 MB/s}
  traffic: [{from: w1, to: e1, start: 1 s, end: 32 s, rate: 0.3 MB/s}, {from: e1, to: w1, start: 33 s, end: 34 s,
                                                                                        connections: 2}]
""")) == [
        (1, "traffic w1 -> e1, 0.3 MB/s, until 32 s"),
        (20, "w1 -> e1: rate 0.2 MB/s (2 MB/s before), delay 50 ms (40 ms before)"),
        (30, "w1 -> e1: loss outage (0 % before)"),
        (33, "traffic e1 -> w1 by 2 connections, as much as TCP gets, until 34 s"),
        (35, "w1 -> e1: loss 0 % (outage before)"),
        (40, "w1: up 1 MB/s (30 MB/s before)")]
