"""Max–min fair sharing, by hand and by its definition."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.sim.fair import share


def test_a_flow_alone_gets_its_tightest_link():
    assert share({"f": ["a", "b"]}, {"a": 10.0, "b": 4.0}) == {"f": 4.0}


def test_equal_flows_get_equal_shares():
    assert share({i: ["a"] for i in range(4)}, {"a": 10.0}) == dict.fromkeys(range(4), 2.5)


def test_a_flow_without_limits_is_unlimited():
    assert share({"f": [], "g": ["a"]}, {"a": 1.0}) == {"f": math.inf, "g": 1.0}


def test_parking_lot():
    # The long flow is held at 3 by link b (6, two flows), and leaves 7 of link a's 10.
    rates = share({"long": ["a", "b"], "on a": ["a"], "on b": ["b"]}, {"a": 10.0, "b": 6.0})
    assert rates == {"long": 3.0, "on a": 7.0, "on b": 3.0}


def test_three_levels():
    # c: 3 flows of 1 each. b: 5 - 1 = 4 for two flows. a: 10 - 1 - 2 = 7 for one.
    flows = {"abc": ["a", "b", "c"], "c1": ["c"], "c2": ["c"], "ab": ["a", "b"], "b": ["b"], "a": ["a"]}
    assert share(flows, {"a": 10.0, "b": 5.0, "c": 3.0}) == {"abc": 1, "c1": 1, "c2": 1, "ab": 2, "b": 2, "a": 7}


@st.composite
def worlds(draw):
    capacity = draw(st.lists(st.floats(0.1, 1e7), min_size=1, max_size=6))
    crossing = st.lists(st.integers(0, len(capacity) - 1), min_size=1, max_size=4, unique=True)
    return dict(enumerate(draw(st.lists(crossing, min_size=1, max_size=12)))), dict(enumerate(capacity))


@given(worlds())
@settings(deadline=None)
def test_no_link_above_capacity_and_every_flow_has_a_bottleneck(world):
    """A flow's bottleneck is a full link on which nobody has more: the definition of max–min fair."""
    flows, capacity = world
    rates = share(flows, capacity)
    load = {link: sum(rates[flow] for flow, links in flows.items() if link in links) for link in capacity}
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for flow, links in flows.items():
        assert any(load[link] >= capacity[link] * (1 - 1e-9)
                   and all(rates[other] <= rates[flow] * (1 + 1e-9) for other in flows if link in flows[other])
                   for link in links), flow


@given(worlds(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_flows_and_links_does_not_matter(world, random):
    flows, capacity = world
    shuffled = [(flow, random.sample(links, len(links))) for flow, links in flows.items()]
    random.shuffle(shuffled)
    assert share(dict(shuffled), capacity) == pytest.approx(share(flows, capacity), rel=1e-9)
