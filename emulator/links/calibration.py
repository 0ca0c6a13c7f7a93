"""Takes what an engine adds to a delay out of it again: wake-ups, timers, the passage through the device itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from emulator.links.engines import Engine
from emulator.links.namespace import Namespace
from emulator.links.ping import Pair, round_trips
from emulator.topology import Topology, round_trip

_ECHOES = (9, 15)
"""Round trips a pass: the first finds the bias, the second what is left of it."""


class Calibrated(Protocol):
    """What :func:`calibrate` needs of a network."""

    shaped: Topology
    namespaces: Mapping[str, Namespace]
    addresses: Mapping[str, str]

    @property
    def engine(self) -> Engine: ...


def calibrate(network: Calibrated) -> dict[Pair, float]:
    """Start the network's engine, with holds such that the idle round trips are the topology's.

    Returns the seconds taken off each path's delay. Only the sum of both directions can be measured without a clock
    on either end; both have the same engine, so each is given half. A path that the engine leaves alone stays so.
    """
    delays = {(path.source, path.target): path.delay for path in network.shaped.paths}
    expected = {(path.source, path.target): round_trip(network.shaped, path) for path in network.shaped.paths
                if network.shaped.hosts.index(network.shaped.host(path.source))
                < network.shaped.hosts.index(network.shaped.host(path.target))}
    network.engine.up(network.shaped)
    bias = dict.fromkeys(network.engine.held, 0.0)
    for echoes in _ECHOES:
        measured = round_trips(network.namespaces, network.addresses, expected, echoes)
        for (source, target), nominal in expected.items():
            ways = [way for way in ((source, target), (target, source)) if way in bias]
            for way in ways:
                bias[way] += (measured[source, target] - nominal) / len(ways)
        network.engine.hold({way: delays[way] - seconds for way, seconds in bias.items()})
    return bias
