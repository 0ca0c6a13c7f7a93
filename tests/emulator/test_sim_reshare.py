"""What is worked out only where something changed is what working out everything would give."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment

from emulator.sim import network as room
from emulator.sim import reshare as local
from emulator.sim.fair import share
from emulator.sim.flow import ACK_MOST, Flow, Link, acknowledgements
from emulator.sim.network import Network

LINKS = 6
rates = st.lists(st.floats(1e3, 1e7), min_size=LINKS, max_size=LINKS)
crossing = st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=3, unique=True)
# Some at the same instants, so that several start, and end, at once. Some with others on the same path.
starts = st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.5, 1.0]) | st.floats(0, 3), crossing, crossing,
                            st.sampled_from([1000, 10_000]) | st.integers(1, 10**6), st.integers(1, 3), st.booleans()),
                  min_size=1, max_size=15)


def begin(capacities, messages, acks):
    """A network, its links, and its flows, which start by themselves."""
    env = Environment()
    network = Network(env, acks)
    links = [Link(str(i), capacity) for i, capacity in enumerate(capacities)]
    flows, paths = [], defaultdict(dict)
    for at, there, back, nbytes, connections, beside in messages:
        flow = Flow([links[i] for i in there], [links[i] for i in back], connections,
                    paths[tuple(there)] if beside else None)
        flows.append(flow)
        env.timeout(at).callbacks.append(
            lambda _, flow=flow, nbytes=nbytes: network.move(flow, nbytes, lambda: flow.__setattr__("since", env.now)))
    return env, links, flows


def everything(links, flows, acks):
    """The rates, all worked out anew: those and acknowledgements in turns until neither changes."""
    moving = {flow: flow.links for flow in flows if flow.done is not None}
    back = dict.fromkeys(links, 0.0)
    weights = {flow: flow.connections / sum(other.connections for other in moving if other.beside is flow.beside)
               for flow in moving if flow.beside is not None}
    for _ in range(50):
        found = share(moving, {link: link.rate - back[link] for link in links}, weights)
        for link in links:
            back[link] = min(ACK_MOST * link.rate, sum(acks(found[flow]) for flow in moving if link in flow.back))
    return found


@pytest.mark.parametrize("turns", [1, local.TURNS])
@pytest.mark.parametrize(("acks", "exact"), [(lambda rate: 0.0, 1e-8), (acknowledgements, 1e-4)])
@given(rates, starts)
@settings(max_examples=40, deadline=None)
def test_local_is_global(turns, acks, exact, capacities, messages):
    """At the end of every instant. Acknowledgements are known to a millionth of a link: a slow one knows less of it."""
    env, links, flows = begin(capacities, messages, acks)
    usual, local.TURNS = local.TURNS, turns
    try:
        while env.peek() < float("inf"):
            now = env.peek()
            while env.peek() == now:
                env.step()
            assert {flow: flow.rate for flow in flows if flow.done is not None} == pytest.approx(
                everything(links, flows, acks), rel=exact)
            for link in links:
                assert sum(flow.rate for flow in link.flows) == pytest.approx(link.used, rel=1e-9)
                assert link.load <= link.rate * (1 + 1e-8)
                assert link.holding == sum(flow.bottleneck is link for flow in link.flows)
    finally:
        local.TURNS = usual
    assert all(flow.done is None for flow in flows)


@given(rates, starts, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_time_does_not_depend_on_the_order_of_insertion(capacities, messages, random):
    def ends(order):
        env, _, flows = begin(capacities, [messages[i] for i in order], acknowledgements)
        env.run()
        return {i: flow.since for i, flow in zip(order, flows, strict=True)}

    order = list(range(len(messages)))
    first = ends(order)
    random.shuffle(order)
    assert ends(order) == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize("pairs", [2, 50])
def test_cost_grows_with_what_is_touched(monkeypatch, pairs):
    """Pairs of flows, each on a link of its own: when one ends, its partner is worked out again, and nobody else."""
    worked = []
    monkeypatch.setattr(room, "reshare", lambda *what: worked.append(found := local.reshare(*what)) or found)
    env = Environment()
    network = Network(env)
    for i in range(pairs):
        link = Link("own", 1e6)
        for nbytes in (1e6 + i * 1e3, 2e6 + i * 1e3):
            network.move(Flow([link]), nbytes, lambda: None)
    env.run()
    assert [len(found) for found in worked] == [2 * pairs] + [1] * pairs + [0] * pairs


def test_what_is_held_elsewhere_is_not_worked_out_again(monkeypatch):
    """Hosts with an access that their slow paths never fill: what starts and ends on one path touches no other."""
    worked = []
    monkeypatch.setattr(room, "reshare", lambda *what: worked.append(found := local.reshare(*what)) or found)
    env = Environment()
    network = Network(env, lambda rate: 0.0)
    access = Link("up", 1e9)
    for i in range(50):
        network.move(Flow([access, Link("path", 1e6)]), 1e6 + i * 1e3, lambda: None)
    env.run()
    assert [len(found) for found in worked] == [50] + [0] * 50


def test_cost_of_a_new_flow_is_that_of_its_bottleneck(monkeypatch):
    """Two accesses of 30 flows each, with one flow over both that the second holds.

    What joins the first is divided among those that the first holds; the flow over both, and the second, are not
    touched.
    """
    worked = []
    monkeypatch.setattr(room, "reshare", lambda *what: worked.append(found := local.reshare(*what)) or found)
    env = Environment()
    network = Network(env, lambda rate: 0.0)
    fast, slow = Link("fast", 1e6), Link("slow", 1e4)
    for links in [[fast]] * 30 + [[slow]] * 30 + [[fast, slow]]:
        network.move(Flow(links), 1e12, lambda: None)
    env.run(until=1)
    network.move(Flow([fast]), 1e12, lambda: None)
    env.run(until=2)
    assert [len(found) for found in worked] == [61, 31]
