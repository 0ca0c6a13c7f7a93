"""Topologies: hosts, the directed paths between them, and where the limits are.

A topology is a page of YAML::

    name: seattle-newyork
    sites: [seattle, new-york]
    congestion: cubic                       # TCP's congestion control on every host; this is the default

    hosts:                                  # their order is their index
      seattle-ai:      {site: seattle}
      seattle-gateway: {site: seattle, access: {up: 30 MB/s, down: 30 MB/s}}      # shared by all the host's paths
      newyork-1:       {site: new-york, slots: 2}                                 # ranks it may run; 1 by default

    defaults: {rate: 0.7 MB/s}              # for every path

    paths:
      - {between: [seattle, new-york], delay: 35 ms}                              # sites, both directions
      - {between: [seattle-ai, seattle-gateway], rate: 30 MB/s, delay: 100 us}    # hosts, both directions
      - {from: seattle-ai, to: newyork-1, loss: 0.1 %}                            # one direction

    groups:                                 # paths that share one bottleneck
      transatlantic: {rate: 5 MB/s, paths: [{from: seattle, to: new-york}]}

The rules under ``paths`` are read **in order, and each sets the fields it names** on every path it matches: write the
general ones first, the exceptions below. A site stands for all its hosts, so ``[seattle, seattle]`` means the paths
inside it. Every ordered pair of hosts must be matched by a rule and have a ``delay`` in the end. The fields of a path:

========  ========================================================================================================
rate      capacity, counting Ethernet frames with their headers; ``unlimited`` if nothing says otherwise; else 100 B/s
          to 100 GB/s, as every rate here
delay     one way, at most 60 s; always needed
jitter    spread of the delay around its value, at most the delay itself; 0 s
loss      share of the packets lost; 0 %
queue     bytes that may wait for the rate; chosen by the link engine
window    bytes that one TCP connection may have in flight; ``unlimited``
========  ========================================================================================================

A network may **change**, at seconds counted from the common start of a training::

    timeline:
      changes:                              # each sets, from its second on, the fields it names
        - {at: 20 s, between: [seattle, new-york], rate: 10 %}          # a share of what `paths` says; or 0.07 MB/s
        - {at: 40 s, between: [seattle, new-york], rate: 100 %, delay: 50 ms, loss: 1 %}
        - {at: 60 s, from: seattle-ai, to: newyork-1, outage: 5 s}      # every packet is lost, for that long
        - {at: 70 s, host: seattle-gateway, up: 50 %}                   # its access
        - {at: 70 s, group: transatlantic, rate: 1 MB/s}
      traces:                               # recorded in a CSV file (emulator/trace.py), below this file's directory
        - {file: traces/train.csv, between: [seattle-ai, newyork-1]}
      drift:                                # each path, field and direction walks by itself (emulator/course.py):
        - {between: [seattle, new-york], rate: 20 %, delay: 5 %,        # spread, in the long run, of the logarithm
           every: 10 s, memory: 60 s, until: 600 s, seed: 7}            # then it stays where it is
      traffic:                              # of others, from host to host
        - {from: seattle-gateway, to: newyork-1, start: 10 s, end: 30 s, rate: 0.3 MB/s}
        - {from: newyork-1, to: seattle-ai, start: 10 s, end: 30 s, connections: 4}      # as much as TCP gets them

Fields that change are ``rate``, ``delay``, ``jitter``, ``loss`` and ``outage`` of paths, ``up`` and ``down`` of a
host, ``rate`` of a group; percentages are shares of the value at second 0, but a loss's. What is unlimited stays so.
At one second changes come after traces, and drift multiplies what they make.
"""

from __future__ import annotations

import dataclasses
import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from pathlib import Path as File
from typing import Any, TypeVar

import networkx

from emulator.document import Document, DocumentError, suggest
from emulator.timeline import STILL, Change, Timeline
from emulator.timeline_reader import TimelineReader
from emulator.topology_file import UNLIMITED, Limits, Matcher, TopologyFile
from emulator.trace import Trace
from emulator.units import format_loss, format_rate, format_size, format_time


class TopologyError(DocumentError):
    """A topology that is refused; its message starts with ``file:line: ``."""


@dataclass(frozen=True)
class Host:
    """A machine: `up` and `down` (bytes per second, None: unlimited) are shared by all its paths."""

    name: str
    site: str
    up: float | None = None
    down: float | None = None
    slots: int = 1
    line: int = 0


@dataclass(frozen=True)
class Path:
    """The directed way from host `source` to host `target`."""

    source: str
    target: str
    rate: float | None
    """Bytes per second at the link layer, Ethernet headers included; None: unlimited."""
    delay: float
    """Seconds, one way."""
    jitter: float = 0
    loss: float = 0
    """Share of the packets; 1 in an outage (:mod:`emulator.timeline`), else less."""
    queue: int | None = None
    """Bytes; None: the link engine sizes it."""
    window: int | None = None
    """Bytes in flight of one TCP connection; None: unlimited."""
    line: int = 0


@dataclass(frozen=True)
class Group:
    """One bottleneck of `rate` bytes per second that the `paths`, (source, target) pairs, share."""

    name: str
    rate: float
    paths: frozenset[tuple[str, str]]
    line: int = 0


@dataclass(frozen=True, eq=False)
class Topology:
    """A network: hosts in the order of their index, a path for every ordered pair of them."""

    name: str
    file: str
    hosts: tuple[Host, ...]
    paths: tuple[Path, ...]
    """By the index of the source, then of the target."""
    groups: tuple[Group, ...]
    congestion: str
    text: str
    """The file's text, as it was read."""
    timeline: Timeline = STILL
    """What it becomes later; hosts, paths and groups are as they are at second 0."""
    traces: tuple[Trace, ...] = ()
    """The files that the timeline was read from, besides the topology's own."""

    @cached_property
    def graph(self) -> networkx.DiGraph[str]:
        """Hosts as nodes carrying ``host=Host``, paths as edges carrying ``path=Path``; frozen."""
        graph: networkx.DiGraph[str] = networkx.DiGraph(name=self.name)
        for host in self.hosts:
            graph.add_node(host.name, host=host)
        for path in self.paths:
            graph.add_edge(path.source, path.target, path=path)
        return networkx.freeze(graph)

    @property
    def sha256(self) -> str:
        """SHA-256, in hex: of the text, or of the text and the SHA-256 (32 bytes) of each of the traces."""
        digest = hashlib.sha256(self.text.encode())
        for trace in self.traces:
            digest.update(hashlib.sha256(trace.text.encode()).digest())
        return digest.hexdigest()

    def host(self, name: str) -> Host:
        """Return the host of that name; raises TopologyError if there is none."""
        found = self._hosts_by_name.get(name)
        if found is None:
            raise TopologyError(f"{self.file}:{self.hosts[0].line}: no host {name!r}; "
                                f"{suggest(name, self._hosts_by_name)}")
        return found

    def path(self, source: str, target: str) -> Path:
        """Return the path between two different hosts; raises TopologyError if a host is unknown."""
        found = self._paths_by_ends.get((source, target))
        if found is None:
            self.host(target)
            raise TopologyError(f"{self.file}:{self.host(source).line}: {source!r} needs no path to itself; "
                                "name two hosts")
        return found

    # What runs asks often.
    @cached_property
    def _hosts_by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _paths_by_ends(self) -> dict[tuple[str, str], Path]:
        return {(path.source, path.target): path for path in self.paths}

    def select(self, names: Iterable[str]) -> Topology:
        """Return the part of the topology that those hosts make, in its own order.

        Raises TopologyError if a host is unknown.
        """
        chosen = {self.host(name).name for name in names}
        timeline = Timeline(
            tuple(part for change in self.timeline.changes
                  if (part := _select(change, chosen)) != Change(change.second)),
            tuple(flow for flow in self.timeline.traffic if chosen.issuperset((flow.source, flow.target))))
        return dataclasses.replace(_select(self, chosen), timeline=timeline)

    def faster(self, k: float) -> Topology:
        """Return the topology with rates × k, delays and jitter ÷ k, and the seconds of its timeline ÷ k.

        Bandwidth–delay products keep their bytes, so windows and queues stay as they are; a window's rate, window ÷
        RTT, grows k times by itself.
        """
        timeline = Timeline(
            tuple(dataclasses.replace(_faster(change, k), second=change.second / k)
                  for change in self.timeline.changes),
            tuple(dataclasses.replace(flow, start=flow.start / k, end=flow.end / k, rate=_times(flow.rate, k))
                  for flow in self.timeline.traffic))
        return dataclasses.replace(_faster(self, k), timeline=timeline)

    def state(self, second: float) -> Topology:
        """Return the topology as it is from that second of its timeline on, itself without a timeline.

        What may differ from second to second: rate, delay, jitter and loss of a path, up and down of a host, rate of
        a group.
        """
        return self._states[bisect_right(self.timeline.moments, second)]

    @cached_property
    def _states(self) -> tuple[Topology, ...]:
        """At second 0, and from each moment of the timeline on."""
        hosts, paths = dict(self._hosts_by_name), dict(self._paths_by_ends)
        groups = {group.name: group for group in self.groups}
        states = [dataclasses.replace(self, timeline=STILL)]
        for change in self.timeline.changes:
            hosts.update((host.name, host) for host in change.hosts)
            paths.update(((path.source, path.target), path) for path in change.paths)
            groups.update((group.name, group) for group in change.groups)
            states.append(dataclasses.replace(states[0], hosts=tuple(hosts.values()), paths=tuple(paths.values()),
                                              groups=tuple(groups.values())))
        return tuple(states)


T = TypeVar("T", Topology, Change)


def _select(of: T, chosen: set[str]) -> T:
    groups = (dataclasses.replace(group, paths=frozenset(pair for pair in group.paths if chosen.issuperset(pair)))
              for group in of.groups)
    return dataclasses.replace(
        of, hosts=tuple(host for host in of.hosts if host.name in chosen),
        paths=tuple(path for path in of.paths if chosen.issuperset((path.source, path.target))),
        groups=tuple(group for group in groups if group.paths))


def _faster(of: T, k: float) -> T:
    return dataclasses.replace(
        of, hosts=tuple(dataclasses.replace(host, up=_times(host.up, k), down=_times(host.down, k))
                        for host in of.hosts),
        paths=tuple(dataclasses.replace(path, rate=_times(path.rate, k), delay=path.delay / k, jitter=path.jitter / k)
                    for path in of.paths),
        groups=tuple(dataclasses.replace(group, rate=group.rate * k) for group in of.groups))


def _times(rate: float | None, k: float) -> float | None:
    return None if rate is None else rate * k


def load(file: File | str, text: str | None = None) -> Topology:
    """Read a topology, of the file or of `text` under its name; raises TopologyError, with the mend, if it is wrong."""
    return _Reader(Document(file, TopologyFile, TopologyError, text)).topology()


@dataclass(frozen=True)
class Row:
    """A path as it is shown to people: every field is text."""

    source: str
    target: str
    rate: str
    delay: str
    """One way."""
    rtt: str
    limits: str
    """Everything else that bounds the path: access, window, group, queue, jitter, loss."""


def rows(topology: Topology) -> list[Row]:
    """Return the rows of a table of the paths, in the topology's order."""
    return [Row(path.source, path.target, UNLIMITED if path.rate is None else format_rate(path.rate),
                format_time(path.delay), format_time(round_trip(topology, path)),
                ", ".join(_limits(topology, path))) for path in topology.paths]


def round_trip(topology: Topology, path: Path) -> float:
    """Seconds of the path's delay and of the delay back."""
    return path.delay + topology.path(path.target, path.source).delay


def _limits(topology: Topology, path: Path) -> Iterable[str]:
    up, down = topology.host(path.source).up, topology.host(path.target).down
    if up is not None:
        yield f"up {format_rate(up)}"
    if down is not None:
        yield f"down {format_rate(down)}"
    if path.window is not None:
        trip = round_trip(topology, path)
        yield f"window {format_size(path.window)}" + (f" = {format_rate(path.window / trip)}" if trip else "")
    for group in topology.groups:
        if (path.source, path.target) in group.paths:
            yield f"group {group.name} {format_rate(group.rate)}"
    if path.queue is not None:
        yield f"queue {format_size(path.queue)}"
    if path.jitter:
        yield f"jitter {format_time(path.jitter)}"
    if path.loss:
        yield f"loss {format_loss(path.loss)}"


class _Reader:
    """Makes a topology of its file's content, with the checks that need more than one field."""

    def __init__(self, document: Document[TopologyFile]) -> None:
        self.document = document
        self.content = document.content
        self.hosts = self._hosts()

    def topology(self) -> Topology:
        paths, groups = self._paths(), self._groups()
        later = TimelineReader(self.document, self.hosts, paths, groups, self._pairs)
        return Topology(self.content.name, str(self.document.file), later.hosts, later.paths, later.groups,
                        self.content.congestion, self.document.text, later.timeline, later.traces)

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
        if place in self.content.sites and not members:
            raise self.document.error(*location, message=f"site {place!r} has no hosts, and so no paths; give it one "
                                                         "under hosts, or leave it out here")
        if not members:
            known = [*self.content.hosts, *self.content.sites]
            raise self.document.error(*location, message=f"no host or site {place!r}; {suggest(place, known)}")
        return members

    def _pairs(self, matcher: Matcher, *location: str | int) -> set[tuple[str, str]]:
        """(source, target) of the paths that are meant."""
        if matcher.between and not (matcher.source or matcher.target):
            here = there = (*location, "between")
            source, target = matcher.between
        elif matcher.source and matcher.target and not matcher.between:
            here, there = (*location, "from"), (*location, "to")
            source, target = matcher.source, matcher.target
        else:
            raise self.document.error(*location, message="it does not say which paths are meant; write either "
                                                         "between: [a, b], or from: a and to: b")
        sources, targets = self._members(source, *here), self._members(target, *there)
        pairs = {(one, other) for one in sources for other in targets if one != other}
        if not pairs:
            raise self.document.error(*location, message=f"no path leads from {source!r} to {target!r}, which are one "
                                                         "host; name two")
        return pairs | {(other, one) for one, other in pairs if matcher.between}

    def _paths(self) -> tuple[Path, ...]:
        defaults = {field: (getattr(self.content.defaults, field), self.document.line("defaults", field))
                    for field in Limits.model_fields}
        # For each path its fields so far, each with the line that set it, and the line of the last rule.
        found = {pair: dict(defaults) for pair in permutations(self.content.hosts, 2)}
        lines: dict[tuple[str, str], int] = {}
        for index, rule in enumerate(self.content.paths):
            location = ("paths", index)
            said = {field: (getattr(rule, field), self.document.line(*location, field))
                    for field in Limits.model_fields if field in rule.model_fields_set}
            for pair in self._pairs(rule, *location):
                found[pair].update(said)
                lines[pair] = self.document.line(*location)
        return tuple(self._path(pair, said, lines.get(pair)) for pair, said in found.items())

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
