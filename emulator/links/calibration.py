"""Takes what an engine adds to a delay out of it again: wake-ups, timers, the passage through the device itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from statistics import median
from typing import Protocol

from emulator.links.engines import Engine
from emulator.links.namespace import Namespace
from emulator.links.ping import round_trips
from emulator.topology import Topology

_ECHOES = 135
"""Round trips a pass, of all ordered pairs together; nine of each at the least."""
_SETTLED = 75e-6
"""Seconds: a correction below it is noise, and the last."""
_PASSES = 4
"""At most; on a machine with much else to do no correction is small, and the fidelity probe will tell."""


class Calibrated(Protocol):
    """What :func:`calibrate` needs of a network."""

    @property
    def shaped(self) -> Topology:
        """The topology as it is on the wire."""

    @property
    def namespaces(self) -> Mapping[str, Namespace]:
        """By host."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """By host."""

    @property
    def engine(self) -> Engine:
        """What holds the packets."""


def calibrate(network: Calibrated) -> float:
    """Start the network's engine, with holds such that the idle round trips are the topology's.

    Returns the seconds taken off each path's delay. A round trip has as much too much as its two ways together, and all
    ways have the same engine on the same machine: the median over all pairs is taken, half for each way. A way of its
    own would get its own noise. Pairs are asked in both directions, as the fidelity probe does: a machine that is asked
    half as often sleeps more deeply, and wakes up later. A path that the engine leaves alone stays so.
    """
    topology, engine = network.shaped, network.engine
    delays = {(path.source, path.target): path.delay for path in topology.paths}
    engine.up(topology)
    names = [host.name for host in topology.hosts]
    expected = {(source, target): delays[source, target] + delays[target, source]
                for source, target in itertools.permutations(names, 2)
                if {(source, target), (target, source)} <= engine.held}
    bias = 0.0
    for _ in range(_PASSES) if expected else ():
        measured = round_trips(network.namespaces, network.addresses, expected, max(9, _ECHOES // len(expected)))
        left = median(measured[pair] - expected[pair] for pair in expected) / 2
        bias += left
        engine.hold({way: delays[way] - bias for way in engine.held})
        if abs(left) <= _SETTLED:
            break
    return bias
