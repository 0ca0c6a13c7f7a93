"""Delay, jitter and loss by the kernel's netem (tc-netem(8)), where packets come in.

Arriving packets of a delayed path are redirected to an IFB device with one netem a path. There, and not under the
sender's rate, for two reasons: netem lets go of a packet's sender, so TCP would no longer feel its own queue (TCP small
queues); and both engines then have the same order of rate and delay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path as File

from emulator.links.namespace import LinkError, Namespace, scratch
from emulator.topology import Path, Topology

FLOOR = 50e-6
"""Seconds: about what the detour through the IFB device costs; shorter delays are left alone."""
_IFB = "ifb0"
_SMALLEST = 66             # bytes of a frame with a bare acknowledgement
_UNLIMITED = 1.25e9        # bytes per second, to size a limit where there is no rate: 10 Gbit/s
_WIDE_OPEN = 12.5e9        # bytes per second of classes that only sort

Pair = tuple[str, str]


def why_not(place: Namespace | None = None) -> str | None:
    """Try it in `place`, or in a namespace of its own: None if this machine can, else the reason."""
    try:
        with scratch() if place is None else nullcontext(place) as trial:
            trial.ip([f"link add {_IFB} type ifb"])
            path = Path("a", "b", rate=None, delay=2e-3, jitter=1e-3, loss=0.01)
            trial.tc(tree({"10.0.0.1": path}, "lo"))
    except (LinkError, OSError) as error:
        return str(error)
    return None


def limit(path: Path) -> int:
    """Packets that netem must be able to hold so that it drops none of its own accord.

    What is on the way: the rate times the longest delay, in the smallest packets (netem counts packets, and a path
    may carry nothing but acknowledgements), and room for 10 ms more. The queue that drops is the rate's, before it.
    """
    return math.ceil((path.rate or _UNLIMITED) * (path.delay + 4 * path.jitter + 0.01) / _SMALLEST)


def options(path: Path, hold: float) -> str:
    """The words after ``netem`` for `path`, with `hold` seconds in the place of its delay."""
    words = f"limit {limit(path)} delay {hold * 1e6:.1f}us"
    if path.jitter:
        words += f" {path.jitter * 1e6:.1f}us distribution normal"
    if path.loss:
        words += f" loss {path.loss * 100:.6f}%"
    return words


def tree(paths: Mapping[str, Path], device: str) -> list[str]:
    """Lines for ``tc -batch`` at a receiver: `paths` that end there, by the address that they come from."""
    lines = [f"qdisc add dev {device} handle ffff: ingress", f"qdisc add dev {_IFB} root handle 1: htb"]
    for number, (address, path) in enumerate(paths.items(), start=1):
        match = f"protocol ip prio 1 u32 match ip src {address}/32"
        lines += [
            f"class add dev {_IFB} parent 1: classid 1:{number:x} htb rate {_WIDE_OPEN:.0f}bps quantum 200000",
            f"qdisc add dev {_IFB} parent 1:{number:x} handle {number + 1:x}: netem {options(path, path.delay)}",
            f"filter add dev {_IFB} parent 1: {match} flowid 1:{number:x}",
            f"filter add dev {device} parent ffff: {match} action mirred egress redirect dev {_IFB}",
        ]
    return lines


class Netem:
    """The delays of all paths of a network, by :data:`Pair` (source, target)."""

    name = "netem"
    scheduling = "kernel"

    def __init__(self, namespaces: Mapping[str, Namespace], addresses: Mapping[str, str], device: str,
                 logs: File) -> None:
        self._namespaces = namespaces
        self._addresses = addresses
        self._device = device
        self._paths: dict[Pair, tuple[int, Path]] = {}      # with the path's number at its receiver

    @property
    def held(self) -> set[Pair]:
        """The paths that pass a netem."""
        return set(self._paths)

    def up(self, topology: Topology) -> None:
        """Start holding packets on each path that has a delay, jitter or loss worth it. Raises LinkError."""
        for host in topology.hosts:
            paths = {self._addresses[path.source]: path for path in topology.paths
                     if path.target == host.name and (path.delay >= FLOOR or path.jitter or path.loss)}
            for number, path in enumerate(paths.values(), start=1):
                self._paths[path.source, path.target] = (number, path)
            if paths:
                self._namespaces[host.name].ip([f"link add {_IFB} type ifb", f"link set {_IFB} up"])
                self._namespaces[host.name].tc(tree(paths, self._device))

    def hold(self, seconds: Mapping[Pair, float]) -> None:
        """Hold packets of those paths that long from now on. Raises LinkError."""
        changes: dict[str, list[str]] = {}
        for pair, wait in seconds.items():
            number, path = self._paths[pair]
            words = options(path, max(0.0, wait))
            changes.setdefault(path.target, []).append(
                f"qdisc change dev {_IFB} parent 1:{number:x} handle {number + 1:x}: netem {words}")
        for target, lines in changes.items():
            self._namespaces[target].tc(lines)

    def check(self) -> None:
        """Nothing of it can die before its namespace does."""

    def down(self) -> None:
        """Nothing is left of it when its namespace is gone."""
        self._paths.clear()
