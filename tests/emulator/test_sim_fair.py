"""Weighted max–min fair sharing, by hand and by its definition."""

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


def test_flows_of_weights_1_and_2():
    assert share({"one": ["a"], "two": ["a"]}, {"a": 9.0}, {"two": 2.0}) == {"one": 3.0, "two": 6.0}


def test_a_heavy_flow_that_is_held_elsewhere_leaves_the_rest():
    # By weight two would get 8 of a's 12; b holds it at 3.
    rates = share({"one": ["a"], "other": ["a"], "two": ["a", "b"]}, {"a": 12.0, "b": 3.0}, {"two": 4.0})
    assert rates == {"one": 4.5, "other": 4.5, "two": 3.0}


def test_parking_lot_with_weights():
    # b: 6 for weights 2 and 1, so 4 and 2. a: 10 - 4 for weight 3 alone.
    rates = share({"long": ["a", "b"], "on a": ["a"], "on b": ["b"]}, {"a": 10.0, "b": 6.0}, {"long": 2.0, "on a": 3.0})
    assert rates == {"long": 4.0, "on a": 6.0, "on b": 2.0}


@pytest.mark.parametrize("weight", [0.25, 1, 3, 8])
def test_a_long_parking_lot_with_weights(weight):
    """One flow of weight w over twenty links, one of weight 1 over each: w / (w + 1) of every link, and the rest."""
    links = list(range(20))
    rates = share({"long": links} | {link: [link] for link in links}, dict.fromkeys(links, 1.0), {"long": weight})
    assert rates == pytest.approx({"long": weight / (weight + 1)} | dict.fromkeys(links, 1 / (weight + 1)))


def test_three_levels_with_weights():
    # c: 3 for weights 1, 3 and 2, so a level of 0.5. b: 5 - 0.5 for weights 2 and 1: 1.5. a: 10 - 0.5 - 3 for one.
    flows = {"abc": ["a", "b", "c"], "c1": ["c"], "c2": ["c"], "ab": ["a", "b"], "b": ["b"], "a": ["a"]}
    assert share(flows, {"a": 10.0, "b": 5.0, "c": 3.0}, {"c1": 3.0, "c2": 2.0, "ab": 2.0, "a": 0.5}) == pytest.approx(
        {"abc": 0.5, "c1": 1.5, "c2": 1, "ab": 3, "b": 1.5, "a": 6.5})


@st.composite
def worlds(draw):
    """Flows and the links they cross, what links carry, and weights of some of the flows."""
    capacity = draw(st.lists(st.floats(0.1, 1e7), min_size=1, max_size=6))
    crossing = st.lists(st.integers(0, len(capacity) - 1), min_size=1, max_size=4, unique=True)
    flows = dict(enumerate(draw(st.lists(crossing, min_size=1, max_size=12))))
    weight = st.sampled_from([1 / 3, 0.5, 2, 3]) | st.floats(0.1, 9)
    return flows, dict(enumerate(capacity)), draw(st.dictionaries(st.sampled_from(sorted(flows)), weight))


@given(worlds())
@settings(deadline=None)
def test_no_link_above_capacity_and_every_flow_has_a_bottleneck(world):
    """A flow's bottleneck is a full link on which nobody has more for its weight: the definition of max–min fair.

    So none could be raised without lowering one whose rate over its weight is no higher.
    """
    flows, capacity, weights = world
    rates = share(flows, capacity, weights)
    level = {flow: rate / weights.get(flow, 1) for flow, rate in rates.items()}
    load = {link: sum(rates[flow] for flow, links in flows.items() if link in links) for link in capacity}
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for flow, links in flows.items():
        assert any(load[link] >= capacity[link] * (1 - 1e-9)
                   and all(level[other] <= level[flow] * (1 + 1e-9) for other in flows if link in flows[other])
                   for link in links), flow


@given(worlds(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_flows_and_links_does_not_matter(world, random):
    flows, capacity, weights = world
    shuffled = [(flow, random.sample(links, len(links))) for flow, links in flows.items()]
    random.shuffle(shuffled)
    assert share(dict(shuffled), capacity, weights) == pytest.approx(share(flows, capacity, weights), rel=1e-9)


@given(worlds(), st.integers(2, 4))
@settings(deadline=None)
def test_a_flow_of_weight_n_gets_what_n_flows_get(world, n):
    flows, capacity, _ = world
    apart = share(flows | {("as", i): flows[0] for i in range(1, n)}, capacity)
    together = share(flows, capacity, {0: n})
    assert together == pytest.approx({flow: apart[flow] * (n if flow == 0 else 1) for flow in flows}, rel=1e-9)
