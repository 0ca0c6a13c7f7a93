"""Predicts every point of a scenario, before anything is measured. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from emulator import sim
from emulator.topology import Topology
from scenarios.records import Prediction
from scenarios.scenario import Scenario

GRADIENT_BYTES = 16_867_332
"""All gradients of the founding workload, fp32 (`scenarios.workload` builds it; a test holds the two together)."""

BUCKET_BYTES = (4_202_500, 12_664_832)
"""The two buckets that DDP makes of them from the second step on, in the order in which they become ready."""


def predict(scenario: Scenario, compute: dict[str, dict[str, float]] | None = None) -> Iterator[Prediction]:
    """Predictions of all points, blind and by the closed form.

    A point is predicted at the speed-up at which it will be measured, and given life-size: the segments of a packet,
    and so the acknowledgements, are not scaled with the rate. `compute` is the content of compute.json: seconds of the
    parts of a training step, by world size; without it, a training step is its exchange alone.
    """
    for size, world in scenario.worlds.items():
        for arm in scenario.arms:
            for nbytes in scenario.all_reduce.sizes if scenario.all_reduce else ():
                yield from _all_reduce(scenario.topology, world, arm, nbytes, scenario.speedup_for(nbytes, size))
            if scenario.training:
                yield _step(scenario.topology, world, arm, scenario.speedups[size], (compute or {}).get(str(size)))


def _all_reduce(topology: Topology, world: tuple[str, ...], arm: str, nbytes: int, k: float) -> Iterator[Prediction]:
    point = partial(Prediction, arm=arm, world_size=len(world), hosts=world, workload="all_reduce", nbytes=nbytes,
                    speedup=k)
    outcome = sim.all_reduce(topology.faster(k), world, arm, nbytes)
    yield point(basis="blind", seconds=outcome.seconds * k, received_bytes=outcome.received_bytes)
    yield point(basis="closed form", seconds=sim.closed_form(topology, world, arm, nbytes))


def _step(topology: Topology, world: tuple[str, ...], arm: str, k: float, compute: dict[str, float] | None
          ) -> Prediction:
    computed = compute or {"forward": 0.0, "first_bucket": 0.0, "backward": 0.0, "optimiser": 0.0}
    ready = computed["first_bucket"], computed["backward"]
    outcome = sim.step(topology.faster(k), world, arm, sim.Workload(
        tuple(sim.Bucket(nbytes, when) for nbytes, when in zip(BUCKET_BYTES, ready, strict=True)),
        computed["forward"], computed["backward"], computed["optimiser"]))
    return Prediction(arm=arm, world_size=len(world), hosts=world, workload="training", nbytes=GRADIENT_BYTES,
                      speedup=k, basis="blind", seconds=life_size(outcome.seconds, k, computed),
                      received_bytes=outcome.received_bytes, detail={"compute": computed})


def life_size(clock: float, k: float, compute: dict[str, float]) -> float:
    """Seconds of a training step at life size, of one that took `clock` seconds at speed-up k.

    Computing is not sped up, the exchange is: k times the exchange and once the rest.
    """
    computing = compute["forward"] + compute["backward"] + compute["optimiser"]
    return max(clock - computing, 0.0) * k + computing
