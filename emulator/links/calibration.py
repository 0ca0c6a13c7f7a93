"""Takes what an engine adds to a delay out of it again: wake-ups, timers, the passage through the device itself."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from statistics import median
from typing import Protocol

from emulator.links.engines import Engine
from emulator.links.namespace import Namespace
from emulator.links.ping import round_trips
from emulator.topology import Topology

_ECHOES = 135
"""Round trips of a common correction, of all ordered pairs together; of each no fewer than nine."""
_SETTLED = 75e-6
"""Seconds: a common correction below it is noise, and the last."""
_PASSES = 3
"""Of common corrections, and then of own ones, at most; on a machine with much else to do no correction is small."""
_OWN_ECHOES = 21
"""Round trips of each ordered pair for its own correction, as many as the fidelity probe takes; more are not taken for
the common one, which it corrects."""

_OWN_SETTLED = 120e-6
"""Seconds: what is within it on every pair was no disturbance."""

Pair = tuple[str, str]


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


def calibrate(network: Calibrated) -> dict[Pair, float]:
    """Start the network's engine, with holds such that the idle round trips are the topology's.

    Returns the seconds taken off each path's delay. A round trip has as much too much as its two ways together, half of
    which is taken off each. First for all ways in common, as they have one engine on one machine; then for each pair
    what is left: a long hold wakes up later than a short one. Pairs are asked in both directions, as the fidelity probe
    does: a machine that is asked half as often sleeps more deeply. A path that the engine leaves alone stays so. Jitter
    and loss come at the end: what is measured until then is not chance.
    """
    topology, engine = network.shaped, network.engine
    steady = dataclasses.replace(topology, paths=tuple(dataclasses.replace(path, jitter=0, loss=0)
                                                       for path in topology.paths))
    delays = {(path.source, path.target): path.delay for path in topology.paths}
    engine.up(steady)
    names = [host.name for host in topology.hosts]
    expected = {(source, target): delays[source, target] + delays[target, source]
                for source, target in itertools.permutations(names, 2)
                if {(source, target), (target, source)} <= engine.held}
    bias = dict.fromkeys(engine.held, 0.0)

    def too_much(count: int) -> dict[Pair, float]:
        engine.change(steady, bias)
        measured = round_trips(network.namespaces, network.addresses, expected, count)
        return {pair: (measured[pair] - expected[pair]) / 2 for pair in expected}

    for _ in range(_PASSES if expected else 0):
        common = median(too_much(min(_OWN_ECHOES, max(9, _ECHOES // len(expected)))).values())
        bias = {way: seconds + common for way, seconds in bias.items()}
        if abs(common) <= _SETTLED:
            break
    for _ in range(_PASSES if expected else 0):
        own = too_much(_OWN_ECHOES)
        for source, target in expected:
            bias[source, target] += (own[source, target] + own[target, source]) / 2
        if max(map(abs, own.values())) <= _OWN_SETTLED:
            break
    engine.change(topology, bias)
    return bias
