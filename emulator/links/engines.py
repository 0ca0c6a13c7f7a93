"""What holds packets for a path's delay, chosen by trying."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as File
from typing import Protocol

from emulator.links import netem, nfqueue
from emulator.links.namespace import LinkError, Namespace
from emulator.topology import Topology, TopologyError

Pair = tuple[str, str]


class Engine(Protocol):
    """The delays of all paths of one network, by (source, target)."""

    name: str

    @property
    def held(self) -> set[Pair]:
        """The paths that it delays; others are shorter than its own delay and left alone."""

    @property
    def scheduling(self) -> str:
        """How what holds the packets is scheduled: kernel, fifo, nice or normal."""

    def up(self, topology: Topology) -> None:
        """Delay the paths of `topology`. Raises LinkError."""

    def hold(self, seconds: Mapping[Pair, float]) -> None:
        """Hold packets of those paths, all of them in `held`, that long from now on. Raises LinkError."""

    def check(self) -> None:
        """Raise LinkError, naming the host, if packets are not held as they should be."""

    def down(self) -> None:
        """End what runs outside of the kernel. Twice is fine."""


class MakesEngine(Protocol):
    """An engine's class."""

    def __call__(self, namespaces: Mapping[str, Namespace], addresses: Mapping[str, str], device: str,
                 logs: File) -> Engine:
        """For hosts by name, each with `device`; what goes wrong outside the kernel is written to `logs`."""


ENGINES = ("netem", "nfqueue")
"""By preference."""


def choose(wish: str, topology: Topology) -> MakesEngine:
    """The engine of that name, or with ``auto`` the best that works here; tried, not guessed from a version.

    Raises ValueError for an unknown name, LinkError if this machine cannot, and TopologyError if `topology` asks for
    what the engine cannot do.
    """
    if wish not in ("auto", *ENGINES):
        raise ValueError(f"no delay engine {wish!r}; there are auto, {', '.join(ENGINES)}")
    reasons = []
    if wish in ("auto", "netem"):
        reason = netem.why_not()
        if reason is None:
            return netem.Netem
        reasons.append(f"netem: {reason}")
    if wish in ("auto", "nfqueue"):
        _need_constant(topology)
        reason = nfqueue.why_not()
        if reason is None:
            return nfqueue.Nfqueue
        reasons.append(f"nfqueue: {reason}")
    raise LinkError("this machine cannot delay packets: " + "; ".join(reasons) + ". It needs a kernel with "
                    "netem (modprobe sch_netem sch_ingress act_mirred ifb) or netfilter queues (modprobe xt_NFQUEUE "
                    "nfnetlink_queue)")


def _need_constant(topology: Topology) -> None:
    for path in topology.paths:
        if path.jitter or path.loss:
            what = "jitter" if path.jitter else "loss"
            raise TopologyError(f"{topology.file}:{path.line}: not yet: {what} ({path.source} -> {path.target}) "
                                "needs a kernel with netem; engine nfqueue delays by a constant time. Remove it, or "
                                "use another machine")
