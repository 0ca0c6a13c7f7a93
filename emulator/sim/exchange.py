"""Whole exchanges: one all-reduce, and one DDP training step, with every rank starting at time 0."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from simpy import Environment, Event, Resource

from emulator.sim.connection import Connections
from emulator.sim.driver import Driver
from emulator.sim.gloo import ring
from emulator.sim.rank import MEASURED, Costs, Peer, Rank
from emulator.sim.sending import Handshake, Plain
from emulator.topology import Topology
from frogtorch.collectives import ALL_REDUCE
from frogtorch.effects import Buffer, Collective, Group, Region

GLOO_WORKERS = 2
"""Collectives that PyTorch's Gloo group has under way at a time; more wait their turn."""


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


@dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together: `nbytes` of them, `ready` seconds after backward has begun."""

    nbytes: int
    ready: float = 0.0


@dataclass(frozen=True)
class Workload:
    """A training step: its buckets in the order in which they become ready, and its own work in seconds."""

    buckets: tuple[Bucket, ...]
    forward: float = 0.0
    """Everything before backward."""
    backward: float = 0.0
    optimiser: float = 0.0
    """Everything after the exchange."""


def all_reduce(topology: Topology, hosts: Sequence[str], arm: str, nbytes: int, itemsize: int = 4,
               costs: Costs = MEASURED, cold: bool = False) -> Outcome:
    """Simulate one all-reduce of `nbytes` bytes in elements of `itemsize`, with rank i on ``hosts[i]``.

    `arm` is ``"gloo"``, or the name of an algorithm in :data:`frogtorch.collectives.ALL_REDUCE`. `cold` connections
    have slow start before them; warm ones were used before. Raises ValueError for an unknown arm, a size that is no
    number of elements, and a topology that the simulator cannot do.
    """
    return step(topology, hosts, arm, Workload((Bucket(nbytes),)), itemsize, costs, cold)


def step(topology: Topology, hosts: Sequence[str], arm: str, workload: Workload, itemsize: int = 4,
         costs: Costs = MEASURED, cold: bool = False) -> Outcome:
    """Simulate one DDP training step, as :func:`all_reduce` simulates its one all-reduce.

    Every bucket's all-reduce starts when it is ready; they are in flight together, on the same connections. The
    optimiser runs when backward and all of them are done.
    """
    algorithm = _algorithm(arm)
    for bucket in workload.buckets:
        if bucket.nbytes % itemsize:
            raise ValueError(f"{bucket.nbytes} bytes are no number of elements of {itemsize} bytes")
    env = Environment()
    connections = Connections(env, topology, hosts, cold)
    ranks: list[Rank] = []
    ranks += (Rank(connections, rank, len(hosts), ranks) for rank in range(len(hosts)))
    sending = Handshake(env) if arm == "gloo" else Plain(env)
    drivers = [[Driver(rank, number, sending, costs) for number, _ in enumerate(workload.buckets)] for rank in ranks]
    steps = [env.process(_step(env, own, Group(rank, len(hosts)), algorithm, workload, itemsize, arm == "gloo"))
             for rank, own in enumerate(drivers)]
    env.run()
    if waiting := [rank for rank, process in enumerate(steps) if process.is_alive]:
        raise RuntimeError(f"{arm}: ranks {waiting} of {len(hosts)} wait for ever")
    ends: list[Any] = [process.value for process in steps]
    return Outcome(
        seconds=max(ends), ends=tuple(ends),
        received_bytes=tuple(sum(peer.bytes for driver in own for peer in driver.account.peers.values())
                             for own in drivers),
        messages=tuple(connections.messages(rank) for rank in range(len(hosts))),
        phases=tuple(tuple(_phases(driver) for driver in own) for own in drivers),
        peers=tuple(tuple(driver.account.peers for driver in own) for own in drivers),
        memory=tuple(rank.memory_peak for rank in ranks))


def _algorithm(arm: str) -> Callable[[Group, Region, str], Collective]:
    if arm == "gloo":
        return ring
    if arm not in ALL_REDUCE:
        raise ValueError(f"no arm {arm!r} in the simulator; it knows gloo, {', '.join(ALL_REDUCE)}")
    return ALL_REDUCE[arm]


def _step(env: Environment, drivers: Sequence[Driver], group: Group,
          algorithm: Callable[[Group, Region, str], Collective], workload: Workload, itemsize: int,
          gloo: bool) -> Generator[Event, Any, float]:
    """One rank's step; returns when it ended."""
    workers = Resource(env, GLOO_WORKERS if gloo else max(1, len(drivers)))
    if workload.forward:
        yield env.timeout(workload.forward)
    backward = env.timeout(workload.backward)
    exchanges = [env.process(_exchange(env, driver, algorithm(group, Buffer(bucket.nbytes // itemsize, itemsize)[:],
                                                              "sum"), bucket.ready, workers))
                 for driver, bucket in zip(drivers, workload.buckets, strict=True)]
    yield env.all_of([backward, *exchanges])
    if workload.optimiser:
        yield env.timeout(workload.optimiser)
    return float(env.now)


def _exchange(env: Environment, driver: Driver, collective: Collective, ready: float,
              workers: Resource) -> Generator[Event, Any, None]:
    if ready:
        yield env.timeout(ready)
    with workers.request() as worker:
        yield worker
        yield from driver.run(collective)


def _phases(driver: Driver) -> Phases:
    account = driver.account
    return Phases(account.publish,
                  None if account.combined is None else account.combined - account.start,
                  None if account.reduced is None else account.end - account.reduced)
