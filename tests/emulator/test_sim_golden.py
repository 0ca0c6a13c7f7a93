"""Our network, given the constants of another simulator or a textbook, against the times that are published.

SimGrid's models (Velho, Schnorr, Casanova and Legrand, "On the validity of flow-level TCP network models", ACM TOMACS
23(4), 2013) are a latency and a size over a max–min share of links, as ours is. What differs are constants, which are
given here: LV08 takes 13.01 of a latency and 0.97 of a bandwidth, and lets the data's way carry 0.05 of it as
acknowledgements, on a link that both directions share; a connection moves no more than a window of 4 MiB a round trip.
"""

import pytest
from simpy import Environment

from emulator.sim.channel import Channel
from emulator.sim.flow import Flow, Link
from emulator.sim.network import Network

WINDOW = 4194304


def arrives(links, back, nbytes, latency, acks):
    """When a message of so many bytes on the wire is there, over these links, with a share `acks` of them coming back.

    A channel's message has headers, so its payload is what leaves `nbytes` with them.
    """
    env = Environment()
    channel = Channel(Network(env, lambda rate: acks * rate), Flow(links, back), latency, 2 * latency)
    message = channel.send(0)
    message.unsent = nbytes
    env.run(message.arrived)
    return env.now


def test_lv08_with_cross_traffic():
    """100 kB over 10 ms and 1 Mb/s take 0.996079 s."""
    link = Link("both directions", 0.97 * 1e6 / 8)
    assert f"{arrives([link], [link], 100e3, 13.01 * 10e-3, 0.05):.6f}" == "0.996079"


def test_cm02_where_the_window_is_the_limit():
    """10 Gb over 1 ms take 4.769372 s: the digits are those of 10e9 bytes, held by a window of 4 MiB a round trip."""
    latency = 1e-3
    window, link = Link("window", WINDOW / (2 * latency)), Link("link", 10e9)
    assert f"{arrives([window, link], [], 10e9, latency, 0.0):.6f}" == "4.769372"


def ends(*starts):
    """When flows, (second, links, bytes), end."""
    env = Environment()
    network = Network(env)
    seen = {}

    def start(i, at, links, nbytes):
        yield env.timeout(at)
        network.move(Flow(links), nbytes, lambda: seen.setdefault(i, env.now))

    for i, one in enumerate(starts):
        env.process(start(i, *one))
    env.run()
    return [seen[i] for i in range(len(starts))]


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_equal_flows_take_n_times_as_long(n):
    link = Link("a", 1e6)
    assert ends(*((0.0, [link], 5e5) for _ in range(n))) == pytest.approx([n * 0.5] * n)


@pytest.mark.parametrize("joined", [0.1, 0.25, 0.4])
def test_a_flow_that_joins(joined):
    """Both of half a second alone: the first ends at 1 s less what it had alone, the second at 1 s, as work is kept."""
    link = Link("a", 1e6)
    assert ends((0.0, [link], 5e5), (joined, [link], 5e5)) == pytest.approx([1.0 - joined, 1.0])


@pytest.mark.parametrize("hops", [1, 2, 5, 20])
def test_parking_lot(hops):
    """One flow over all the links, and one over each: max–min halves every link (proportional fairness would not)."""
    links = [Link(str(i), 1e6) for i in range(hops)]
    assert ends((0.0, links, 5e5), *((0.0, [link], 1e6) for link in links)) == pytest.approx([1.0] + [1.5] * hops)


def test_five_sessions():
    """Three share a, one of them goes on and meets a fourth on b, which gets what that one leaves; c is the fifth's."""
    a, b, c = Link("a", 1e6), Link("b", 1e6), Link("c", 1e6)
    sizes = [1e6 / 3, 1e6 / 3, 1e6 / 3, 2e6 / 3, 1e6]
    routes = [[a], [a], [a, b], [b], [c]]
    assert ends(*((0.0, route, size) for route, size in zip(routes, sizes, strict=True))) == pytest.approx([1.0] * 5)
