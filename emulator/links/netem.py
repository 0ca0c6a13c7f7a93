"""Delay, jitter and loss by the kernel's netem (tc-netem(8)), where packets come in.

Arriving packets of a delayed path are redirected to an IFB device with one netem a path. There, and not under the
sender's rate, for two reasons: netem lets go of a packet's sender, so TCP would no longer feel its own queue (TCP small
queues); and all engines then have the same order of rate and delay.

A netem that only delays and has jitter lets packets overtake each other. With a rate of its own it does not: a packet
is then let go at the earliest when the one before it is (netem_enqueue in net/sched/sch_netem.c). So it has one, too
high to take time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path as File
from statistics import median

from emulator.links.holding import CUT, seed
from emulator.links.namespace import LinkError, Namespace, scratch
from emulator.topology import Path, Topology
from emulator.topology_file import LARGEST_QUEUE

FLOOR = 50e-6
"""Seconds: about what the detour through the IFB device costs; shorter delays are left alone."""
_IFB = "ifb0"
_SMALLEST = 66             # bytes of a frame with a bare acknowledgement
_WIDE_OPEN = 12.5e9        # bytes per second of what does not limit
_UNLIMITED = 1.25e9        # bytes per second, to size a limit where there is no rate: 10 Gbit/s

Pair = tuple[str, str]


def why_not(place: Namespace | None = None) -> str | None:
    """Try it in `place`, or in a namespace of its own: None if this machine can, else the reason."""
    try:
        with scratch() if place is None else nullcontext(place) as trial:
            trial.ip([f"link add {_IFB} type ifb"])
            path = Path("a", "b", rate=None, delay=2e-3, jitter=1e-3, loss=0.01)
            trial.tc([*_roots("lo"), *_leaf(1, "10.0.0.1", "lo", options(path))])
    except (LinkError, OSError) as error:
        return str(error)
    return None


def takes_seeds() -> bool:
    """Whether netem can be told where chance begins (iproute2 and Linux 6.6; an older kernel ignores it silently)."""
    try:
        with scratch() as trial:
            trial.tc(["qdisc add dev lo root netem loss 1% seed 7"])
            shown = json.loads(trial.run(["tc", "-json", "qdisc", "show", "dev", "lo"]))
    except (LinkError, OSError):
        return False
    return any(qdisc.get("options", {}).get("seed") == 7 for qdisc in shown)


def limit(path: Path) -> int:
    """Packets that netem must be able to hold so that it drops none of its own accord.

    What is on the way: the rate times the longest delay, in the smallest packets (netem counts packets, and a path
    may carry nothing but acknowledgements), and room for 10 ms more. The queue that drops is the rate's, before it.
    """
    return min(LARGEST_QUEUE,
               math.ceil((path.rate or _UNLIMITED) * (path.delay + CUT * path.jitter + 0.01) / _SMALLEST))


def options(path: Path, bias: float = 0.0, begin: int | None = None) -> str:
    """The words after ``netem`` for `path`, let go `bias` seconds early; chance begins at `begin` if it is given."""
    words = f"limit {limit(path)} delay {max(0.0, path.delay - bias) * 1e6:.1f}us"
    if path.jitter:
        words += f" {path.jitter * 1e6:.1f}us distribution normal"
    if path.loss:
        words += f" loss {path.loss * 100:.6f}%"
    if begin is not None and (path.jitter or path.loss):
        words += f" seed {begin}"
    return f"{words} rate {_WIDE_OPEN:.0f}bps"


def _roots(device: str) -> list[str]:
    return [f"qdisc add dev {device} handle ffff: ingress", f"qdisc add dev {_IFB} root handle 1: htb"]


def _leaf(number: int, address: str, device: str, words: str) -> list[str]:
    """Lines that lead what comes from `address` through a netem of its own."""
    match = f"protocol ip prio 1 u32 match ip src {address}/32"
    return [
        f"class add dev {_IFB} parent 1: classid 1:{number:x} htb rate {_WIDE_OPEN:.0f}bps quantum 200000",
        f"qdisc add dev {_IFB} parent 1:{number:x} handle {number + 1:x}: netem {words}",
        f"filter add dev {_IFB} parent 1: {match} flowid 1:{number:x}",
        f"filter add dev {device} parent ffff: {match} action mirred egress redirect dev {_IFB}",
    ]


class Netem:
    """The delays of the paths that end at some hosts of a network, by :data:`Pair` (source, target).

    A change begins chance anew, from the same seed.
    """

    name = "netem"

    def __init__(self, namespaces: Mapping[str, Namespace], addresses: Mapping[str, str], device: str,
                 logs: File) -> None:
        self._namespaces = namespaces
        self._addresses = addresses
        self._device = device
        self._seeded = takes_seeds()
        self._words: dict[Pair, str] = {}

    @property
    def held(self) -> set[Pair]:
        """The paths that pass a netem."""
        return set(self._words)

    @property
    def stamp(self) -> dict[str, object]:
        """The kernel itself holds the packets."""
        return {"scheduling": "kernel", "seeded": self._seeded}

    def up(self, topology: Topology) -> None:
        """Start holding packets on each path that has a delay, jitter or loss worth it. Raises LinkError."""
        self.change(topology, {})

    def change(self, topology: Topology, bias: Mapping[Pair, float]) -> None:
        """Hold packets as `topology` says from now on. Raises LinkError."""
        usual = median(bias.values()) if bias else 0.0
        numbers = {host: number for number, host in enumerate(self._addresses, start=1)}
        lines: dict[str, list[str]] = {}
        for path in topology.paths:
            pair = path.source, path.target
            worth_it = path.delay >= FLOOR or path.jitter or path.loss
            if path.target not in self._namespaces or not (worth_it or pair in self._words):
                continue
            words = options(path, bias.get(pair, usual), seed(topology.name, *pair) if self._seeded else None)
            number, batch = numbers[path.source], lines.setdefault(path.target, [])
            if pair not in self._words:
                if not any(target == path.target for _, target in self._words):
                    self._namespaces[path.target].ip([f"link add {_IFB} type ifb", f"link set {_IFB} up"])
                    batch += _roots(self._device)
                batch += _leaf(number, self._addresses[path.source], self._device, words)
            elif words != self._words[pair]:
                batch.append(f"qdisc change dev {_IFB} parent 1:{number:x} handle {number + 1:x}: netem {words}")
            self._words[pair] = words
        for target, batch in lines.items():
            self._namespaces[target].tc(batch)

    def check(self) -> None:
        """Nothing of it can die before its namespace does."""

    def down(self) -> None:
        """Nothing is left of it when its namespace is gone."""
        self._words.clear()
