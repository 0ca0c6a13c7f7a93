"""What a training step asks for: buckets to exchange, and seconds of computation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together: `nbytes` of them, `ready` seconds after backward has begun."""

    nbytes: int
    ready: float = 0.0


@dataclass(frozen=True)
class Workload:
    """A training step: its buckets in the order in which they become ready, and its own work in seconds."""

    buckets: tuple[Bucket, ...]
    forward: float = 0.0
    """Everything before backward."""
    backward: float = 0.0
    optimiser: float = 0.0
    """Everything after the exchange."""
