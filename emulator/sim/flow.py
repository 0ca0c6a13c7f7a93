"""Directed links, and the flows that cross them. All bytes here are bytes on the wire, headers included."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from emulator.ethernet import FRAME, HEADERS

PACKET_SECONDS = 2e-3
"""TCP sizes a packet to a millisecond of its pacing rate (Linux: ``sk_pacing_shift``), which is twice the rate at which
it sends for as long as no packet is lost (slow start's ``tcp_pacing_ss_ratio``)."""
PACKET_SEGMENTS = 2, 45
"""Least (Linux: ``tcp_min_tso_segs``) and most (64 KiB) segments of a packet."""

ACK_MOST = 0.5
"""The most of a link that acknowledgements take. They are cumulative: when they queue up, dropped ones cost nothing,
so they thin out instead of starving the data; where that ends is a guess that only a rate ratio above 20 reaches."""


def packet(rate: float) -> float:
    """Segments of a packet of a flow that moves `rate` bytes per second on the wire."""
    least, most = PACKET_SEGMENTS
    return min(most, max(least, rate * PACKET_SECONDS / FRAME))


def acknowledgements(rate: float) -> float:
    """Bytes per second of the acknowledgements of a flow that moves `rate` bytes per second on the wire."""
    return rate / FRAME / packet(rate) * HEADERS


class Link:
    """A directed link: `rate` in bytes per second, after the first `burst` bytes.

    Raises ValueError for a rate that is not above 0.
    """

    __slots__ = ("acknowledging", "acks", "backs", "burst", "flows", "holding", "level", "name", "rate", "room",
                 "since", "tokens", "used")

    def __init__(self, name: str, rate: float, burst: float = 0.0) -> None:
        if not rate > 0:
            raise ValueError(f"{name}: a link's rate is more than 0 B/s, not {rate}")
        self.name = name
        self.rate = self.room = rate
        """Bytes per second, in all, and for flows: what acknowledgements leave."""
        self.burst = self.tokens = burst
        self.since = 0.0
        self.flows: dict[Flow, None] = {}
        """Those that move over it."""
        self.used = 0.0
        """Bytes per second of them."""
        self.holding = 0
        """How many of them have their bottleneck here,"""
        self.level = 0.0
        """and what those get for each unit of weight."""
        self.backs = 0
        """How many moving flows have their acknowledgements cross it."""
        self.acknowledging = 0.0
        """Bytes per second of the acknowledgements that want to cross it."""
        self.acks = 0.0
        """Those that do."""

    @property
    def load(self) -> float:
        """Bytes per second that cross it now, acknowledgements included."""
        return self.used + self.acks

    def settle(self, now: float) -> None:
        """Bring the tokens up to date, before the load changes or they are taken."""
        if self.tokens < self.burst and now > self.since:
            self.tokens = min(self.burst, self.tokens + max(0.0, self.rate - self.load) * (now - self.since))
        self.since = now

    def __repr__(self) -> str:
        return f"Link({self.name}, {self.rate} B/s)"


class Flow:
    """One direction of a connection: the limited links it crosses, and those its acknowledgements cross.

    Where several flows move over one path, `beside` is theirs in common: those of them that move. Then a path has the
    weight 1 and they share it, each for as many TCP connections as it stands for (`connections`). So real links do it:
    where paths share a limit they take turns, one queue a path, whatever number of connections wait in it
    (:func:`emulator.links.shaping.tree`); within a queue connections get equal parts, in the long run. Measured at an
    access of 3 MB/s, with two connections on one path and one on another: 0.745, 0.745 and 1.490 MB/s.

    Weights do not depend on round trips. That the shorter one gets more of a bottleneck (Lakshman and Madhow, IEEE/ACM
    Transactions on Networking 5(3), 1997) is true of one queue, but different round trips are different paths, which
    take turns: at the same access, connections of 10 and 80 ms had 1.500 MB/s each.

    What one of a path's flows leaves because something else holds it goes to all here, not to its path alone.
    """

    __slots__ = ("acks", "back", "beside", "bottleneck", "connections", "done", "due", "left", "links", "rate", "since",
                 "weight")

    def __init__(self, links: Sequence[Link], back: Sequence[Link] = (), connections: int = 1,
                 beside: dict[Flow, None] | None = None) -> None:
        self.links = tuple(links)
        self.back = tuple(back)
        self.connections = connections
        self.beside = beside
        self.weight = 1.0
        """Its part of a bottleneck, beside those of others; follows from those who move over the same path."""
        self.left = 0.0
        self.rate = 0.0
        self.acks = 0.0
        """Bytes per second of its acknowledgements."""
        self.since = 0.0
        self.bottleneck: Link | None = None
        """The full link on which nobody has a higher level."""
        self.done: Callable[[], object] | None = None
        """Called when what is being moved has left; None while idle."""
        self.due = math.inf
        """When that will be."""

    def settle(self, now: float) -> None:
        """Take off what has left since the last time."""
        if now > self.since:
            self.left = max(0.0, self.left - self.rate * (now - self.since))
        self.since = now


def weigh(beside: dict[Flow, None]) -> None:
    """Share the weight of a path among the flows that move over it, by their connections."""
    connections = sum(flow.connections for flow in beside)
    for flow in beside:
        flow.weight = flow.connections / connections
