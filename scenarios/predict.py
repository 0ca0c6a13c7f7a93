"""Predicts every point of a scenario, before anything is measured. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from emulator import sim
from emulator.topology import Topology
from scenarios.arms import ARMS, Arm
from scenarios.calibration import Calibration
from scenarios.records import Prediction, RecordError, read
from scenarios.scenario import Scenario, Training
from scenarios.workloads import Workload

NOTHING = {"forward": 0.0, "first_bucket": 0.0, "backward": 0.0, "optimiser": 0.0}
"""The computation of a step that is its exchange alone."""


def _whole(parts: dict[str, float]) -> dict[str, float]:
    if missing := [name for name in NOTHING if name not in parts]:
        raise ValueError(f"{missing[0]!r} is missing")
    return parts


Compute = dict[str, Annotated[dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]], AfterValidator(_whole)]]
"""The content of compute.json: seconds of the parts of a training step, by world size."""


def computed(file: Path, worlds: Iterable[int]) -> Compute:
    """Read a compute.json. Raises RecordError for a file that is none, or says nothing of one of the worlds."""
    known = read(file, Compute)
    if missing := [world for world in worlds if str(world) not in known]:
        raise RecordError(f"{file} says nothing of W = {missing[0]}; take one of a scenario that has that world")
    return known


@dataclass(frozen=True)
class _Known:
    """What the simulator is told of one point's network and ranks; `basis` says where from."""

    basis: Literal["blind", "calibrated"]
    topology: Topology
    """As it is on the wire."""
    costs: sim.Costs


def predict(scenario: Scenario, compute: Mapping[str, Mapping[str, float]] | None = None,
            calibration: Calibration | None = None) -> Iterator[Prediction]:
    """Predictions of all points, blind and by the closed form; with `calibration` calibrated ones too.

    A point is predicted at the speed-up at which it will be measured, and given life-size: the segments of a packet,
    and so the acknowledgements, are not scaled with the rate. `compute` is the content of compute.json: seconds of the
    parts of a training step, by world size; without it, a training step is its exchange alone. On a network that
    changes, all steps of a training are predicted, one after another from second 0 on; where campaigns have timelines
    of their own, on each of them. Raises CalibrationError if `calibration` lacks a world, a speed-up or a path.

    Arms that nothing is known of before they run have no predictions: those that skip contributions, whose ranks are
    not in step, and PowerSGD. gradient_as_bucket_view changes nothing that is exchanged: one time, for either setting.
    """
    for (timeline, topology), (size, world) in product(scenario.networks, scenario.worlds.items()):
        for arm in scenario.arms:
            point = partial(Prediction, arm=arm, world_size=size, hosts=world, timeline=timeline,
                            topology_sha256=topology.sha256, date=datetime.now(UTC).isoformat(timespec="seconds"))
            simulated = ARMS[arm].simulated
            for nbytes in scenario.all_reduce.sizes if scenario.all_reduce else ():
                k = scenario.speedup_for(nbytes, size)
                every = partial(point, workload="all_reduce", nbytes=nbytes, speedup=k)
                assert simulated  # what is an all-reduce is known to the simulator
                for known in _known(scenario, topology, calibration, simulated, size, k):
                    outcome = sim.all_reduce(known.topology, world, simulated, nbytes, costs=known.costs)
                    yield every(basis=known.basis, seconds=outcome.seconds * k, received_bytes=outcome.received_bytes)
                yield every(basis="closed form", seconds=sim.closed_form(topology, world, simulated, nbytes))
            if scenario.training and simulated and not scenario.training.script:
                k = scenario.speedups[size]
                computed = NOTHING if compute is None else compute[str(size)]
                for known in _known(scenario, topology, calibration, simulated, size, k):
                    step = _step(scenario.training, known, world, ARMS[arm], computed, k)
                    for view in scenario.training.bucket_views:
                        yield point(workload="training", nbytes=scenario.training.workload.gradient_bytes, speedup=k,
                                    basis=known.basis, bucket_view=view, **step)


def _known(scenario: Scenario, topology: Topology, calibration: Calibration | None, simulated: str, size: int,
           k: float) -> Iterator[_Known]:
    yield _Known("blind", topology.faster(k), sim.MEASURED)
    if calibration is not None:
        yield _Known("calibrated", calibration.as_found(scenario.used(topology), k),
                     calibration.costs_of(simulated, size))


def _step(training: Training, known: _Known, world: tuple[str, ...], arm: Arm, computed: Mapping[str, float],
          k: float) -> dict[str, Any]:
    """What is predicted of a training step at speed-up k: fields of a Prediction."""
    assert arm.simulated is not None
    topology, workload = known.topology, _workload(training.workload, arm, computed)
    itemsize = 4 // arm.compression      # of fp32, what the arm's hook leaves of it
    slow = {host: factor for host, factor in training.stragglers.items() if host in world}
    outcome = sim.step(topology.state(0), world, arm.simulated, workload, itemsize, known.costs, factors=slow)
    seconds = life_size(outcome.seconds, k, computed)
    detail: dict[str, Any] = {"compute": dict(computed)} | ({"stragglers": slow} if slow else {})
    if topology.timeline:
        steps = sim.train(topology, world, arm.simulated, workload, training.steps, known.costs, itemsize,
                          factors=slow, least_timeout=sim.LEAST_TIMEOUT / k)  # as the links have it
        times = [life_size(step.end - step.start, k, computed) for step in steps]
        seconds = median(times[training.warmup:])
        detail["steps"] = [[step.start * k, time] for step, time in zip(steps, times, strict=True)]
    return {"seconds": seconds, "received_bytes": outcome.received_bytes, "detail": detail}


def _workload(workload: Workload, arm: Arm, compute: Mapping[str, float]) -> sim.Workload:
    first, *others = (nbytes // arm.compression for nbytes in workload.buckets)
    ready = compute["first_bucket"] if others else compute["backward"]
    return sim.Workload((sim.Bucket(first, ready), *(sim.Bucket(nbytes, compute["backward"]) for nbytes in others)),
                        compute["forward"], compute["backward"], compute["optimiser"])


def life_size(clock: float, k: float, compute: Mapping[str, float]) -> float:
    """Seconds of a training step at life size, of one that took `clock` seconds at speed-up k.

    Computing is not sped up, the exchange is: k times the exchange and once the rest.
    """
    computing = compute["forward"] + compute["backward"] + compute["optimiser"]
    return max(clock - computing, 0.0) * k + computing
