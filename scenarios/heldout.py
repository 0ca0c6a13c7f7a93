"""Held-out networks: scenarios and topologies drawn from a seed, which nobody has tuned the simulator to.

Each has a world of 3 to 6 ranks on a network of its own: rates of every path and both ways of every access log-uniform
from 0.3 to 30 MB/s, delays uniform from 1 to 80 ms (:func:`scenarios.hidden.draw`); tensors log-uniform from 2 to 8
MiB, and one from 4 to 256 KiB. The seed is the commit's hash, unless one is given: the code is fixed before the
networks are.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

from emulator import sim
from emulator.topology import Topology, load
from scenarios import hidden
from scenarios.records import new_directory

ARMS = ("gloo", "shard", "whole", "direct")
REPETITIONS = 6
WORLDS = (3, 6)
SMALL, LARGE = (4 << 10, 256 << 10), (2 << 20, 8 << 20)
"""Bytes, from and to."""
SPEEDUPS = (10, 5, 2, 1)
MOST = 40e6
"""Bytes per second that the links of a world carry together, on the wire, at most: more is the machine's speed, not
theirs."""


def write(directory: Path, seed: str, worlds: int) -> list[Path]:
    """Write `worlds` scenarios, each with its topology, into a new directory; the scenarios' files.

    The same seed gives the same files. Raises ValueError if the directory exists, or for a seed that is more than a
    line; what failed leaves no directory.
    """
    if not seed.isprintable():
        raise ValueError(f"seed {seed!r}: it stands in what is written; use letters, digits and signs")
    with new_directory(directory, "held-out networks are drawn once"):
        return _write(directory, seed, worlds)


def _write(directory: Path, seed: str, worlds: int) -> list[Path]:
    written = []
    for number in range(1, worlds + 1):
        rng = random.Random(f"held out {seed} {number}")
        size = rng.randint(*WORLDS)
        (directory / f"network-{number}.yaml").write_text(hidden.draw("mixed", rng, size, f"heldout-{number}"),
                                                          encoding="utf-8")
        topology = load(directory / f"network-{number}.yaml")
        hosts = [host.name for host in topology.hosts]
        small, large = _size(rng, *SMALL), sorted({_size(rng, *LARGE) for _ in range(3)})
        written.append(directory / f"heldout-{number}.yaml")
        written[-1].write_text("\n".join([
            f"# Held out: drawn from the seed {seed}, number {number}.", f"name: heldout-{number}",
            f"topology: network-{number}.yaml", f"worlds: {{{size}: [{', '.join(hosts)}]}}",
            f"arms: [{', '.join(ARMS)}]", f"repetitions: {REPETITIONS}",
            f"speedup: {speedup(topology, hosts, large[-1])}",
            f"all_reduce: {{intercept: {small} B, slope: [{', '.join(f'{nbytes} B' for nbytes in large)}]}}", ""]),
            encoding="utf-8")
    return written


def speedup(topology: Topology, hosts: list[str], nbytes: int) -> int:
    """The largest of SPEEDUPS at which no arm moves more than MOST, as predicted; else 1."""
    busiest = 0.0
    for arm in ARMS:
        predicted = sim.all_reduce(topology, hosts, arm, nbytes)
        busiest = max(busiest, sum(predicted.received_bytes) / predicted.seconds)
    return next((k for k in SPEEDUPS if busiest * k <= MOST), 1)


def _size(rng: random.Random, least: int, most: int) -> int:
    """Bytes of whole fp32 elements, log-uniform."""
    return round(math.exp(rng.uniform(math.log(least), math.log(most)))) // 4 * 4
