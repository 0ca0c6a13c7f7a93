"""The simulated world of one arm: the ranks on their hosts, their connections, and the steps they take."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from simpy import Environment, Event, Process, Resource

from emulator.sim.connection import LEAST_TIMEOUT, Connections
from emulator.sim.cores import Cores, Thread
from emulator.sim.driver import Driver
from emulator.sim.gloo import ring
from emulator.sim.rank import Costs, Rank
from emulator.sim.sending import Handshake, Plain
from emulator.sim.workload import Workload
from emulator.topology import Topology
from frogtorch.collectives import ALL_REDUCE
from frogtorch.effects import Buffer, Collective, Group, Region

GLOO_WORKERS = 2
"""Collectives that PyTorch's Gloo group has under way at a time; more wait their turn."""


class World:
    """Ranks, rank i on ``hosts[i]``, that exchange gradients by `arm`; virtual time begins at 0.

    `factors` says of hosts how many times longer than the workload's seconds they compute (2: twice as long). Raises
    ValueError for an unknown arm, a factor that is below 1, infinite or of no host here, and a topology that the
    simulator cannot do.
    """

    def __init__(self, topology: Topology, hosts: Sequence[str], arm: str, itemsize: int, costs: Costs, cold: bool,
                 factors: Mapping[str, float], least_timeout: float = LEAST_TIMEOUT) -> None:
        self._algorithm = _algorithm(arm)
        for host, factor in factors.items():
            if host not in hosts or not 1 <= factor < math.inf:
                raise ValueError(f"a factor of computing is 1 or more, and of a host that takes part "
                                 f"({', '.join(hosts)}), not {factor} of {host!r}")
        self.env = Environment()
        self.arm = arm
        self.size = len(hosts)
        self.connections = Connections(self.env, topology, hosts, cold, least_timeout)
        self._factors = [factors.get(host, 1.0) for host in hosts]
        self._itemsize = itemsize
        self._costs = costs
        self._cores = None if costs.cores is None else Cores(self.env, costs.cores, self.size)
        self.ranks: list[Rank] = []
        self.ranks += (Rank(self.connections, rank, self.ranks, self._thread(rank), costs.message / 2)
                       for rank in range(self.size))
        self._sending = Handshake(self.env) if arm == "gloo" else Plain(self.env)
        self._rounds = [0] * self.size
        self.events = 0
        """How many the simulation took."""

    def collective(self, rank: int, make: Callable[[Group], Collective], drivers: list[Driver],
                   ) -> Generator[Event, Any, float]:
        """One collective of a rank, a SimPy process; `drivers` gets its driver. Returns when it ended."""
        driver = self._driver(rank, drivers)
        yield from driver.run(make(Group(rank, self.size)))
        return float(self.env.now)

    def _driver(self, rank: int, drivers: list[Driver]) -> Driver:
        """The driver of a rank's next collective."""
        drivers.append(Driver(self.ranks[rank], self._rounds[rank], self._sending, self._costs, self._thread(rank)))
        self._rounds[rank] += 1
        return drivers[-1]

    def _thread(self, rank: int) -> Thread | None:
        """On which a rank handles messages, combines and copies."""
        return None if self._cores is None else self._cores.handling[rank]

    def step(self, rank: int, workload: Workload, drivers: list[Driver]) -> Generator[Event, Any, float]:
        """One rank's DDP training step, a SimPy process; `drivers` gets its collectives'. Returns when it ended.

        Every bucket's all-reduce starts when it is ready; they are in flight together, on the same connections. The
        optimiser runs when backward and all of them are done. Raises ValueError for a bucket that is no number of
        elements.
        """
        env = self.env
        workers = Resource(env, GLOO_WORKERS if self.arm == "gloo" else max(1, len(workload.buckets)))
        yield from self._compute(rank, workload.forward)
        computed = 0.0
        exchanges = []
        for bucket in sorted(workload.buckets, key=lambda bucket: bucket.ready):
            if bucket.nbytes % self._itemsize:
                raise ValueError(f"{bucket.nbytes} bytes are no number of elements of {self._itemsize} bytes")
            yield from self._compute(rank, bucket.ready - computed)
            computed = bucket.ready
            driver = self._driver(rank, drivers)
            tensor = Buffer(bucket.nbytes // self._itemsize, self._itemsize)[:]
            collective = self._algorithm(Group(rank, self.size), tensor, "sum")
            exchanges.append(env.process(_exchange(driver, collective, workers)))
        yield from self._compute(rank, max(0.0, workload.backward - computed))
        yield env.all_of(exchanges)
        yield from self._compute(rank, workload.optimiser)
        return float(env.now)

    def _compute(self, rank: int, seconds: float) -> Generator[Event, Any, None]:
        """Compute what takes a host that is as fast as others so many seconds.

        A slow host computes as fast and then waits: it takes no more than the others of cores that they share.
        """
        yield self.env.timeout(seconds) if self._cores is None else self._cores.compute(rank, seconds)
        if self._factors[rank] > 1:
            yield self.env.timeout((self._factors[rank] - 1) * seconds)

    def run(self, steps: Iterable[Generator[Event, Any, Any]]) -> list[Any]:
        """Run one process for each rank to its end; returns what they return.

        Raises RuntimeError if some rank waits for what never comes.
        """
        processes: list[Process] = [self.env.process(step) for step in steps]
        done = self.env.all_of(processes)
        with _without_collection():
            while not done.triggered and self.env.peek() < float("inf"):
                self.env.step()
                self.events += 1
        for process in processes:
            if process.triggered and not process.ok:
                error: Any = process.value
                raise error
        if waiting := [rank for rank, process in enumerate(processes) if process.is_alive]:
            raise RuntimeError(f"{self.arm}: ranks {waiting} of {self.size} wait for ever")
        return [process.value for process in processes]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Do without Python's search for cycles: a world has hardly any, and a million objects to search."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _algorithm(arm: str) -> Callable[[Group, Region, str], Collective]:
    if arm == "gloo":
        return ring
    if arm not in ALL_REDUCE:
        raise ValueError(f"no arm {arm!r} in the simulator; it knows gloo, {', '.join(ALL_REDUCE)}")
    return ALL_REDUCE[arm]


def _exchange(driver: Driver, collective: Collective, workers: Resource) -> Generator[Event, Any, None]:
    with workers.request() as worker:
        yield worker
        yield from driver.run(collective)
