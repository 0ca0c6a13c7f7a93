"""How fast each peer is read from, and a warning if the path to one is far slower than to another.

A host with two interfaces may talk to a peer over the wrong one, and everything works, only slowly. Nothing but the
rate tells.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from frogtorch.memory.endpoint import Endpoint, interfaces, is_ours

if TYPE_CHECKING:
    from frogtorch.memory.cells import Reading
    from frogtorch.memory.connection import Connection

__all__ = ["BULK_BYTES", "Rates"]

BULK_BYTES = 1 << 20
"""A read of at least this many bytes measures the path; smaller ones measure the peer's wake-up."""

READS = 5
"""Reads of a peer before its rates count: the first ones begin on a cold connection."""

FAR_BELOW = 10
"""A peer is far slower if another is this many times faster."""

log = logging.getLogger("frogtorch")


class Rates:
    """Rates of the reads from each peer on another host, in bytes per second.

    A peer is slow if even the fastest of its reads was (others may have shared this host's access with the rest), and
    fast if the median of its latest was (one may have waited in the kernel's buffer, and come at the speed of memory).
    Calls are made with the loop's lock held.
    """

    def __init__(self, space: str, rank: int, connections: Mapping[int, Connection]) -> None:
        self.best: dict[int, float] = {}
        """By peer, of all reads."""
        self.median: dict[int, float] = {}
        """By peer, of the latest :data:`READS`, once there are as many."""
        self._of = f"group {space}: rank {rank}"
        self._connections = connections
        self._latest: dict[int, deque[float]] = {}
        self._ends: dict[int, tuple[Endpoint, Endpoint] | None] = {}  # of each connection, None if it is on this host
        self._warned: set[int] = set()

    def saw(self, reading: Reading, submit: Callable[[Callable[[], None]], None]) -> None:
        """Take in a read that is filled, of :data:`BULK_BYTES` or more; what is to be logged is given to `submit`."""
        peer = reading.owner
        if reading.first is None or reading.last <= reading.first or self._between(peer) is None:
            return
        rate = len(reading.view) / (reading.last - reading.first)
        self.best[peer] = max(self.best.get(peer, 0.0), rate)
        latest = self._latest.setdefault(peer, deque(maxlen=READS))
        latest.append(rate)
        if len(latest) < READS:
            return
        self.median[peer] = sorted(latest)[READS // 2]
        fastest = max(self.median, key=self.median.__getitem__)
        if self.best[peer] * FAR_BELOW < self.median[fastest] and peer not in self._warned:
            self._warned.add(peer)
            submit(partial(self._warn, peer, self.best[peer], fastest, self.median[fastest]))

    def _between(self, peer: int) -> tuple[Endpoint, Endpoint] | None:
        """The ends of the connection to a peer, noted while it is open; None for one on this host: no network there."""
        if peer not in self._ends:
            ours, theirs = self._connections[peer].ends
            self._ends[peer] = None if is_ours(theirs.address) else (ours, theirs)
        return self._ends[peer]

    def _warn(self, slow: int, best: float, fast: int, median: float) -> None:
        own = self._path(slow)[0]
        there = interfaces()
        in_use = {one.name for one in there if one.address == own}
        others = [one for one in there if one.name not in in_use and one.address != own]
        if others:
            log.warning(
                "%s reads from rank %d at %.2f MB/s at best, over %s - %s, but from rank %d at %.2f MB/s, over %s - "
                "%s. This host has other addresses: %s. If rank %d can be reached from one of them, set "
                "FROGTORCH_ADDRESS to it here, and to the address in the same network there.", self._of,
                slow, best / 1e6, *self._path(slow), fast, median / 1e6, *self._path(fast),
                ", ".join(map(str, others)), slow)

    def _path(self, peer: int) -> tuple[str, str]:
        ends = self._between(peer)
        assert ends is not None  # it has a rate
        return ends[0].address, ends[1].address
