"""A timeline is played at its seconds, on links that carry traffic meanwhile; afterwards the network is as before."""

import os
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from made import PAIR
from patience import PATIENCE, assert_becomes

from emulator.ethernet import PAYLOAD
from emulator.hosts.netns import Network
from emulator.links.namespace import LinkError
from emulator.topology import load
from scenarios.conductor import Conductor
from scenarios.records import Applied

TOPOLOGY = PAIR + """\
paths: [{between: [here, there], rate: 2 MB/s, delay: 20 ms}]
"""

record = partial(Applied, campaign=0, speedup=10, arm="shard", world_size=2)


class Links:
    """A network that only notes when it was changed, and how; its hosts are this machine."""

    speedup = 10
    python = sys.executable

    def __init__(self, fail=False):
        self.fail = fail
        self.addresses = {"one": "127.0.0.1", "far": "127.0.0.1"}
        self.changes = []
        self.changed = threading.Event()

    def change(self, topology):
        self.changes.append((time.monotonic(), topology.path("one", "far").rate))
        self.changed.set()
        if self.fail:
            raise LinkError("no such link")

    def spawn(self, host, command):
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def network(tmp_path):
    """Make a topology of its timeline."""
    def read(timeline):
        file = tmp_path / "topology.yaml"
        file.write_text(TOPOLOGY + timeline)
        return load(file)

    return read


CUT = """\
timeline:
  changes:
    - {at: 2 s, between: [here, there], rate: 10 %}
    - {at: 4 s, between: [here, there], rate: 50 %}
    - {at: 1000 s, between: [here, there], rate: 1 %}
"""


def test_changes_come_in_order_at_their_seconds_and_go_at_the_end(network):
    links = Links()
    with Conductor(links, network(CUT), record) as conductor:
        start = time.monotonic() + 0.05
        conductor.begin(start)
        assert conductor.second(start + 0.3) == pytest.approx(3)
        assert_becomes(2, lambda: (time.sleep(0.01), len(links.changes))[1])
    assert [rate for _, rate in links.changes] == [pytest.approx(0.2e6), 1e6, 2e6]
    assert [at - start > second / 10 for (at, _), second in zip(links.changes, (2, 4), strict=False)] == [True, True]
    first, second = conductor.applied
    assert (first.second, second.second) == (2, 4)
    assert first.what == ("one -> far: rate 0.2 MB/s (2 MB/s before)", "far -> one: rate 0.2 MB/s (2 MB/s before)")
    assert second.what[0] == "one -> far: rate 1 MB/s (0.2 MB/s before)"
    assert 2 < first.applied_second < second.applied_second > 4
    assert first.late == pytest.approx((first.applied_second - 2) / 10)
    assert (first.arm, first.world_size, first.received_bytes) == ("shard", 2, None)


def test_what_is_still_to_come_when_the_training_ends_does_not_come(network):
    links = Links()
    with Conductor(links, network(CUT), record) as conductor:
        conductor.begin(time.monotonic())
        assert links.changed.wait(PATIENCE)
    seen = len(links.changes)
    time.sleep(0.3)
    assert len(links.changes) == seen
    assert links.changes[-1][1] == 2e6
    assert 1 <= len(conductor.applied) == seen - 1


def test_a_network_that_stays_as_it_is_is_left_alone(network):
    links = Links()
    with Conductor(links, network(""), record) as conductor:
        conductor.begin(time.monotonic())
    assert links.changes == []
    assert conductor.applied == ()


def train(links, topology, error=None):
    """Train nothing, looking after the conductor, until that error comes behind the first change: for long, if none."""
    with Conductor(links, topology, record) as conductor:
        conductor.begin(time.monotonic())
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            conductor.check()
            if error is not None and links.changed.wait(0.01):
                raise error
            time.sleep(0.01)


def test_a_change_that_fails_ends_the_training(network):
    links = Links(fail=True)
    with pytest.raises(LinkError, match="no such link"):
        train(links, network(CUT))
    assert len(links.changes) == 1


def test_after_an_error_the_network_is_left_to_who_takes_it_down(network):
    links = Links()
    with pytest.raises(ArithmeticError):
        train(links, network(CUT), ArithmeticError())
    assert len(links.changes) >= 1
    assert 2e6 not in [rate for _, rate in links.changes]


def goodput(flow):
    """Bytes of payload per second of the timeline."""
    return flow.received_bytes / (flow.ended_second - flow.applied_second)


def test_traffic_sends_at_its_rate_between_its_seconds(network):
    links = Links()
    topology = network("""\
timeline:
  traffic:
    - {from: one, to: far, start: 2 s, end: 12 s, rate: 0.5 MB/s}
    - {from: far, to: one, start: 4 s, end: 1000 s, rate: 1 MB/s, connections: 3}
    - {from: far, to: one, start: 900 s, end: 1000 s}
""")

    def played():
        with Conductor(links, topology, record) as conductor:
            conductor.begin(time.monotonic())
            time.sleep(1.8)
        short, long = conductor.applied  # the third had not begun
        assert short.what == ("traffic one -> far, 0.5 MB/s",)
        assert (short.second, long.second) == (2, 4)
        assert 2 <= short.applied_second < short.ended_second
        assert short.ended_second >= 12
        assert long.ended_second >= 18
        return [goodput(short), goodput(long)]

    # Life-size seconds and rates: at k = 10, a tenth of the time, ten times the rate.
    assert_becomes(pytest.approx([0.5e6 * PAYLOAD, 1e6 * PAYLOAD], rel=0.15), played)
    assert links.changes == []


def test_a_program_of_the_traffic_that_dies_is_an_error(network):
    links = Links()
    links.addresses = {"one": "127.0.0.1", "far": "192.0.2.1"}  # TEST-NET-1: no address of this machine
    with pytest.raises(LinkError, match="traffic one -> far, as much as TCP gets: a program of it died"), \
            Conductor(links, network("timeline: {traffic: [{from: one, to: far, start: 1 s, end: 2 s}]}"), record):
        pass


@pytest.mark.root
@pytest.mark.slow
def test_real_links_follow_and_tcp_outlives_an_outage(network):
    topology = network("""\
timeline:
  changes:
    - {at: 4 s, from: one, to: far, rate: 10 %}
    - {at: 10 s, from: one, to: far, rate: 100 %}
    - {at: 16 s, from: one, to: far, outage: 4 s}
  traffic:
    - {from: one, to: far, start: 0 s, end: 4 s}
    - {from: one, to: far, start: 5 s, end: 10 s}
    - {from: one, to: far, start: 12 s, end: 28 s}
""")
    with Network(topology, f"c{os.getpid()}", speedup=4) as links:
        def played():
            with Conductor(links, topology, record) as conductor:
                conductor.begin(time.monotonic())
                time.sleep(8)
            links.check()
            assert links.topology.paths == topology.paths
            assert [applied.second for applied in conductor.applied] == [0, 4, 5, 10, 12, 16, 20]
            before, cut, across = (applied for applied in conductor.applied if applied.received_bytes is not None)
            return [goodput(before), goodput(before) / goodput(cut), across.received_bytes / (2e6 * PAYLOAD)]

        # The last sends for 4 s; is out for 4 s; sleeps for up to as long again; and has then up to 8 s left, at least
        # 4 s: 8 to 12 s of sending, from 0.9 times the least to 1.05 times the most.
        assert_becomes([pytest.approx(2e6 * PAYLOAD, rel=0.2), pytest.approx(10, rel=0.3),
                        pytest.approx(9.9, abs=2.7)], played)
