"""How long a packet is held, and whether it is lost: the law that all engines follow (:mod:`emulator.links.engines`).

With the standard library alone, as :mod:`emulator.links.delayd` runs it.
"""

from __future__ import annotations

import hashlib
from random import Random

CUT = 4
"""Standard deviations at which jitter is cut off."""


def seed(topology: str, source: str, target: str) -> int:
    """Where the chance of a path begins: 64 bits that are the same in each run of a topology of that name."""
    return int.from_bytes(hashlib.sha256(f"{topology}: {source} -> {target}".encode()).digest()[:8])


class Holding:
    """The law of one path; seconds. Packet n has the same fate in every run, however many are joined or late."""

    def __init__(self, begin: int) -> None:
        self._losing = Random(begin)
        self._spreading = Random(begin + 1)      # apart, so that jitter does not change which packets are lost
        self.delay = self.jitter = self.loss = 0.0

    def due(self, arrived: float) -> float | None:
        """When to let go of a packet that came at `arrived`, if none before it waits longer; None if it is lost."""
        if self.loss and self._losing.random() < self.loss:
            return None
        if not self.jitter:
            return arrived + self.delay
        spread = max(-CUT, min(CUT, self._spreading.gauss(0, 1)))
        return arrived + max(0.0, self.delay + spread * self.jitter)
