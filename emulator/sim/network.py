"""The network as a fluid: directed links, and flows over them that share the links max–min fairly.

A flow is one direction of one TCP connection: while it has bytes to move, it moves them at a rate that
:func:`~emulator.sim.fair.share` gives it. Rates are worked out anew when a flow starts or ends, once an instant, after
everything that happens in that instant, and only for the flows that share links with it, directly or through others.

All bytes here are bytes on the wire: payload with TCP, IP and Ethernet headers.

**Links are token buckets**, as kernel HTB classes are (tc-htb(8): ``rate`` and ``burst``): one that was idle lets
`burst` bytes through at the speed of the wire before it holds flows to its rate.

**Packets** are what a sender's segmentation offload makes: several segments that stay together up to the receiver.
TCP makes them 2 ms of its rate long, two segments at least and 64 KiB at most (:func:`packet`).

**Acknowledgements** go the other way: a frame without payload for each packet, also when the connection has data to
send there, because behind a rate limit it is not the arrival of a packet that makes data leave. Counted in a probe that
moved bytes over one connection, one way and both ways at once: 1,036 frames for 2,072 segments at 0.7 MB/s, and 1,036
for 41,437 at 30 MB/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from simpy import Environment, Event
from simpy.events import EventPriority, Timeout

from emulator.ethernet import FRAME, HEADERS
from emulator.sim.fair import share

WIRE_RATE = 4e9
"""Bytes per second at which a link that has tokens passes them: a veth pair without limits carried 4.2 GB/s here."""

PACKET_SECONDS = 2e-3
"""TCP sizes a packet to a millisecond of its pacing rate (Linux: ``sk_pacing_shift``), which is twice the rate at which
it sends for as long as no packet is lost (slow start's ``tcp_pacing_ss_ratio``)."""
PACKET_SEGMENTS = 2, 45
"""Least (Linux: ``tcp_min_tso_segs``) and most (64 KiB) segments of a packet."""

ACK_MOST = 0.5
"""The most of a link that acknowledgements take. They are cumulative: when they queue up, dropped ones cost nothing,
so they thin out instead of starving the data; where that ends is a guess that only a rate ratio above 20 reaches."""

_LAST = EventPriority(2)  # after all that SimPy schedules for an instant, which is URGENT (0) or NORMAL (1)
_LEAST_TOKENS = 1.0  # bytes: less than this is rounding, not a burst


def packet(rate: float) -> float:
    """Segments of a packet of a flow that moves `rate` bytes per second on the wire."""
    least, most = PACKET_SEGMENTS
    return min(most, max(least, rate * PACKET_SECONDS / FRAME))


class Link:
    """A directed link: `rate` in bytes per second, after the first `burst` bytes."""

    __slots__ = ("acks_of", "burst", "drained", "flows", "load", "name", "rate", "since", "tokens")

    def __init__(self, name: str, rate: float, burst: float = 0.0) -> None:
        if not rate > 0:
            raise ValueError(f"{name}: a link's rate is more than 0 B/s, not {rate}")
        self.name = name
        self.rate = rate
        self.burst = self.tokens = burst
        self.since = 0.0
        self.load = 0.0
        """Bytes per second that cross it now, acknowledgements included."""
        self.flows: dict[Flow, None] = {}
        self.acks_of: dict[Flow, None] = {}
        self.drained: Event | None = None

    def settle(self, now: float) -> None:
        """Bring the tokens up to date."""
        if self.burst:
            self.tokens = min(self.burst, max(0.0, self.tokens + (self.rate - self.load) * (now - self.since)))
        self.since = now

    @property
    def capacity(self) -> float:
        """Bytes per second that it passes at present."""
        return max(WIRE_RATE, self.rate) if self.tokens >= _LEAST_TOKENS else self.rate

    def __repr__(self) -> str:
        return f"Link({self.name}, {self.rate} B/s)"


class Flow:
    """One direction of a connection: the limited links it crosses, and those its acknowledgements cross."""

    __slots__ = ("back", "done", "ends", "left", "links", "rate", "since")

    def __init__(self, links: Sequence[Link], back: Sequence[Link] = ()) -> None:
        self.links = tuple(links)
        self.back = tuple(back)
        self.left = 0.0
        self.rate = 0.0
        self.since = 0.0
        self.done: Event | None = None
        """Fires when what is being moved has left; None while idle."""
        self.ends: Timeout | None = None

    def settle(self, now: float) -> None:
        """Take off what has left since the last time."""
        if now > self.since:
            self.left = max(0.0, self.left - self.rate * (now - self.since))
        self.since = now


def acknowledgements(rate: float) -> float:
    """Bytes per second of the acknowledgements of a flow that moves `rate` bytes per second on the wire."""
    return rate / FRAME / packet(rate) * HEADERS


class Network:
    """Moves the bytes of flows in the virtual time of `env`."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._changed: dict[Link | Flow, None] = {}

    def move(self, flow: Flow, nbytes: float) -> Event:
        """Start to move `nbytes` over an idle flow; the event fires when the last byte has left.

        Raises ValueError if the flow is not idle.
        """
        if flow.done is not None:
            raise ValueError(f"{flow.left} bytes of this flow are still under way")
        flow.left, flow.rate, flow.since = nbytes, 0.0, self.env.now
        flow.done = done = self.env.event()
        for link in flow.links:
            link.flows[flow] = None
        for link in flow.back:
            link.acks_of[flow] = None
        self._touch([flow])
        return done

    def shorten(self, flow: Flow, keep: float) -> float:
        """Let a moving flow end after `keep` more bytes at most; returns how many bytes were taken off."""
        flow.settle(self.env.now)
        taken = max(0.0, flow.left - keep)
        if taken:
            flow.left -= taken
            flow.ends = None
            self._touch([flow])
        return taken

    def _touch(self, what: Iterable[Link | Flow]) -> None:
        if not self._changed:
            solve = self.env.event()
            solve.callbacks.append(self._solve)
            solve._ok, solve._value = True, None  # triggered, as SimPy's Timeout does it, to be scheduled by hand
            self.env.schedule(solve, _LAST)
        self._changed.update(dict.fromkeys(what))

    def _solve(self, _: Event) -> None:
        flows, links = _component(self._changed)
        self._changed = {}
        now = self.env.now
        for flow in flows:
            flow.settle(now)
        for link in links:
            link.settle(now)
        rates, acks = _rates(flows, links)
        for link in links:
            load = sum(rates[flow] for flow in link.flows) + acks[link]
            self._watch(link, load)
        for flow in flows:
            if flow.ends is None or rates[flow] != flow.rate:
                flow.rate = rates[flow]
                flow.ends = self.env.timeout(flow.left / flow.rate)
                flow.ends.callbacks.append(partial(self._ended, flow))

    def _watch(self, link: Link, load: float) -> None:
        """Set the load of a link; if it eats the link's tokens, work the rates out again when they are gone."""
        link.load = load
        link.drained = None
        if link.tokens >= _LEAST_TOKENS and load > link.rate:
            link.drained = self.env.timeout(link.tokens / (load - link.rate))
            link.drained.callbacks.append(partial(self._empty, link))

    def _empty(self, link: Link, event: Event) -> None:
        if event is link.drained:
            link.settle(self.env.now)
            link.tokens = 0.0
            self._touch([link])

    def _ended(self, flow: Flow, event: Event) -> None:
        if event is not flow.ends:
            return  # its rate has changed since
        done, flow.done, flow.ends = flow.done, None, None
        flow.left = flow.rate = 0.0
        for link in flow.links:
            del link.flows[flow]
        for link in flow.back:
            del link.acks_of[flow]
        self._touch([*flow.links, *flow.back])
        assert done is not None
        done.succeed()


def _component(seeds: Iterable[Link | Flow]) -> tuple[list[Flow], list[Link]]:
    """All moving flows and links that hang together with these."""
    found = dict.fromkeys(seeds)
    pending = list(found)
    while pending:
        item = pending.pop()
        beside = [*item.flows, *item.acks_of] if isinstance(item, Link) else [*item.links, *item.back]
        for other in beside:
            if other not in found:
                found[other] = None
                pending.append(other)
    return ([item for item in found if isinstance(item, Flow) and item.done is not None],
            [item for item in found if isinstance(item, Link)])


def _rates(flows: list[Flow], links: list[Link]) -> tuple[dict[Flow, float], dict[Link, float]]:
    """Return the flows' rates, and what acknowledgements take of the links.

    Each depends on the other. Acknowledgements are a fiftieth of what they acknowledge, so going back and forth
    gains almost two digits a turn; it ends when no link's acknowledgements change by a billionth of its capacity.
    """
    capacity = {link: link.capacity for link in links}
    ways = {flow: flow.links for flow in flows}
    acks = dict.fromkeys(links, 0.0)
    rates = share(ways, capacity)
    for _ in range(20):
        before = acks
        acks = {link: min(ACK_MOST * capacity[link], sum(acknowledgements(rates[flow]) for flow in link.acks_of))
                for link in links}
        if all(abs(acks[link] - before[link]) <= 1e-9 * capacity[link] for link in links):
            break
        rates = share(ways, {link: capacity[link] - acks[link] for link in links})
    return rates, acks
