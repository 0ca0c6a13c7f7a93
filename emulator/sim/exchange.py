"""Whole exchanges: one all-reduce or other collective, and one DDP step, with every rank starting at time 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from emulator.sim.connection import Sent
from emulator.sim.driver import Driver
from emulator.sim.rank import MEASURED, Costs, Peer
from emulator.sim.workload import Bucket, Workload
from emulator.sim.world import World
from emulator.topology import Topology
from frogtorch.effects import Collective, Group

EQUAL: Mapping[str, float] = MappingProxyType({})
"""Factors of computing where no host is slower than another."""


@dataclass(frozen=True)
class Phases:
    """Where a rank's time went, in seconds, as the backend's telemetry has it. The phases overlap when chunks flow."""

    publish: float
    """Spent publishing."""
    phase1: float | None
    """From the start to the end of the last Combine; None if nothing was combined."""
    phase2: float | None
    """From the first byte of a reduced cell to the end; None if none was read."""


@dataclass(frozen=True)
class Outcome:
    """The times, bytes and messages of an exchange. Tuples are by rank.

    `phases` and `peers` hold, for each rank, one item for each of its collectives, in the order of their start.
    """

    seconds: float
    """From the common start to the last rank's end."""
    ends: tuple[float, ...]
    received_bytes: tuple[int, ...]
    """Payload, without frames and headers."""
    messages: tuple[int, ...]
    """Messages sent: payload, requests and notices."""
    phases: tuple[tuple[Phases, ...], ...]
    peers: tuple[tuple[dict[int, Peer], ...], ...]
    """What each rank got from each other rank."""
    memory: tuple[int, ...]
    """Most bytes that stages and copied cells held at one time."""
    events: int
    """How many the simulation took."""


def all_reduce(topology: Topology, hosts: Sequence[str], arm: str, nbytes: int, itemsize: int = 4,
               costs: Costs = MEASURED, cold: bool = False) -> Outcome:
    """Simulate one all-reduce of `nbytes` bytes in elements of `itemsize`, with rank i on ``hosts[i]``.

    `arm` is ``"gloo"``, or the name of an algorithm in :data:`frogtorch.collectives.ALL_REDUCE`. `cold` connections
    have slow start before them; warm ones were used before. Raises ValueError for an unknown arm, a size that is no
    number of elements, and a topology that the simulator cannot do.
    """
    return step(topology, hosts, arm, Workload((Bucket(nbytes),)), itemsize, costs, cold)


def step(topology: Topology, hosts: Sequence[str], arm: str, workload: Workload, itemsize: int = 4,
         costs: Costs = MEASURED, cold: bool = False, factors: Mapping[str, float] = EQUAL) -> Outcome:
    """Simulate one DDP training step, as :func:`all_reduce` simulates its one all-reduce.

    `factors` says of hosts how many times longer than the workload's seconds they compute.
    """
    world = World(topology, hosts, arm, itemsize, costs, cold, factors)
    drivers: list[list[Driver]] = [[] for _ in hosts]
    ends = world.run(world.step(rank, workload, own) for rank, own in enumerate(drivers))
    return _outcome(world, drivers, ends)


def collective(topology: Topology, hosts: Sequence[str], make: Callable[[Group], Collective], gloo: bool = False,
               costs: Costs = MEASURED, cold: bool = False, log: list[Sent] | None = None) -> Outcome:
    """Simulate any collective, as :func:`all_reduce` simulates one: ``make(group)`` is what a rank does.

    It goes through FrogNet Memory, or over Gloo's connections (those of :mod:`emulator.sim.gloo` do). Every message is
    added to `log`, in the order in which they leave.
    """
    # Of an arm, the world needs here to know whose connections they are.
    world = World(topology, hosts, "gloo" if gloo else "shard", 1, costs, cold, EQUAL)
    world.connections.log = log
    drivers: list[list[Driver]] = [[] for _ in hosts]
    ends = world.run(world.collective(rank, make, own) for rank, own in enumerate(drivers))
    return _outcome(world, drivers, ends)


def _outcome(world: World, drivers: Sequence[Sequence[Driver]], ends: Sequence[float]) -> Outcome:
    return Outcome(
        seconds=max(ends), ends=tuple(ends),
        received_bytes=tuple(sum(peer.bytes for driver in own for peer in driver.account.peers.values())
                             for own in drivers),
        messages=tuple(world.connections.messages()),
        phases=tuple(tuple(_phases(driver) for driver in own) for own in drivers),
        peers=tuple(tuple(driver.account.peers for driver in own) for own in drivers),
        memory=tuple(rank.memory_peak for rank in world.ranks), events=world.events)


def _phases(driver: Driver) -> Phases:
    account = driver.account
    return Phases(account.publish,
                  None if account.combined is None else account.combined - account.start,
                  None if account.reduced is None else account.end - account.reduced)
