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

    __slots__ = ("acknowledging", "acks", "backs", "burst", "flows", "load", "name", "rate", "room", "since", "tokens")

    def __init__(self, name: str, rate: float, burst: float = 0.0) -> None:
        if not rate > 0:
            raise ValueError(f"{name}: a link's rate is more than 0 B/s, not {rate}")
        self.name = name
        self.rate = self.room = rate
        """Bytes per second, in all, and for flows: what acknowledgements leave."""
        self.burst = self.tokens = burst
        self.since = 0.0
        self.load = 0.0
        """Bytes per second that cross it now, acknowledgements included."""
        self.flows: dict[Flow, None] = {}
        self.backs = 0
        """How many moving flows have their acknowledgements cross it."""
        self.acknowledging = 0.0
        """Bytes per second of the acknowledgements that want to cross it."""
        self.acks = 0.0
        """Those that do."""

    def settle(self, now: float) -> None:
        """Bring the tokens up to date, before the load changes or they are taken."""
        if self.tokens < self.burst and now > self.since:
            self.tokens = min(self.burst, self.tokens + max(0.0, self.rate - self.load) * (now - self.since))
        self.since = now

    def __repr__(self) -> str:
        return f"Link({self.name}, {self.rate} B/s)"


class Flow:
    """One direction of a connection: the limited links it crosses, and those its acknowledgements cross."""

    __slots__ = ("acks", "back", "bottleneck", "done", "due", "left", "links", "rate", "since")

    def __init__(self, links: Sequence[Link], back: Sequence[Link] = ()) -> None:
        self.links = tuple(links)
        self.back = tuple(back)
        self.left = 0.0
        self.rate = 0.0
        self.acks = 0.0
        """Bytes per second of its acknowledgements."""
        self.since = 0.0
        self.bottleneck: Link | None = None
        """The full link on which nobody has more than this flow."""
        self.done: Callable[[], object] | None = None
        """Called when what is being moved has left; None while idle."""
        self.due = math.inf
        """When that will be."""

    def settle(self, now: float) -> None:
        """Take off what has left since the last time."""
        if now > self.since:
            self.left = max(0.0, self.left - self.rate * (now - self.since))
        self.since = now
