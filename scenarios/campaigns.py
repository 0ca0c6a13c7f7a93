"""Campaigns: the points of a scenario that run together, on one network that is up and at one speed-up."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from emulator.topology import Topology
from scenarios.scenario import Scenario


@dataclass(frozen=True)
class Campaign:
    """Points that run on one state of the network, or each from second 0 of one timeline on."""

    index: int
    speedup: float
    sizes: dict[int, tuple[int, ...]]
    """Bytes of the all-reduces, by world size."""
    trains: tuple[int, ...]
    """The worlds that train the workload."""
    topology: Topology
    """Of which it is measured what the scenario uses."""
    timeline: int | None
    """Which of the scenario's timelines that has; None if it has none."""


def campaigns(scenario: Scenario) -> list[Campaign]:
    """Split a scenario into campaigns: for each of its networks one a speed-up, the fastest first."""
    points: dict[float, dict[int, list[int]]] = {}
    for world, speed in scenario.speedups.items():
        if scenario.training:
            points.setdefault(speed, {}).setdefault(world, [])
        for size in scenario.all_reduce.sizes if scenario.all_reduce else ():
            points.setdefault(scenario.speedup_for(size, world), {}).setdefault(world, []).append(size)
    if scenario.scaling:
        for speed in scenario.scaling.speedups:
            points.setdefault(speed, {}).setdefault(scenario.scaling.world, []).append(scenario.scaling.size)
    trains = scenario.speedups if scenario.training else {}
    return [Campaign(index, speed, {world: tuple(sizes) for world, sizes in points[speed].items()},
                     tuple(world for world, own in trains.items() if own == speed), topology, timeline)
            for index, ((timeline, topology), speed) in enumerate(product(scenario.networks,
                                                                          sorted(points, reverse=True)))]
