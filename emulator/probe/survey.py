"""What a probe measures: echoes, and trials in which some paths are driven at once. Everything is by the clock.

Goodput is payload in bytes per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

Pair = tuple[str, str]
"""(source, target) of a path."""

BATCHES = 10
"""Parts of equal length into which a flow's time is cut: their spread gives the interval of its mean."""
_T95 = 2.262      # 97.5 % of Student's t with BATCHES - 1 degrees of freedom
ECHOES = 21
"""Echoes a pair of hosts."""
_RANKS95 = 5, 15      # of 21 values in order: the median is between these with 97 % (binomial, p = 1/2)


@dataclass(frozen=True)
class Estimate:
    """A value and the 95 % interval around it."""

    value: float
    low: float
    high: float

    @classmethod
    def of_batches(cls, values: Sequence[float]) -> Estimate:
        """Mean of :data:`BATCHES` values, taken as independent."""
        mean = fmean(values)
        # statistics.stdev is exact, and a hundred times slower.
        variance = math.fsum((value - mean)**2 for value in values) / (len(values) - 1)
        half = _T95 * math.sqrt(variance / len(values))
        return cls(mean, max(0.0, mean - half), mean + half)

    @classmethod
    def of_echoes(cls, values: Sequence[float]) -> Estimate:
        """Median of :data:`ECHOES` values; fewer, as some were lost, have their whole range for an interval."""
        ordered = sorted(values)
        low, high = _RANKS95 if len(ordered) == ECHOES else (0, -1)
        return cls(median(ordered), ordered[low], ordered[high])

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Host:
    """A host that takes part. Hosts with one `machine` share its processors."""

    name: str
    address: str
    machine: str
    loopback: float
    """Goodput of the machine with itself, over its loopback device."""
    kernel: str
    congestion: str
    """What its TCP uses unless a route says otherwise."""


@dataclass(frozen=True)
class Load:
    """`connections` TCP connections that send all they can along one path."""

    source: str
    target: str
    connections: int = 1

    @property
    def pair(self) -> Pair:
        """The path."""
        return self.source, self.target


@dataclass(frozen=True)
class Request:
    """A trial that is wanted; `kind` says what for, to people. A `rough` one tells a rate from its double."""

    kind: str
    loads: tuple[Load, ...]
    rough: bool = False


@dataclass(frozen=True)
class Flow:
    """What came of a load."""

    source: str
    target: str
    connections: int
    goodput: tuple[float, ...]
    """Of all its connections together, batch after batch."""
    window_limited: float
    """Share of the time in which TCP waited for the receiver's window (tcp_info)."""
    resent: float
    """Share of the segments that were sent again."""
    idle: float
    """Share of the time in which the sender had nothing to send: its program was late, so the network was not asked."""
    rtt: float
    """Seconds, as TCP saw it at the end (tcp_info)."""
    congestion: str

    @property
    def pair(self) -> Pair:
        """The path."""
        return self.source, self.target

    @property
    def rate(self) -> float:
        """Mean goodput."""
        return fmean(self.goodput)

    @property
    def estimate(self) -> Estimate:
        """Mean goodput with its interval."""
        return Estimate.of_batches(self.goodput)


@dataclass(frozen=True)
class Trial:
    """Paths that were driven at once."""

    kind: str
    flows: tuple[Flow, ...]
    begun: str
    """ISO 8601, UTC."""
    warm_seconds: float
    """Before anything was counted."""
    seconds: float
    """In which it was counted."""
    busy: float = 0.0
    """Share of their processors' time that the sending machines were busy meanwhile; of the busiest."""

    def flow(self, pair: Pair) -> Flow:
        """The flow along that path."""
        return next(flow for flow in self.flows if flow.pair == pair)

    def total(self, pairs: Iterable[Pair] | None = None) -> Estimate:
        """Goodput of all the flows, or of those along `pairs`, together."""
        chosen = None if pairs is None else set(pairs)
        flows = [flow.goodput for flow in self.flows if chosen is None or flow.pair in chosen]
        return Estimate.of_batches([sum(batch) for batch in zip(*flows, strict=True)])


@dataclass(frozen=True)
class Survey:
    """All that was measured of a network that ran `speedup` times faster than life."""

    hosts: tuple[Host, ...]
    echoes: dict[Pair, tuple[float, ...]]
    """Seconds of each echo between the two hosts, in alphabetical order."""
    trials: tuple[Trial, ...]
    speedup: float = 1.0

    def rtt(self, one: str, other: str) -> Estimate:
        """Idle round trip between two hosts in seconds."""
        return Estimate.of_echoes(self.echoes[min(one, other), max(one, other)])

    def lines(self) -> Iterable[dict[str, Any]]:
        """The survey as one JSON object a line: the network, hosts, echoes, trials."""
        yield {"schema": 1, "record": "survey", "speedup": self.speedup}
        for host in self.hosts:
            yield {"schema": 1, "record": "host", **asdict(host)}
        for (one, other), seconds in self.echoes.items():
            yield {"schema": 1, "record": "echoes", "hosts": [one, other], "seconds": list(seconds)}
        for trial in self.trials:
            yield {"schema": 1, "record": "trial", **asdict(trial)}
