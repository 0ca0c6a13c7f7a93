"""Hosts that are containers, reached through their doors: links between them, whoever makes the containers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from emulator.hosts import netns
from emulator.hosts.door import Door
from emulator.links import shaping
from emulator.links.namespace import Program
from emulator.topology import Topology, TopologyError

ACCESS = "access0"
"""The device, an IFB, that holds a host's access down."""
RP_FILTER = {"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.default.rp_filter": "0"}
"""Kernel settings that engine tun needs: what it gives back to its host comes from no device that leads to its sender.
"""


class Network(netns.Network, ABC):
    """A network of containers; one that makes or finds them says where their doors are, and what their addresses.

    A container has NET_ADMIN (and SYS_NICE, so that delays are on time) and is never privileged; what is spawned in it
    is an ordinary user without capabilities. Paths of a group are routed through a container `via` that holds the
    bottleneck.
    """

    python = "python3"
    via: str | None = None
    """Address of the hub."""

    def __init__(self, topology: Topology, run: str, engine: str = "auto", speedup: float = 1.0) -> None:
        super().__init__(topology, run, engine, speedup)
        self._doors = {name: self._door(name) for name in self._index}
        self.namespaces = self._doors
        self._hub = self._router = self._door("hub")

    @abstractmethod
    def _door(self, host: str) -> Door:
        """Where the host's door is."""

    @abstractmethod
    def _remove(self) -> None:
        """Take away what was made, with the run's ledger."""

    def down(self) -> None:
        """Take everything away again. Twice is fine; in a process forked from the maker's it does nothing."""
        if os.getpid() != self._maker:
            return
        if self._engine is not None:
            self._engine.down()
            self._engine = None
        for door in (*self._doors.values(), self._router):
            door.close()
        self._remove()

    def spawn(self, host: str, command: Sequence[str]) -> Program:
        """Start a program on the host as a user without capabilities, joined by pipes."""
        return self._doors[self.topology.host(host).name].spawn(command)

    def entrance(self, host: str) -> None:
        """There is none: a container takes programs alone."""

    def _addressing(self, host: str) -> list[str]:
        # Docker before 28 gives an internal network a way out that leads nowhere.
        lines = ["route flush exact default", *self._segments(host)]
        for peer in self._index:
            if peer != host:
                grouped = shaping.groups_of(self.shaped, self.shaped.path(host, peer))
                way = f"via {self.via}" if grouped else "scope link"
                lines.append(f"route add {self.addresses[peer]}/32 {way} dev {self.device} {self._route(host, peer)}")
        return lines

    def _shape(self) -> None:
        for name, door in self._doors.items():
            if shaping.down(self._made, name, ACCESS, self.addresses):
                door.ip([f"link add {ACCESS} type ifb", f"link set {ACCESS} up"])
                door.tc([f"qdisc add dev {self.device} handle ffff: ingress",
                         f"filter add dev {self.device} parent ffff: protocol ip prio 1 u32 match u32 0 0 "
                         f"action mirred egress redirect dev {ACCESS}"])
        if self.shaped.groups:
            self._router.ip([line for index in range(len(self.shaped.groups))
                             for line in (f"link add group{index} type ifb", f"link set group{index} up")])
            self._router.tc(self._detours())
        for door, lines in zip((*self._doors.values(), self._router), self._rates(), strict=True):
            door.tc(lines)

    def _detours(self) -> list[str]:
        """Lines that lead the paths of each group through its device, once or twice, in the hub's only port."""
        index = {group.name: f"group{index}" for index, group in enumerate(self.shaped.groups)}
        lines = [f"qdisc add dev {self.device} clsact"]
        for path in self.shaped.paths:
            for hook, name in zip(("ingress", "egress"), shaping.groups_of(self.shaped, path), strict=False):
                lines.append(f"filter add dev {self.device} {hook} protocol ip prio 1 u32 "
                             f"match ip src {self.addresses[path.source]}/32 "
                             f"match ip dst {self.addresses[path.target]}/32 "
                             f"action mirred egress redirect dev {index[name]}")
        return lines

    def _rates(self, state: Topology | None = None) -> list[list[str]]:
        hosts = [shaping.up(self._made, name, self.device, self.addresses, state)
                 + shaping.down(self._made, name, ACCESS, self.addresses, state) for name in self._index]
        hub = [line for index, group in enumerate(self._made.groups)
               for line in shaping.group(self._made, group.name, f"group{index}", self.addresses, state)]
        return [*hosts, hub]


def refuse(topology: Topology, engine: str = "auto") -> str:
    """Raise TopologyError if containers cannot make the topology, as it is on the wire; returns the engine to try.

    A host's access down and all engines but nfqueue need the same place, where packets come in.
    """
    netns.refuse(topology, [host.name for host in topology.hosts])
    limited = [host for host in topology.hosts if host.down is not None]
    if not limited or engine == "nfqueue":
        return engine
    if engine != "auto":
        raise TopologyError(f"{topology.file}:{limited[0].line}: in a container engine {engine} and a host's access "
                            f"down ({limited[0].name}) need the same hook; use --engine nfqueue, or --runtime netns")
    return "nfqueue"
