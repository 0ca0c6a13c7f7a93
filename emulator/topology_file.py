"""What a topology's YAML may say, field by field; :mod:`emulator.topology` documents it and makes a topology of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from emulator.document import Name, Section
from emulator.ethernet import FRAME, SEGMENT
from emulator.units import (
    format_rate,
    format_size,
    format_time,
    parse_loss,
    parse_rate,
    parse_share,
    parse_size,
    parse_time,
    shown,
)

# The largest window TCP can announce: 65535 bytes scaled by 2**14 (RFC 7323, section 2.2).
LARGEST_WINDOW = 65535 << 14

RATES = 1e2, 1e11
"""Bytes per second that links can hold. From a frame in 15 s on: ``tc`` writes the time of a burst in 32 bits of 64
ns, which a frame at a few bytes a second does not fit into. And at 100 GB/s, ten times sped up, the burst of a shared
limit (emulator/ethernet.py), 4 ms, is 4.0 GB: ``tc`` takes less than 4 GiB."""
DELAYS = 0.0, 60.0
"""Seconds that links can hold: Linux gives up a connection that is not made within 127 s (tcp_syn_retries in
tcp(7)), so a round trip is at most 120 s."""
LARGEST_QUEUE = 2 ** 32 - 1
"""Bytes, and of netem packets, that ``tc`` lets wait. More cannot matter: a connection has at most the largest window
in flight, a quarter of it."""
BOUNDS = {"rate": RATES, "up": RATES, "down": RATES, "delay": DELAYS, "jitter": DELAYS}
"""The least and the greatest value of each field that has such."""

UNLIMITED = "unlimited"


def _limit(parse: Callable[[object], float]) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value == UNLIMITED else parse(value))


def _window(value: object) -> int:
    window = parse_size(value)
    if not SEGMENT <= window <= LARGEST_WINDOW:
        raise ValueError(f"{shown(value)} is an impossible window; write one of at least a segment, {SEGMENT} B, "
                         f"and at most {LARGEST_WINDOW} B, which is all that TCP can announce")
    return window


def _queue(value: object) -> int:
    queue = parse_size(value)
    if queue < FRAME:
        raise ValueError(f"{shown(value)} holds no packet; write a queue of at least one frame, {FRAME} B")
    if queue > LARGEST_QUEUE:
        raise ValueError(f"{shown(value)} is more than links let wait; write a queue below "
                         f"{format_size(LARGEST_QUEUE + 1)}")
    return queue


def held_rate(value: object) -> float:
    """Bytes per second of a rate that links can hold. Raises ValueError."""
    rate = parse_rate(value)
    check_held("rate", rate, shown(value))
    return rate


def held_delay(value: object) -> float:
    """Seconds of a delay, or of its jitter, that links can hold. Raises ValueError."""
    delay = parse_time(value)
    check_held("delay", delay, shown(value))
    return delay


def check_held(field: str, value: float, said: str) -> None:
    """Raise ValueError, about what was `said`, for a value of a field that links cannot hold."""
    least, most = BOUNDS[field]
    if not least <= value <= most:
        kind = "rate" if BOUNDS[field] is RATES else "time"
        raise ValueError(f"{said} is {'less' if value < least else 'more'} than links can hold; write a {kind} from "
                         f"{format_held(field, least)} to {format_held(field, most)}")


def format_held(field: str, value: float) -> str:
    """Show a value of a field that has bounds, with its unit."""
    return format_rate(value) if BOUNDS[field] is RATES else format_time(value)


def _congestion(text: str) -> str:
    if not text.replace("_", "").isalnum():
        raise ValueError(f"{shown(text)} is no congestion control; write one that the kernel has, such as cubic or "
                         "reno")
    return text


def _pair(value: Any) -> Any:
    if not (isinstance(value, list) and len(value) == 2):
        raise ValueError("this is no pair; write two hosts or sites, such as [seattle, new-york]")
    return value


@dataclass(frozen=True)
class Share:
    """A value in a timeline, as a share of what the path, host or group has at second 0."""

    of_own: float


def _or_share(parse: Callable[[object], float]) -> BeforeValidator:
    def read(value: object) -> float | Share:
        if isinstance(value, str) and value.rstrip().endswith("%"):
            return Share(parse_share(value))
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or a share of what it has at second 0, such as '10 %'") from None

    return BeforeValidator(read)


def _seconds(value: object) -> float:
    seconds = parse_time(value)
    if not seconds:
        raise ValueError(f"{shown(value)} is not more than 0; write a time above 0 s")
    return seconds


Rate = Annotated[float, BeforeValidator(held_rate)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Spread = Annotated[float | None, BeforeValidator(parse_share)]


class Access(Section):
    """A host's own limits, in bytes per second; None: unlimited."""

    up: Rate | None = None
    down: Rate | None = None


class HostEntry(Section):
    """A host, under its name."""

    site: Name
    access: Access = Access()
    slots: Annotated[int, Field(strict=True, ge=1)] = 1


class Limits(Section):
    """The fields of a path; those that are not set leave to earlier rules what they say."""

    rate: Annotated[float | None, _limit(held_rate)] = None
    delay: Annotated[float | None, BeforeValidator(held_delay)] = None
    jitter: Annotated[float, BeforeValidator(held_delay)] = 0
    loss: Annotated[float, BeforeValidator(parse_loss)] = 0
    queue: Annotated[int | None, BeforeValidator(_queue)] = None
    window: Annotated[int | None, _limit(_window)] = None


class Matcher(Section):
    """Which paths are meant, by the hosts or sites at their ends: `between` both directions, or `from` and `to`."""

    between: Annotated[tuple[str, str] | None, BeforeValidator(_pair)] = None
    source: Annotated[str | None, Field(alias="from")] = None
    target: Annotated[str | None, Field(alias="to")] = None


class Rule(Matcher, Limits):
    """Fields for the paths that are meant."""


class GroupEntry(Section):
    """A bottleneck, under its name, and the paths that share it."""

    rate: Rate
    paths: Annotated[tuple[Matcher, ...], Field(min_length=1)]


class Subject(Matcher):
    """What a timeline speaks of: paths; or one host's access; or one group."""

    host: str | None = None
    group: str | None = None


class ChangeEntry(Subject):
    """What is set at one second, and stays until something else is; `outage` alone ends by itself, after its time."""

    at: Annotated[float, BeforeValidator(parse_time)]
    rate: Annotated[float | Share | None, _or_share(held_rate)] = None
    delay: Annotated[float | Share | None, _or_share(held_delay)] = None
    jitter: Annotated[float | Share | None, _or_share(held_delay)] = None
    loss: Annotated[float | None, BeforeValidator(parse_loss)] = None
    outage: Seconds | None = None
    up: Annotated[float | Share | None, _or_share(held_rate)] = None
    down: Annotated[float | Share | None, _or_share(held_rate)] = None


class TraceEntry(Matcher):
    """A CSV file, whose rows are set on the paths that are meant."""

    file: str


class DriftEntry(Subject):
    """A random walk, and its spread in each field that walks."""

    every: Seconds
    memory: Seconds
    until: Seconds
    seed: Annotated[int, Field(strict=True)]
    rate: Spread = None
    delay: Spread = None
    loss: Spread = None
    up: Spread = None
    down: Spread = None


class TrafficEntry(Section):
    """A transfer between two hosts, over one TCP connection or several."""

    source: Annotated[str, Field(alias="from")]
    target: Annotated[str, Field(alias="to")]
    start: Annotated[float, BeforeValidator(parse_time)]
    end: Seconds
    rate: Rate | None = None
    connections: Annotated[int, Field(strict=True, ge=1, le=100)] = 1


class TimelineEntry(Section):
    """Everything that happens to the network."""

    changes: tuple[ChangeEntry, ...] = ()
    traces: tuple[TraceEntry, ...] = ()
    drift: tuple[DriftEntry, ...] = ()
    traffic: tuple[TrafficEntry, ...] = ()


class TopologyFile(Section):
    """The whole file."""

    name: Name
    sites: tuple[Name, ...]
    congestion: Annotated[str, AfterValidator(_congestion)] = "cubic"
    hosts: Annotated[dict[Name, HostEntry], Field(min_length=1)]
    defaults: Limits = Limits()
    paths: tuple[Rule, ...] = ()
    groups: Annotated[dict[Name, GroupEntry], Field(default_factory=dict)]
    timeline: TimelineEntry = TimelineEntry()
