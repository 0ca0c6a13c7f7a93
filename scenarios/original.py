"""The founding experiment's own figures, as its text gives them, and which of them a network can have at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emulator.topology import Topology
from scenarios.theory import Limit, theory

WORLD = 4
GRADIENT_BYTES = 16_867_332
STEPS: Mapping[str, tuple[float, ...]] = {
    "gloo": (13.1, 13.4, 22.0, 22.7, 29.8, 62.0),
    "shard": (12.3, 12.9, 13.0, 13.4, 15.3),
}
"""Median seconds of a training step, a campaign each, over both settings of gradient_as_bucket_view."""


@dataclass(frozen=True)
class Admitted:
    """Which of an arm's medians a network limited like this one can have."""

    arm: str
    limit: Limit
    least: float
    """Seconds: the bytes of a step over what binds them. Nothing is faster."""
    possible: tuple[float, ...]
    impossible: tuple[float, ...]


def admitted(topology: Topology, hosts: Sequence[str]) -> Iterator[Admitted]:
    """For each arm for which theory has a slope on the W = 4 hosts. Raises ValueError for another world."""
    if len(hosts) != WORLD:
        raise ValueError(f"the founding figures are of W = {WORLD}, and these are {len(hosts)} hosts")
    for arm, medians in STEPS.items():
        if found := theory(topology, hosts, arm):
            least = found.slope * GRADIENT_BYTES
            yield Admitted(arm, found.limit, least, tuple(m for m in medians if m >= least),
                           tuple(m for m in medians if m < least))
