"""From a topology's YAML to a :class:`~emulator.topology.Topology`: what the file may say, and the checks.

:mod:`emulator.topology` documents the format. Nothing is guessed: what cannot be, is refused with file and line.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path as File
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from emulator.document import Document, Name, Section, suggest
from emulator.topology import Group, Host, Path, Topology, TopologyError
from emulator.units import parse_loss, parse_rate, parse_size, parse_time

# What a TCP segment carries on an Ethernet of MTU 1500 with timestamps, and its frame: 1500 - 20 - 32, 1500 + 14.
SEGMENT, FRAME = 1448, 1514
# The largest window TCP can announce: 65535 bytes scaled by 2**14 (RFC 7323, section 2.2).
LARGEST_WINDOW = 65535 << 14

UNLIMITED = "unlimited"


def _limit(parse: Callable[[object], float]) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value == UNLIMITED else parse(value))


def _window(value: object) -> int:
    window = parse_size(value)
    if not SEGMENT <= window <= LARGEST_WINDOW:
        raise ValueError(f"{value!r} is an impossible window; write one of at least a segment, {SEGMENT} B, "
                         f"and at most {LARGEST_WINDOW} B, which is all that TCP can announce")
    return window


def _queue(value: object) -> int:
    queue = parse_size(value)
    if queue < FRAME:
        raise ValueError(f"{value!r} holds no packet; write a queue of at least one frame, {FRAME} B")
    return queue


def _pair(value: Any) -> Any:
    if not (isinstance(value, list) and len(value) == 2):
        raise ValueError("write two hosts or sites, such as [seattle, new-york]")
    return value


Rate = Annotated[float, BeforeValidator(parse_rate)]


class Access(Section):
    up: Rate | None = None
    down: Rate | None = None


class HostEntry(Section):
    site: Name
    access: Access = Access()
    slots: Annotated[int, Field(strict=True, ge=1)] = 1


class Limits(Section):
    """The fields of a path; those that are not set leave to earlier rules what they say."""

    rate: Annotated[float | None, _limit(parse_rate)] = None
    delay: Annotated[float | None, BeforeValidator(parse_time)] = None
    jitter: Annotated[float, BeforeValidator(parse_time)] = 0
    loss: Annotated[float, BeforeValidator(parse_loss)] = 0
    queue: Annotated[int | None, BeforeValidator(_queue)] = None
    window: Annotated[int | None, _limit(_window)] = None


LIMITS = tuple(Limits.model_fields)


class Matcher(Section):
    """Which paths are meant, by the hosts or sites at their ends: `between` both directions, or `from` and `to`."""

    between: Annotated[tuple[str, str] | None, BeforeValidator(_pair)] = None
    source: Annotated[str | None, Field(alias="from")] = None
    target: Annotated[str | None, Field(alias="to")] = None


class Rule(Matcher, Limits):
    pass


class GroupEntry(Section):
    rate: Rate
    paths: Annotated[list[Matcher], Field(min_length=1)]


class TopologyFile(Section):
    name: Name
    sites: list[Name]
    congestion: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")] = "cubic"
    hosts: Annotated[dict[Name, HostEntry], Field(min_length=1)]
    defaults: Limits = Limits()
    paths: list[Rule] = []
    groups: dict[Name, GroupEntry] = {}


def read(file: File | str) -> Topology:
    """Read and check a topology; raises TopologyError."""
    return _Reader(Document(file, TopologyFile, TopologyError)).topology()


class _Reader:
    """The checks that need more than one field, and what they make."""

    def __init__(self, document: Document[TopologyFile]) -> None:
        self.document = document
        self.content = document.content
        self.hosts = self._hosts()

    def topology(self) -> Topology:
        return Topology(self.content.name, str(self.document.file), self.hosts, self._paths(), self._groups(),
                        self.content.congestion, self.document.text)

    def _hosts(self) -> tuple[Host, ...]:
        sites, hosts = self.content.sites, self.content.hosts
        for index, site in enumerate(sites):
            if site in sites[:index]:
                raise self.document.error("sites", index, message=f"site {site!r} is listed twice; keep one")
        for name, entry in hosts.items():
            if name in sites:
                raise self.document.error("hosts", name, message=f"{name!r} is a site too; name the host otherwise")
            if entry.site not in sites:
                raise self.document.error("hosts", name, "site",
                                          message=f"unknown site {entry.site!r}; {suggest(entry.site, sites)}")
        return tuple(Host(name, entry.site, entry.access.up, entry.access.down, entry.slots,
                          self.document.line("hosts", name)) for name, entry in hosts.items())

    def _members(self, place: str, *location: str | int) -> tuple[str, ...]:
        """Names of the hosts that a host or a site stands for."""
        members = tuple(host.name for host in self.hosts if place in (host.name, host.site))
        if not members:
            known = [*self.content.hosts, *self.content.sites]
            raise self.document.error(*location, message=f"no host or site {place!r}; {suggest(place, known)}")
        return members

    def _pairs(self, matcher: Matcher, *location: str | int) -> list[tuple[str, str]]:
        """(source, target) of the paths that are meant."""
        if matcher.between and not (matcher.source or matcher.target):
            here = there = (*location, "between")
            source, target = matcher.between
        elif matcher.source and matcher.target and not matcher.between:
            here, there = (*location, "from"), (*location, "to")
            source, target = matcher.source, matcher.target
        else:
            raise self.document.error(*location, message="which paths are meant? Write either between: [a, b], "
                                                         "or from: a and to: b")
        sources, targets = self._members(source, *here), self._members(target, *there)
        pairs = [(one, other) for one in sources for other in targets if one != other]
        if not pairs:
            raise self.document.error(*location, message=f"no path leads from {source!r} to {target!r}, which are one "
                                                         "host; name two")
        return pairs + [(other, one) for one, other in pairs if matcher.between]

    def _paths(self) -> list[Path]:
        defaults = {field: (getattr(self.content.defaults, field), self.document.line("defaults", field))
                    for field in LIMITS}
        # For each path its fields so far, each with the line that set it, and the line of the last rule.
        found = {pair: dict(defaults) for pair in permutations(self.content.hosts, 2)}
        lines: dict[tuple[str, str], int] = {}
        for index, rule in enumerate(self.content.paths):
            location = ("paths", index)
            said = {field: (getattr(rule, field), self.document.line(*location, field))
                    for field in LIMITS if field in rule.model_fields_set}
            for pair in self._pairs(rule, *location):
                found[pair].update(said)
                lines[pair] = self.document.line(*location)
        return [self._path(pair, said, lines.get(pair)) for pair, said in found.items()]

    def _path(self, pair: tuple[str, str], said: dict[str, tuple[Any, int]], line: int | None) -> Path:
        name = " -> ".join(pair)
        if line is None:
            raise self.document.error("paths", message=f"missing path {name}; add a rule that matches it")
        fields = {field: value for field, (value, _) in said.items()}
        if fields["delay"] is None:
            raise self.document.error_at(line, f"path {name} has no delay; add one here or under defaults")
        if fields["jitter"] > fields["delay"]:
            raise self.document.error_at(said["jitter"][1], f"the jitter of path {name} is more than its delay; write "
                                                            "a jitter of at most the delay")
        return Path(*pair, **fields, line=line)

    def _groups(self) -> tuple[Group, ...]:
        return tuple(Group(name, entry.rate,
                           frozenset(pair for index, matcher in enumerate(entry.paths)
                                     for pair in self._pairs(matcher, "groups", name, "paths", index)),
                           self.document.line("groups", name)) for name, entry in self.content.groups.items())
