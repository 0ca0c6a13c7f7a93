"""What the engines outside the kernel have in common: a :mod:`~emulator.links.delayd` at each receiver.

They stand where packets come in, not where they go out: there a packet held back would still count as unsent, and TCP
would send no more (TCP small queues).
"""

from __future__ import annotations

import json
import select
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path as File
from statistics import median
from typing import IO

from emulator.links.holding import seed
from emulator.links.namespace import LinkError, Namespace
from emulator.links.shaping import states
from emulator.topology import Path, Topology

_PATIENCE = 10.0      # seconds for the process to start or to answer

Pair = tuple[str, str]


class UserSpace(ABC):
    """The delays of the paths that end at some hosts of a network, by :data:`Pair` (source, target).

    An engine says what a path is called in its processes and how its packets are led there.
    """

    name: str
    FLOOR: float
    """Seconds that the passage costs even with nothing to wait for, so shorter delays are left alone."""

    def __init__(self, namespaces: Mapping[str, Namespace], addresses: Mapping[str, str], device: str,
                 logs: File) -> None:
        self._namespaces = namespaces
        self._addresses = addresses
        self._device = device
        self._logs = logs
        self._daemons: dict[str, Daemon] = {}
        self._laws: dict[Pair, tuple[float, float, float, int]] = {}

    @abstractmethod
    def _key(self, pair: Pair) -> str:
        """What the processes call the path."""

    def _ready(self, namespace: Namespace) -> None:      # noqa: B027 - an engine may have nothing to do then
        """A process has begun to serve the host in `namespace`."""

    @abstractmethod
    def _lead(self, namespace: Namespace, pairs: Iterable[Pair]) -> None:
        """From now on packets of those paths, which end in `namespace`, pass its process."""

    @abstractmethod
    def _lost(self, namespace: Namespace) -> int:
        """Packets that the kernel had to drop before the process of `namespace` saw them."""

    @property
    def held(self) -> set[Pair]:
        """The paths that pass a process."""
        return set(self._laws)

    @property
    def stamp(self) -> dict[str, object]:
        """The least of fifo, nice and normal as the processes are scheduled; none if no path is long enough."""
        kinds = {daemon.scheduling for daemon in self._daemons.values()}
        return {"scheduling": next((kind for kind in ("normal", "nice", "fifo") if kind in kinds), "none"),
                "seeded": True}

    def up(self, topology: Topology) -> None:
        """Start holding packets on each path whose delay is not below :data:`FLOOR`. Raises LinkError.

        Where a path becomes long later in the topology's timeline, its process is there from now on.
        """
        for target in {path.target for state in states(topology) for path in state.paths if self._worth_it(path)}:
            if target in self._namespaces:
                self._serve(target)
        self.change(topology, {})

    def change(self, topology: Topology, bias: Mapping[Pair, float]) -> None:
        """Hold packets as `topology` says from now on. Raises LinkError if a process has died."""
        usual = median(bias.values()) if bias else 0.0
        laws: dict[str, dict[Pair, tuple[float, float, float, int]]] = {}
        for path in topology.paths:
            pair = path.source, path.target
            if path.target in self._namespaces and (pair in self._laws or self._worth_it(path)):
                law = (max(0.0, path.delay - bias.get(pair, usual)), path.jitter, path.loss, seed(topology.name, *pair))
                if self._laws.get(pair) != law:
                    laws.setdefault(path.target, {})[pair] = law
        for target, changed in laws.items():
            self._apply(target, changed)

    def _worth_it(self, path: Path) -> bool:
        return path.delay >= self.FLOOR or path.jitter > 0 or path.loss > 0

    def _apply(self, target: str, laws: Mapping[Pair, tuple[float, float, float, int]]) -> None:
        if target not in self._daemons:
            self._serve(target)
        self._daemons[target].configure({self._key(pair): law for pair, law in laws.items()})
        # Only now may packets go there: without a process that expects them they are lost.
        upcoming = [pair for pair in laws if pair not in self._laws]
        if upcoming:
            self._lead(self._namespaces[target], upcoming)
        self._laws.update(laws)

    def _serve(self, target: str) -> None:
        namespace = self._namespaces[target]
        self._daemons[target] = Daemon(namespace, self.name, f"host {target}", self._logs / f"{target}.log")
        self._daemons[target].configure({})      # answered once it has what it reads from
        self._ready(namespace)

    def check(self) -> None:
        """Raise LinkError if a process has died, since nothing would pass it, or fell behind and lost packets."""
        for target, daemon in self._daemons.items():
            daemon.check()
            lost = self._lost(self._namespaces[target])
            if lost:
                raise LinkError(f"host {target}: the delay process fell behind, and {lost} packets were lost")

    def down(self) -> None:
        """End the processes. Twice is fine."""
        for daemon in self._daemons.values():
            daemon.end()
        self._daemons.clear()
        self._laws.clear()


class Daemon:
    """A delayd of that `kind` in `namespace`; `where` names it in errors."""

    def __init__(self, namespace: Namespace, kind: str, where: str, log: File | None) -> None:
        self.where = where
        self.scheduling = "normal"
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else log.open("w+b")  # noqa: SIM115
        self._process = namespace.start("emulator.links.delayd", kind, errors=self._log)

    def configure(self, laws: Mapping[str, tuple[float, float, float, int]]) -> None:
        """Have paths held by (seconds, jitter, loss, seed). Raises LinkError if the process ends or does not answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(laws).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        if not select.select([self._process.stdout], [], [], _PATIENCE)[0]:
            raise LinkError(f"{self.where}: the delay process (pid {self._process.pid}) has not answered for "
                            f"{_PATIENCE:.0f} s")
        answer = self._process.stdout.readline()
        if not answer:
            raise self._died()
        self.scheduling = json.loads(answer)["scheduling"]

    def check(self) -> None:
        """Raise LinkError if the process has ended."""
        if self._process.poll() is not None:
            raise self._died()

    def _died(self) -> LinkError:
        code = self._process.wait(_PATIENCE)
        self._log.seek(0)      # it is shared with the process, which has ended
        said = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        return LinkError(f"{self.where}: the delay process (pid {self._process.pid}) ended with code {code}"
                         f"{': ' + said[0] if said else ''}; what is sent there is lost")

    def end(self) -> None:
        """Kill it: it has nothing to put in order."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()
