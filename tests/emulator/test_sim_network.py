"""Flows over links in virtual time, worked out by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment

from emulator.sim.flow import Flow, Link
from emulator.sim.network import Network


def after(env, seconds, do):
    env.timeout(seconds).callbacks.append(lambda _: do())


def play(*starts):
    """When each of `starts`, (time, flow, bytes), has ended."""
    env = Environment()
    network = Network(env)
    ends = {}

    for i, (at, flow, nbytes) in enumerate(starts):
        after(env, at, lambda i=i, flow=flow, nbytes=nbytes: network.move(
            flow, nbytes, lambda: ends.setdefault(i, env.now)))
    env.run()
    return [ends[i] for i in range(len(starts))]


def test_one_flow():
    assert play((1, Flow([Link("a", 100)]), 1000)) == [11]


def test_equal_flows_share():
    link = Link("a", 100)
    assert play(*((0, Flow([link]), 100) for _ in range(4))) == [4, 4, 4, 4]


def test_a_flow_that_joins_halfway():
    # First: 50 B alone in 5 s, 50 B at half the rate in 10 s. Second: 50 B by then, and 50 B alone in 5 s.
    link = Link("a", 10)
    assert play((0, Flow([link]), 100), (5, Flow([link]), 100)) == [15, 20]


def test_parking_lot():
    # 3 B/s for the long one and the one on b, 7 B/s on a; the one on b has 6 B/s when the long one has ended at 10 s.
    a, b = Link("a", 10), Link("b", 6)
    assert play((0, Flow([a, b]), 30), (0, Flow([a]), 70), (0, Flow([b]), 60)) == pytest.approx([10, 10, 15])


def test_what_ends_frees_its_share_at_once_for_flows_far_along_the_chain():
    # a: x+y, b: y+z. y is held at 1 by b (2, two flows); x has 9. When z ends at 1 s, y gets 2 and x has 8.
    a, b = Link("a", 10), Link("b", 2)
    x, y, z = Flow([a]), Flow([a, b]), Flow([b])
    assert play((0, x, 25), (0, y, 7), (0, z, 1)) == pytest.approx([3, 4, 1])


def test_a_flow_without_limits_takes_no_time():
    assert play((2, Flow([]), 1e12)) == [2]


def test_what_a_flow_that_is_limited_elsewhere_leaves_goes_to_the_other():
    link = Link("a", 10)
    limited = Flow([link, Link("b", 2)])
    assert play((0, limited, 20), (0, Flow([link]), 40)) == [10, 5]


def test_a_burst_passes_an_idle_link_and_comes_back_at_its_rate():
    # 500 of 1000 B at once, 500 at 100 B/s. 2 s later 200 tokens are back: 200 B at once, 100 B in 1 s.
    # 4 s after that: 400 tokens, for 100 B.
    flow = Flow([Link("a", 100, burst=500)])
    assert play((0, flow, 1000), (7, flow, 300), (12, flow, 100)) == [5, 8, 12]


def test_a_burst_is_what_all_links_have_and_is_shared():
    # b's 70 B: 30 for the long one, as much as a has, and 40 for the other, at once. The rest, 70 and 60 B, goes at
    # 10 B/s, where the long one is held by a.
    a, b = Link("a", 10, burst=30), Link("b", 20, burst=70)
    assert play((0, Flow([a, b]), 100), (0, Flow([b]), 100)) == [7, 6]
    # Nobody gets more than it moves: 10 B, and 60 of 100 B.
    b = Link("b", 20, burst=70)
    assert play((0, Flow([b]), 10), (0, Flow([b]), 100)) == pytest.approx([0, 2])


def test_acknowledgements_of_flows_against_each_other():
    # x of data and, for each 2 segments of 1514 B, 66 B of the other's acknowledgements: x (1 + 33/1514) = 1514.
    there, back = Link("there", 1514), Link("back", 1514)
    seconds = 1514e3 / (1514 / (1 + 33 / 1514))
    assert play((0, Flow([there], [back]), 1514e3), (0, Flow([back], [there]), 1514e3)) == pytest.approx([seconds] * 2)


def test_packets_are_two_milliseconds_long_and_acknowledged_once():
    """500 packets a second at 7 MB/s as at 30 MB/s: 33 kB/s on the way back. 45 segments a packet at 100 MB/s."""
    for rate, acknowledged in ((7e6, 33e3), (30e6, 33e3), (100e6, 100e6 / 1514 / 45 * 66)):
        back = Link("back", 1e6)
        ends = play((0, Flow([Link("there", rate)], [back]), 1000 * rate), (0, Flow([back]), 10e6))
        assert ends == pytest.approx([1000, 10e6 / (1e6 - acknowledged)])


def test_acknowledgements_end_with_what_they_acknowledge():
    # The other's 33/1514 of the link for the first 10 s.
    there, back = Link("there", 1514), Link("back", 1514)
    first, second = play((0, Flow([there], [back]), 15140), (0, Flow([back]), 30280))
    assert first == pytest.approx(10)
    assert second == pytest.approx(20 + 10 * 33 / 1514)


def test_acknowledgements_thin_out_rather_than_starve_the_data():
    # 0.0218 of 1e6 B/s would be more than the whole way back.
    ends = play((0, Flow([Link("there", 1e6)], [back := Link("back", 1000)]), 1e8), (0, Flow([back]), 5000))
    assert ends == pytest.approx([100, 10])


def test_a_flow_can_be_shortened():
    env = Environment()
    network = Network(env)
    flow = Flow([Link("a", 10)])
    moved = []
    network.move(flow, 100, lambda: moved.append(env.now))
    env.run(until=4)
    assert network.shorten(flow, keep=25) == 35  # 40 are gone
    assert network.shorten(flow, keep=30) == 0
    env.run()
    assert moved == [6.5]


def test_a_flow_moves_one_thing_at_a_time():
    network = Network(Environment())
    flow = Flow([Link("a", 10)])
    network.move(flow, 1, print)
    with pytest.raises(ValueError, match="still under way"):
        network.move(flow, 1, print)


@pytest.mark.parametrize("rate", [0, -1, math.nan])
def test_a_rate_is_positive(rate):
    with pytest.raises(ValueError, match="more than 0 B/s"):
        Link("a", rate)


flows = st.lists(st.tuples(st.floats(0, 10), st.integers(1, 10**6)), min_size=1, max_size=8)


@given(flows, st.floats(1, 1e6))
@settings(deadline=None)
def test_work_is_conserved(starts, rate):
    """A link is busy as long as anything waits for it, however many flows share it: the last end is a queue's."""
    link = Link("a", rate)
    free = 0.0
    for at, nbytes in sorted(starts):
        free = max(free, at) + nbytes / rate
    assert max(play(*((at, Flow([link]), nbytes) for at, nbytes in starts))) == pytest.approx(free)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 2), st.integers(1, 10**5)), min_size=1,
                max_size=10), st.lists(st.floats(1e3, 1e5), min_size=8, max_size=8), st.booleans())
@settings(max_examples=50, deadline=None)
def test_no_link_is_ever_above_its_capacity_with_acknowledgements(messages, rates, burst):
    env = Environment()
    network = Network(env)
    up = [Link(f"up {i}", rate, 2000 * burst) for i, rate in enumerate(rates[:4])]
    down = [Link(f"down {i}", rate, 2000 * burst) for i, rate in enumerate(rates[4:])]

    left = list(range(len(messages)))
    for source, target, at, nbytes in messages:
        flow = Flow([up[source], down[target]], [up[target], down[source]])
        after(env, at, lambda flow=flow, nbytes=nbytes: network.move(flow, nbytes, left.pop))
    while left:
        env.step()
        for link in up + down:
            assert link.load <= link.rate * (1 + 2e-6)
