"""What holds packets for a path's delay, chosen by trying.

All engines do the same, so that a result does not depend on which one a machine has. Each packet of a path is lost with
the probability `loss`, or held for `delay` and a share of `jitter`: a normal distribution with that standard deviation,
cut off at four of them either way and where the hold would be negative (netem's ``distribution normal`` is a table of
16-bit numbers that are 8,192 to a standard deviation: iproute2, netem/normal.c and netem/README.distribution). Packets
keep their order, as those of one flow mostly do on the Internet: one that drew a short hold waits for those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as File
from typing import Protocol

from emulator.links import netem, nfqueue, tun
from emulator.links.namespace import LinkError, Namespace
from emulator.topology import Topology

Pair = tuple[str, str]


class Engine(Protocol):
    """The delays, jitter and loss of the paths that end at some hosts of one network, by (source, target)."""

    name: str

    @property
    def held(self) -> set[Pair]:
        """The paths that it delays; others are shorter than its own delay and left alone."""

    @property
    def stamp(self) -> dict[str, object]:
        """What to keep with a result: how what holds the packets is scheduled, and whether chance is seeded."""

    def up(self, topology: Topology) -> None:
        """Hold the packets of the paths of `topology`, from now on. Raises LinkError."""

    def change(self, topology: Topology, bias: Mapping[Pair, float]) -> None:
        """Hold them as this later state of the topology says; each for its delay less its path's `bias`, in seconds.

        No packet is lost by that and none overtakes another. A path that was too short to be held and no longer is
        joins :attr:`held`; one that becomes too short is held for no time. Raises LinkError.
        """

    def check(self) -> None:
        """Raise LinkError, naming the host, if packets are not held as they should be."""

    def down(self) -> None:
        """End what runs outside of the kernel. Twice is fine."""


class MakesEngine(Protocol):
    """An engine's class."""

    def __call__(self, namespaces: Mapping[str, Namespace], addresses: Mapping[str, str], device: str,
                 logs: File) -> Engine:
        """For the hosts in `namespaces`, each with `device`; what goes wrong outside the kernel is written to `logs`.

        Paths that end at other hosts of the topology are the business of another engine.
        """


_ENGINES: dict[str, tuple[Callable[[Namespace | None], str | None], MakesEngine]] = {
    "netem": (netem.why_not, netem.Netem),
    "nfqueue": (nfqueue.why_not, nfqueue.Nfqueue),
    "tun": (tun.why_not, tun.Tun),
}
ENGINES = tuple(_ENGINES)
"""By preference."""


def choose(wish: str, place: Namespace | None = None) -> MakesEngine:
    """The engine of that name, or with ``auto`` the best that works; tried, not guessed from a version.

    Tried in `place`, which keeps the devices and rules of the trial, or in a namespace of its own. Raises
    ValueError for an unknown name, LinkError if this machine cannot.
    """
    if wish not in ("auto", *ENGINES):
        raise ValueError(f"no delay engine {wish!r}; there are auto, {', '.join(ENGINES)}")
    reasons = []
    for name, (why_not, engine) in _ENGINES.items():
        if wish in ("auto", name):
            reason = why_not(place)
            if reason is None:
                return engine
            reasons.append(f"{name}: {reason}")
    raise LinkError("this machine cannot delay packets: " + "; ".join(reasons) + ". It needs a kernel with "
                    "netem (modprobe sch_netem sch_ingress act_mirred ifb), netfilter queues (modprobe xt_NFQUEUE "
                    "nfnetlink_queue) or TUN devices (modprobe tun sch_ingress act_mirred)")
