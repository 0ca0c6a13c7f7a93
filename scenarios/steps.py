"""A training on a network that changes, step by step: predicted, measured, and what the network was like meanwhile."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from emulator.timeline import differences
from emulator.topology import Topology
from scenarios.compare import BLIND, Row
from scenarios.records import Prediction


@dataclass(frozen=True)
class Step:
    """One step, in life-size seconds; it begins at a second of the timeline."""

    number: int
    predicted_second: float | None
    """None, as `predicted`, for an arm that is not simulated."""
    predicted: float | None
    measured_second: float
    measured: float
    network: str
    """What the network was like while it was measured, in words."""

    @property
    def error(self) -> float | None:
        """ln(measured / predicted)."""
        return None if self.predicted is None else math.log(self.measured / self.predicted)


@dataclass(frozen=True)
class History:
    """A training, and its measured steps."""

    row: Row
    steps: tuple[Step, ...]


def histories(networks: Mapping[int | None, Topology], rows: Iterable[Row],
              predictions: Sequence[Prediction]) -> Iterator[History]:
    """The trainings among the rows on networks that change, step by step.

    `networks` are the scenario's (:attr:`scenarios.scenario.Scenario.networks`), `predictions` those that the rows were
    joined from.
    """
    predicted = {prediction.key: prediction.detail.get("steps") for prediction in predictions
                 if prediction.basis == BLIND}
    for row in rows:
        topology = networks[row.timeline]
        if row.workload != "training" or not topology.timeline:
            continue
        simulated = predicted.get(row.measurements[0].key)
        steps = []
        for measurement in row.measurements:
            assert measurement.second is not None  # the runner says it wherever there is a timeline
            second, seconds = simulated[measurement.repetition] if simulated else (None, None)
            ends = measurement.second + measurement.clock_seconds * measurement.speedup
            steps.append(Step(measurement.repetition, second, seconds, measurement.second, measurement.seconds,
                              "; ".join(_meanwhile(topology, measurement.second, ends))))
        yield History(row, tuple(steps))


def _meanwhile(topology: Topology, begins: float, ends: float) -> Iterator[str]:
    """What the network is like from one second to another: as it is first, then each change."""
    yield _state(topology, begins)
    for moment in topology.timeline.moments:
        if begins < moment < ends:
            yield f"from {moment:g} s on {_state(topology, moment)}"
    for flow in topology.timeline.traffic:
        if flow.start < ends and begins < flow.end:
            yield f"traffic {flow.source} -> {flow.target}"


def _state(topology: Topology, second: float) -> str:
    """What differs from second 0, shortly: who by name if it is one, how if all differ in the same way."""
    names = defaultdict(list)
    for difference in differences(topology.state(0), topology.state(second)):
        name, _, how = difference.partition(": ")
        names[how].append(name)
    if not names:
        return "as at second 0"
    everyone = [name for who in names.values() for name in who]
    called = f"{len(everyone)} {'paths' if all('->' in name for name in everyone) else 'limits'}"
    if len(names) == 1:
        return f"{everyone[0] if len(everyone) == 1 else called}: {next(iter(names))}"
    return f"{called} are not as at second 0"
