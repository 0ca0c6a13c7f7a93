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
      - {between: [seattle-ai, seattle-gateway], rate: 30 MB/s, delay: 200 us}    # hosts, both directions
      - {from: seattle-ai, to: newyork-1, loss: 0.1 %}                            # one direction

    groups:                                 # paths that share one bottleneck
      transatlantic: {rate: 5 MB/s, paths: [{from: seattle, to: new-york}]}

The rules under ``paths`` are read **in order, and each sets the fields it names** on every path it matches: write the
general ones first, the exceptions below. A site stands for all its hosts, so ``[seattle, seattle]`` means the paths
inside it. Every ordered pair of hosts must be matched by a rule and have a ``delay`` in the end. The fields of a path:

========  ========================================================================================================
rate      capacity, counting Ethernet frames with their headers; ``unlimited`` if nothing says otherwise
delay     one way; always needed
jitter    spread of the delay around its value, at most the delay itself; 0 s
loss      share of the packets lost; 0 %
queue     bytes that may wait for the rate; chosen by the link engine
window    bytes that one TCP connection may have in flight; ``unlimited``
========  ========================================================================================================
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as File

import networkx

from emulator.document import DocumentError, suggest
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
    paths: list[Path]
    """By the index of the source, then of the target."""
    groups: tuple[Group, ...]
    congestion: str
    text: str
    """The file's text, as it was read."""

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
        """SHA-256 of the text, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def host(self, name: str) -> Host:
        """Return the host of that name; raises TopologyError if there is none."""
        if name not in self.graph:
            raise TopologyError(f"{self.file}:{self.hosts[0].line}: no host {name!r}; "
                                f"{suggest(name, (host.name for host in self.hosts))}")
        found: Host = self.graph.nodes[name]["host"]
        return found

    def path(self, source: str, target: str) -> Path:
        """Return the path between two different hosts; raises TopologyError if a host is unknown."""
        if self.host(source) == self.host(target):
            raise TopologyError(f"{self.file}:{self.host(source).line}: {source!r} needs no path to itself; "
                                "name two hosts")
        found: Path = self.graph.edges[source, target]["path"]
        return found

    def select(self, names: Iterable[str]) -> Topology:
        """Return the part of the topology that those hosts make, in its own order.

        Raises TopologyError if a host is unknown.
        """
        chosen = {self.host(name).name for name in names}
        groups = (dataclasses.replace(group, paths=frozenset(pair for pair in group.paths if chosen.issuperset(pair)))
                  for group in self.groups)
        return dataclasses.replace(
            self, hosts=tuple(host for host in self.hosts if host.name in chosen),
            paths=[path for path in self.paths if chosen.issuperset((path.source, path.target))],
            groups=tuple(group for group in groups if group.paths))

    def faster(self, k: float) -> Topology:
        """Return the topology with rates × k, delays and jitter ÷ k.

        Bandwidth–delay products keep their bytes, so windows and queues stay as they are; a window's rate, window ÷
        RTT, grows k times by itself.
        """
        def times(rate: float | None) -> float | None:
            return None if rate is None else rate * k

        return dataclasses.replace(
            self,
            hosts=tuple(dataclasses.replace(host, up=times(host.up), down=times(host.down)) for host in self.hosts),
            paths=[dataclasses.replace(path, rate=times(path.rate), delay=path.delay / k, jitter=path.jitter / k)
                   for path in self.paths],
            groups=tuple(dataclasses.replace(group, rate=group.rate * k) for group in self.groups))


def load(file: File | str) -> Topology:
    """Read a topology; raises TopologyError, with the mend, for anything that is wrong with it."""
    from emulator.topology_file import read  # it makes the classes above, so it can only be imported after them

    return read(file)


@dataclass(frozen=True)
class Row:
    """A path as it is shown to people: each field text."""

    source: str
    target: str
    rate: str
    delay: str
    """One way."""
    rtt: str
    limits: str
    """Everything else that bounds it, separated by commas: access, window, group, queue, jitter, loss."""


def rows(topology: Topology) -> list[Row]:
    """Return one row a path, in the topology's order, for a table."""
    return [Row(path.source, path.target, "unlimited" if path.rate is None else format_rate(path.rate),
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
