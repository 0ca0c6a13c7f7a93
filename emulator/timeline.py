"""A network that changes: what its paths, accesses and groups become at given seconds, and the traffic of others.

Second 0 is the common start of an arm's training. At second 0 the network is what the topology's own paths, hosts and
groups say; :meth:`emulator.topology.Topology.state` says what it is later. Both the links that are real and the
simulator read this, so they see the same network.

**An outage** is a path with a loss of 1: its packets cross the rate and are then lost, every one, as behind a cable
that is cut. TCP tries again at intervals that double, from its retransmission timeout on, so after an outage of t
seconds it goes on within another t or so; no connection breaks (Linux gives up after a quarter of an hour).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from emulator.units import format_loss, format_rate, format_time

if TYPE_CHECKING:
    from emulator.topology import Group, Host, Path, Topology


@dataclass(frozen=True)
class Change:
    """From `second` on these paths, hosts (their accesses) and groups are as they are here; the others stay."""

    second: float
    paths: tuple[Path, ...] = ()
    hosts: tuple[Host, ...] = ()
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """A transfer of somebody else's, from host `source` to `target` between two seconds."""

    source: str
    target: str
    start: float
    end: float
    rate: float | None
    """Bytes per second at the link layer, headers included, as a path's rate; None: as much as TCP gets."""
    connections: int = 1
    """TCP connections that share it evenly."""
    line: int = 0

    def __str__(self) -> str:
        rate = "as much as TCP gets" if self.rate is None else format_rate(self.rate)
        several = f" by {self.connections} connections" if self.connections > 1 else ""
        return f"traffic {self.source} -> {self.target}{several}, {rate}"


@dataclass(frozen=True)
class Timeline:
    """Changes by ascending second, all above 0, one a second; and traffic. Empty for a network that stays as it is."""

    changes: tuple[Change, ...] = ()
    traffic: tuple[Traffic, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes or self.traffic)

    @cached_property
    def moments(self) -> tuple[float, ...]:
        """Ascending seconds above 0 at which paths, accesses or groups change; traffic is apart from them."""
        return tuple(change.second for change in self.changes)


STILL = Timeline()
"""Of a network that stays as it is."""

_SHOWN = {"rate": format_rate, "delay": format_time, "jitter": format_time, "up": format_rate, "down": format_rate,
          "loss": lambda loss: "outage" if loss == 1 else format_loss(loss)}


def name(subject: Path | Host | Group) -> str:
    """What a path, host or group is called."""
    thing: Any = subject
    return f"{thing.source} -> {thing.target}" if hasattr(thing, "source") else str(thing.name)


def differences(before: Topology, after: Topology) -> Iterator[str]:
    """Say of each path, host and group that differs what it is `after`: "a -> b: rate 70 kB/s (0.7 MB/s before)"."""
    subjects: Iterator[tuple[Any, Any]] = zip(chain(before.paths, before.hosts, before.groups),
                                              chain(after.paths, after.hosts, after.groups), strict=True)
    for one, other in subjects:
        fields = [f"{field} {show(getattr(other, field))} ({show(getattr(one, field))} before)"
                  for field, show in _SHOWN.items() if getattr(one, field, None) != getattr(other, field, None)]
        if fields:
            yield f"{name(other)}: {', '.join(fields)}"


def happenings(topology: Topology) -> list[tuple[float, str]]:
    """Everything in the topology's timeline, in words, by second."""
    seconds = (0.0, *topology.timeline.moments)
    found = [(second, what) for before, second in pairwise(seconds)
             for what in differences(topology.state(before), topology.state(second))]
    found += [(flow.start, f"{flow}, until {flow.end:g} s") for flow in topology.timeline.traffic]
    return sorted(found, key=lambda happening: happening[0])
