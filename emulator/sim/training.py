"""Training: step after step in one virtual time, on a network that may change under way."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from simpy import Event

from emulator.sim.connection import LEAST_TIMEOUT
from emulator.sim.exchange import EQUAL
from emulator.sim.rank import MEASURED, Costs
from emulator.sim.workload import Workload
from emulator.sim.world import World
from emulator.topology import Topology


@dataclass(frozen=True)
class Step:
    """When each rank began a step and ended it: virtual seconds from the common start, by rank."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def start(self) -> float:
        """When the first rank began it."""
        return min(self.starts)

    @property
    def end(self) -> float:
        """When the last rank ended it."""
        return max(self.ends)

    @property
    def seconds(self) -> float:
        """What the slowest rank took, by its own clock."""
        return max(end - start for start, end in zip(self.starts, self.ends, strict=True))


def train(topology: Topology, hosts: Sequence[str], arm: str, workload: Workload, steps: int, costs: Costs = MEASURED,
          itemsize: int = 4, cold: bool = False, factors: Mapping[str, float] = EQUAL,
          least_timeout: float = LEAST_TIMEOUT) -> tuple[Step, ...]:
    """Simulate `steps` DDP training steps, one after another, on the topology and its timeline.

    All ranks begin at second 0 of the timeline; each begins its next step when it has ended the one before.
    `least_timeout` is the least of TCP's retransmission timeout, in seconds, which says when a connection goes on after
    an outage: it is ÷ k too on links that are k times faster than life. The other parameters, and what is raised, are
    those of :func:`emulator.sim.step`.
    """
    world = World(topology, hosts, arm, itemsize, costs, cold, factors, least_timeout)

    def rank(number: int) -> Generator[Event, Any, list[float]]:
        ends = []
        for _ in range(steps):
            ends.append((yield from world.step(number, workload, [])))
        return ends

    ends = world.run(rank(number) for number in range(len(hosts)))
    begun = [(0.0,) * len(hosts), *zip(*ends, strict=True)]
    return tuple(Step(starts, ended) for starts, ended in pairwise(begun))
