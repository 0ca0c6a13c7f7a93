"""How large a world the simulator can take: one all-reduce of each arm on generated networks; and studies of many.

A generated network has W hosts in about √W sites. Sites lie at random in a square that light in glass crosses in 40 ms;
a path between two sites is 10 ms to 80 ms long by their distance, and its rate is drawn from a heavy tail (Pareto's
distribution of shape 1.2 above 0.5 MB/s, cut off at 125 MB/s), each direction for itself. Inside a site paths have
125 MB/s and 0.1 ms. Or the rates are those of the hosts' accesses, up and down each for itself, and paths have none:
then every flow shares two limits with all others of two hosts. All of it comes from a seed.
"""

from __future__ import annotations

import math
import multiprocessing
import pathlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from rich.table import Table

from emulator import sim
from emulator.topology import Host, Path, Topology
from emulator.units import format_size
from scenarios.records import Record

Scenario = TypeVar("Scenario")
Result = TypeVar("Result")

LAN_RATE, LAN_DELAY = 125e6, 1e-4
LEAST_RATE, TAIL = 0.5e6, 1.2
NEAR, SIDE = 10e-3, 50e-3
"""Seconds: the delay of two sites at one place, and the side of the square in which they lie."""


def generate(hosts: int, seed: int, limits: str = "path") -> Topology:
    """Return a network of so many hosts, whose paths or accesses are limited."""
    random = Random(f"{hosts} {seed}")
    sites = max(1, round(math.sqrt(hosts)))
    places = [(random.uniform(0, SIDE), random.uniform(0, SIDE)) for _ in range(sites)]
    members = [i * sites // hosts for i in range(hosts)]

    def rate() -> float:
        return min(LAN_RATE, LEAST_RATE * random.paretovariate(TAIL))

    def path(a: int, b: int) -> Path:
        names, ends = (f"host-{a}", f"host-{b}"), (members[a], members[b])
        if ends[0] == ends[1]:
            return Path(*names, LAN_RATE if limits == "path" else None, LAN_DELAY)
        return Path(*names, rate() if limits == "path" else None, NEAR + math.dist(*(places[site] for site in ends)))

    accesses = [(rate(), rate()) if limits == "access" else (None, None) for _ in members]
    return Topology(f"generated-{hosts}-{seed}", "generated", tuple(
        Host(f"host-{i}", f"site-{site}", *accesses[i]) for i, site in enumerate(members)),
        tuple(path(a, b) for a in range(hosts) for b in range(hosts) if a != b), (), "cubic",
        f"{hosts} {seed} {limits}")


@dataclass(frozen=True)
class Case:
    """One all-reduce of `nbytes` bytes on a generated network."""

    arm: str
    world_size: int
    nbytes: int
    seed: int
    limits: str = "path"


class Scale(Record):
    """What simulating a case took, and what came out."""

    arm: str
    world_size: int
    nbytes: int
    seed: int
    limits: str = "path"
    """Where the network's are: at its paths, or at the accesses of its hosts."""
    simulated: float
    """Seconds of the collective."""
    wall: float
    """Seconds of simulating it, making the network not counted."""
    cpu: float
    """Those of them in which it had a core."""
    events: int
    messages: int
    peak_bytes: int
    """The most memory that the process has had so far."""

    @property
    def events_per_second(self) -> float:
        """Events simulated in a second of a core."""
        return self.events / self.cpu


def run(case: Case) -> Scale:
    """Simulate one all-reduce. Raises ValueError for an arm that the simulator does not know."""
    topology = generate(case.world_size, case.seed, case.limits)
    hosts = [host.name for host in topology.hosts]
    start = time.perf_counter(), time.process_time()
    outcome = sim.all_reduce(topology, hosts, case.arm, case.nbytes)
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    return Scale(arm=case.arm, world_size=case.world_size, nbytes=case.nbytes, seed=case.seed, limits=case.limits,
                 simulated=outcome.seconds, wall=wall, cpu=cpu, events=outcome.events,
                 messages=sum(outcome.messages), peak_bytes=_peak())


def _peak() -> int:
    # getrusage(2) would also count what the process that this one was forked from had.
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def study(function: Callable[[Scenario], Result], scenarios: Sequence[Scenario],
          executor: Executor) -> Iterator[tuple[Scenario, Result]]:
    """Apply a function to every scenario by an executor; yields each with its result as they are done.

    The executor is whatever fulfils :mod:`concurrent.futures`: this machine's processes, or a cluster by the one that
    an engine brings. What the function raises is raised, and what has not begun is then not begun.
    """
    futures = {executor.submit(function, scenario): scenario for scenario in scenarios}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def growth(results: Iterable[Scale]) -> dict[tuple[str, str], float]:
    """By arm and limits, the power of W with which a core's time grows, from the smallest world to the largest.

    What has one world is left out.
    """
    found: dict[tuple[str, str], dict[int, float]] = {}
    for result in results:
        found.setdefault((result.arm, result.limits), {})[result.world_size] = result.cpu
    return {which: math.log(took[max(took)] / took[min(took)]) / math.log(max(took) / min(took))
            for which, took in found.items() if len(took) > 1}


@contextmanager
def workers(jobs: int, cluster: str | None) -> Iterator[Executor]:
    """An executor: so many processes of this machine, or the cluster whose scheduler is at that address.

    One process alone is a new one for each case, so that its memory is that case's. Raises RuntimeError without Dask's
    distributed, which has an executor of its own for its clusters.
    """
    if cluster is None:
        others = {*multiprocessing.active_children()}
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _die_silently,
                                 max_tasks_per_child=1 if jobs == 1 else None) as pool:
            try:
                yield pool
            except BaseException:      # what is being worked on would be waited for
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in {*multiprocessing.active_children()} - others:
                    worker.terminate()
                    worker.join()
                raise
        return
    try:
        from distributed import Client
    except ImportError:
        raise RuntimeError("a cluster needs Dask's distributed: pip install -e '.[testbed,cluster]'") from None
    with Client(cluster) as client, client.get_executor() as pool:
        yield pool


def _die_silently() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all; who began it speaks


def table(results: Sequence[Scale]) -> Table:
    """Show what simulating took: a row a case, and the growth of each arm."""
    power = growth(results)
    found = Table("arm, limits", "W", "seed", "simulated", "took", "of a core", "events", "events/s", "messages",
                  "memory", "growth", title="one all-reduce, simulated", title_justify="left")
    for column in found.columns[1:]:
        column.justify = "right"
    for result in sorted(results, key=lambda result: (result.arm, result.limits, result.world_size, result.seed)):
        which = result.arm, result.limits
        found.add_row(", ".join(which), str(result.world_size), str(result.seed), f"{result.simulated:.3f} s",
                      f"{result.wall:.2f} s", f"{result.cpu:.2f} s", f"{result.events:,}",
                      f"{result.events_per_second:,.0f}", f"{result.messages:,}", format_size(result.peak_bytes),
                      f"W^{power[which]:.2f}" if which in power else "")
    return found
