"""Measures what a scenario's predictions may know of links and machine: see :mod:`scenarios.calibration`.

No collective that is later predicted is run: paths carry one flow at a time, ranks copy, add and send single messages.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from emulator import sim
from emulator.hosts.runtime import MakesRuntime, Runtime
from emulator.links.flows import Flow, Hosts, pump
from emulator.links.shaping import ceiling
from emulator.topology import Path, Topology
from frogtorch.effects import Buffer, Collective, Group, Receive, Send
from scenarios.calibration import Calibration, PathSeen, as_seen, cores
from scenarios.campaigns import campaigns
from scenarios.progress import Stages
from scenarios.ranks import Place, Ranks
from scenarios.scenario import Scenario

_ARMS = ("gloo", "shard")
"""One a backend: what a message costs."""
_STEPS = 12
_SETTLED = 4
"""Steps of computing that come first, and are left out."""
COLD = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
"""Bytes on a new connection."""
_TAKES = 3


def calibrate(scenario: Scenario, run: str, engine: str, stages: Stages, make: MakesRuntime) -> Calibration:
    """Measure it all, the machine before the links. The network is removed, also by an error or Ctrl-C.

    `make`, `run` and `engine` are the runtime's class, the run's name and the delay engine. Raises RankError, LinkError
    and TopologyError.
    """
    costs = _costs(scenario, stages)
    compute = computing(scenario, stages) if scenario.training and not scenario.training.script else {}
    paths: dict[float, Sequence[PathSeen]] = {}
    stamp: Mapping[str, Any] = {}
    cold: list[tuple[str, str, int, float]] = []
    for speedup in speedups(scenario):
        stages.stage(f"network up, k = {speedup:g}", 1)
        with make(scenario.network, run, engine, speedup) as network:
            stages.stage(f"probing every path, k = {speedup:g}", 1)
            paths[speedup] = as_seen(network.probe(stages.at))
            stamp = network.stamp
            if speedup == 1:
                cold = _cold(network, stages)
    return Calibration(scenario.topology.sha256, datetime.now(UTC).isoformat(timespec="seconds"), stamp, cores(), paths,
                       costs, compute, cold)


def speedups(scenario: Scenario) -> list[float]:
    """Those of the scenario's campaigns, and life size, at which new connections are looked at; the fastest first."""
    return sorted({campaign.speedup for campaign in campaigns(scenario)} | {1.0}, reverse=True)


def _costs(scenario: Scenario, stages: Stages) -> dict[int, dict[str, float]]:
    """What a rank's own work costs, by world size."""
    stages.stage("calibrating copies, sums and messages", len(scenario.worlds))
    found = {}
    for size, world in scenario.worlds.items():
        found[size] = _medians(_told(world, scenario.timeout, _ARMS, "costs"))
        stages.advance()
    return found


def computing(scenario: Scenario, stages: Stages) -> dict[int, dict[str, float]]:
    """Seconds of a training step's parts without exchange, by world size, W ranks computing at once.

    Medians over the steps and ranks.
    """
    assert scenario.training is not None
    stages.stage("calibrating computation", len(scenario.worlds))
    found = {}
    for size, world in scenario.worlds.items():
        told = _told(world, scenario.timeout, (), "compute", steps=_STEPS, workload=scenario.training.workload.name)
        found[size] = _medians([step for steps in told for step in steps[_SETTLED:]])
        stages.advance()
    return found


def _told(world: Sequence[str], timeout: float, arms: tuple[str, ...], command: str, **arguments: Any) -> list[Any]:
    """What the ranks of a world answer, all on this machine and its loopback."""
    with tempfile.TemporaryDirectory() as store, Ranks([
            Place(rank=rank, world_size=len(world), host=host, store=f"{store}/store", arms=arms, timeout=timeout)
            for rank, host in enumerate(world)]) as ranks:
        return ranks.tell(command, **arguments)


def _medians(seen: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: statistics.median(one[part] for one in seen) for part in seen[0]}


def _cold(network: Runtime, stages: Stages) -> list[tuple[str, str, int, float]]:
    """The curve of new connections on the slowest path and on the fastest that is limited."""
    paths = extremes(network.shaped)
    stages.stage("first bytes of new connections", len(paths) * _TAKES)
    curve: list[tuple[str, str, int, float]] = []
    for path in paths:
        takes = []
        for _ in range(_TAKES):
            takes.append(_first_bytes(network, path))
            stages.advance()
        curve += [(path.source, path.target, nbytes, statistics.median(of))
                  for nbytes, of in zip(COLD, zip(*takes, strict=True), strict=True)]
    return curve


def extremes(topology: Topology) -> list[Path]:
    """The slowest path and the fastest, by their rates; one, or none, where all are alike or nothing limits them."""
    rates = {index: rate for index, path in enumerate(topology.paths)
             if (rate := ceiling(topology, path)) is not None}
    return [topology.paths[index] for index in dict.fromkeys(of(rates, key=rates.__getitem__) for of in (min, max)
                                                             if rates)]


def _first_bytes(network: Hosts, path: Path) -> list[float]:
    """Seconds from the first byte's sending until so many had come as COLD says, on a connection just made."""
    flow = Flow(path, network)
    try:
        seconds: list[float] = []
        began = time.time()  # the clock of the kernel's stamps
        for _ in pump([flow]):
            while len(seconds) < len(COLD) and flow.received >= COLD[len(seconds)]:
                seconds.append(flow.arrived - began)
            flow.done = len(seconds) == len(COLD)
        return seconds
    finally:
        flow.close()


def simulated(topology: Topology, source: str, target: str, nbytes: int) -> float:
    """Seconds that the simulator takes for what :func:`_first_bytes` measures, to hold against it."""
    def make(group: Group) -> Collective:
        region = Buffer(nbytes, 1)[:]
        yield Receive(0, region) if group.rank else Send(1, region)

    return sim.collective(topology, (source, target), make, costs=sim.Costs(), cold=True).seconds
