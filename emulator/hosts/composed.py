"""Hosts as the containers of one Compose project, which are there already: see compose.yaml, and `scenarios.founding`.

All containers of the project share /dev/shm (one's ``ipc`` is the others'), where the doors are; so the one that
directs the run, which is on no network, finds them there, and nothing outlives the containers.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as File
from typing import ClassVar

from emulator.hosts import behind_doors
from emulator.hosts.door import Door
from emulator.links import engines
from emulator.links.fidelity import PathFidelity, Progress
from emulator.links.namespace import LinkError, here
from emulator.topology import Topology

ROOM = File("/dev/shm/doors")
"""Of all doors; root's alone."""
UP = "/run/links-up"
"""A file in every host while its links are up, for its health check."""


def doors() -> set[str]:
    """Names of the containers whose doors are there."""
    return {entry.name for entry in ROOM.iterdir()} if ROOM.exists() else set()


def tie(name: str) -> Door:
    """Have the container of that name end when the door that is returned is closed. Raises LinkError or OSError."""
    tied = Door(name, ROOM / name, ROOM)
    tied.stay()
    return tied


def preflight(topology: Topology, engine: str = "auto") -> None:
    """Refuse what containers cannot be. Raises TopologyError."""
    behind_doors.refuse(topology, engine)


class Network(behind_doors.Network):
    """The hosts and paths of `topology` in containers of those names; links that are not what it says are refused."""

    runtime = "compose"
    _chosen: ClassVar[dict[str, engines.MakesEngine]] = {}
    _probed = False

    def _door(self, host: str) -> Door:
        return Door(host, ROOM / host, self._ledger.gate)

    def _remove(self) -> None:
        if self._ledger.gate.exists():
            for host in self._doors.values():
                host.run(["sh", "-c", _UNDO])
                host.close()
        self._ledger.clear()

    @contextmanager
    def rendezvous(self) -> Iterator[str]:
        """A file, not yet there, that programs on all hosts may make and share."""
        yield f"/dev/shm/{secrets.token_hex(8)}"

    def _claim(self) -> engines.MakesEngine:
        wish = behind_doors.refuse(self.shaped, self._wish)
        if wish not in self._chosen:      # the trial stays in this container, so there can be one
            self._chosen[wish] = engines.choose(wish, here())
        self._ledger.open([], self.runtime)
        return self._chosen[wish]

    def _make_hosts(self) -> None:
        for name, host in self._doors.items():
            said = json.loads(host.run(["ip", "-json", "-4", "address", "show", "dev", self.device]))
            self.addresses[name] = said[0]["addr_info"][0]["local"]
        for name, host in self._doors.items():
            host.ip(self._addressing(name))

    def up(self) -> None:
        """Make the links; the hosts are healthy then."""
        super().up()
        for host in self._doors.values():
            host.run(["touch", UP])

    def probe(self, progress: Progress | None = None) -> list[PathFidelity]:
        """Measure every directed path. Raises LinkError if the first time one is not what the topology says."""
        found = super().probe(progress)
        wrong = [path for path in found if not path.valid]
        if wrong and not self._probed:
            raise LinkError("refused, as the links are not what the topology says; something else keeps this machine "
                            "busy, perhaps:\n" + "\n".join(
                                f"  {path.source} -> {path.target}: goodput {path.goodput_error:+.1%}, round trip "
                                f"{path.rtt * 1e3:.2f} ms, expected {path.expected_rtt * 1e3:.2f}" for path in wrong))
        self._probed = True
        return found


_UNDO = f"""rm -f {UP}
tc qdisc del dev eth0 root; tc qdisc del dev eth0 ingress
ip link del {behind_doors.ACCESS}; ip link del ifb0
ip -4 route show dev eth0 | grep congctl | while read route rest; do ip route del "$route" dev eth0; done
printf '*mangle\\nCOMMIT\\n' | iptables-restore
true"""
"""Takes back what a network made of a host; what was not made is no error."""
