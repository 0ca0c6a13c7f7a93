"""What every host runtime offers: the hosts and paths of a topology, made for real, as a context manager."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from emulator.links.fidelity import PathFidelity, Progress
from emulator.links.namespace import Namespace, Program
from emulator.topology import Topology


class Runtime(Protocol):
    """A network that is made by :meth:`up` and gone after :meth:`down`."""

    topology: Topology
    shaped: Topology
    """The topology as it is on the wire: ``topology.faster(speedup)``."""
    speedup: float
    run: str
    """The run's name, which all that is made carries."""
    device: str
    """Each host's network device."""
    python: str
    """The Python that has this code, on a host."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """IPv4 addresses, by host."""

    @property
    def namespaces(self) -> Mapping[str, Namespace]:
        """What the links of a host are made in, by host."""

    @property
    def stamp(self) -> dict[str, object]:
        """How the network was made, to be kept with every result; empty before it is up."""

    def up(self) -> None:
        """Make hosts and links. Raises TopologyError or LinkError, with nothing left."""

    def down(self) -> None:
        """Take everything away again. Twice is fine."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...

    def check(self) -> None:
        """Raise LinkError, naming the host, if the links no longer do what they should."""

    def change(self, topology: Topology) -> None:
        """Have the links do what `topology`, a state of the same hosts at life size, says; nothing waiting is lost.

        Raises TopologyError for what cannot change live, with nothing changed.
        """

    def probe(self, progress: Progress | None = None) -> list[PathFidelity]:
        """Measure every directed path: see :func:`emulator.links.fidelity.probe`."""

    def spawn(self, host: str, command: Sequence[str]) -> Program:
        """Start a program on a host, joined by pipes outside the shaped links; its standard error is ours.

        It has this code on its path (``[runtime.python, "-m", "scenarios..."]``) and no privileges but its user's. It
        is killed when the network goes down.
        """

    def entrance(self, host: str) -> Callable[[], None] | None:
        """What moves a process that has one thread into the host; None where hosts take programs alone."""

    def own_clock(self, host: str) -> bool:
        """Whether the host's monotonic clock is its own, and not that of this machine."""

    def rendezvous(self) -> AbstractContextManager[str]:
        """Where ranks on all hosts meet: a file, not yet there, that they may make and share outside the shaped links.

        Or, where hosts share no file, ``tcp://HOST:PORT/PART``, a part of a store that is there.
        """


class MakesRuntime(Protocol):
    """A runtime's class."""

    def __call__(self, topology: Topology, run: str, engine: str, speedup: float, /) -> Runtime:
        """For the hosts of `topology`, life-size, run `speedup` times faster, with that delay engine (or ``auto``)."""


class Module(Protocol):
    """The module of a runtime."""

    Network: MakesRuntime

    def preflight(self, topology: Topology, engine: str = "auto") -> object:
        """Refuse what this machine cannot make of `topology`, as it is on the wire; nothing stays.

        Raises TopologyError or LinkError.
        """


RUNTIMES = ("netns", "docker")
"""That can be chosen; compose is the one in compose.yaml."""
EXTERNAL = "external"
"""Machines of the user's, which are not made (:mod:`emulator.hosts.external`)."""
_MODULES = {"netns": "emulator.hosts.netns", "docker": "emulator.hosts.containers",
            "compose": "emulator.hosts.composed"}


def chosen(name: str) -> Module:
    """The module of the runtime of that name; only now imported, as each needs something of its own."""
    module: Module = importlib.import_module(_MODULES[name])
    return module
