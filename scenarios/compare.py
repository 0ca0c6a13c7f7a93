"""Joins a run's predictions with its measurements, and says how far apart they are.

The error of a point is ln(measured median / predicted): symmetric, and it adds up, where a percentage makes twice too
long look worse than half as long. Summaries take |ln| over the whole grid: a point without its counterpart is refused,
never left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.topology import Topology
from scenarios import fit
from scenarios.arms import ARMS
from scenarios.records import Measurement, Point, Prediction, load

BLIND, CALIBRATED, CLOSED_FORM = "blind", "calibrated", "closed form"
BASES = BLIND, CALIBRATED, CLOSED_FORM
SIMULATED = BLIND, CALIBRATED
"""The simulator's own; of the two only a run with a calibration has the second."""
ALL_ARMS = "all arms"

Key = tuple[str, int, str, int, bool | None, int | None]
"""Point.key: arm, world size, workload, bytes, bucket view, timeline."""


class CompareError(ValueError):
    """Predictions and measurements that do not belong together: says which points or hashes."""


@dataclass(frozen=True)
class Row:
    """One point, predicted and measured. Times are life-size seconds."""

    arm: str
    world_size: int
    workload: str
    nbytes: int
    bucket_view: bool | None
    timeline: int | None
    hosts: tuple[str, ...]
    predicted: Mapping[str, float]
    """By basis; the closed form may be missing for a training workload, and all for an arm that is not simulated."""
    measured: fit.Estimate
    measurements: tuple[Measurement, ...]
    """At the scenario's speed-up for this size: those that count."""
    scaled: tuple[Measurement, ...]
    """At other speed-ups: they prove that it changes nothing, and are in no median, fit or error."""

    @property
    def key(self) -> Key:
        """As Point.key."""
        return self.arm, self.world_size, self.workload, self.nbytes, self.bucket_view, self.timeline

    def error(self, basis: str) -> float | None:
        """Return ln(measured median / predicted); None without a prediction of that basis."""
        predicted = self.predicted.get(basis)
        return None if predicted is None else math.log(self.measured.value / predicted)


@dataclass(frozen=True)
class Errors:
    """|ln(measured / predicted)| of one arm over all `points` of the grid that have this basis."""

    arm: str
    """Or ALL_ARMS."""
    basis: str
    points: int
    median: float
    p90: float
    """The smallest error of a point that at least 90 % of the points do not exceed."""
    maximum: float


def recorded(directory: Path, networks: Mapping[int | None, Topology]
             ) -> tuple[list[Prediction], list[Measurement]]:
    """The predictions of a run directory, and its measurements, which are none before it is measured.

    `networks` are its scenario's (:attr:`scenarios.scenario.Scenario.networks`). Raises RecordError for a line that is
    no record, CompareError for one about another network than these, for a repetition that is there twice, and without
    predictions.
    """
    predicted, measured = directory / "predictions.jsonl", directory / "measurements.jsonl"
    if not predicted.exists():
        raise CompareError(f"{predicted}: there is no such file; `frogtorch predict` writes it")
    predictions = load(predicted, Prediction)
    measurements = load(measured, Measurement) if measured.exists() else []
    both: tuple[tuple[Path, Sequence[Prediction | Measurement]], ...] = (
        (predicted, predictions), (measured, measurements))
    for file, points in both:
        for line, point in enumerate(points, 1):
            _refuse_stranger(f"{file}:{line}: ", point, networks)
    lines: dict[tuple[Key, float, int, int], int] = {}
    for line, m in enumerate(measurements, 1):
        first = lines.setdefault((m.key, m.speedup, m.campaign, m.repetition), line)
        if first != line:
            raise CompareError(f"{measured}:{line}: line {first} has this repetition already ({name(m.key)}, campaign "
                               f"{m.campaign}, repetition {m.repetition}), and it was measured once: take one of the "
                               "two lines out")
    return predictions, measurements


def _refuse_stranger(where: str, point: Prediction | Measurement, networks: Mapping[int | None, Topology]) -> None:
    about = "topology.yaml" if point.timeline is None else f"campaigns/{point.timeline}.yaml"
    if point.timeline not in networks:
        raise CompareError(f"{where}it is about {about}, which the scenario does not have: predict again")
    known = networks[point.timeline]
    if isinstance(point, Prediction):
        if point.topology_sha256 != known.sha256:
            raise CompareError(f"{where}predictions are about another {about} (SHA-256 {point.topology_sha256[:12]}…, "
                               f"not {known.sha256[:12]}…): put back the one that was predicted, or predict again")
    elif point.second is None and point.workload == "training" and known.timeline:
        raise CompareError(f"{where}it lacks 'second', which says when in the timeline its step began: measure again")


def refuse_others(measurements: Sequence[Measurement], digest: str) -> None:
    """Raise CompareError for measurements that answer other predictions than those of a file of that SHA-256."""
    strangers = [m for m in measurements if m.prediction != digest]
    if strangers:
        first = strangers[0]
        raise CompareError(
            f"{len(strangers)} of {len(measurements)} measurements answer other predictions: {name(first.key)}, "
            f"repetition {first.repetition}, carries {first.prediction[:12]}…, predictions.jsonl is "
            f"{digest[:12]}…; predictions must not change after measuring: put them back as they were, or predict into "
            "a new run directory, and measure that")


def join(predictions: Sequence[Prediction], measurements: Sequence[Measurement], digest: str,
         partial: bool = False) -> list[Row]:
    """Return a row a point, in the order of the predictions.

    `digest` is the SHA-256 of the predictions' file. A point's measurements are those at the speed-up for which it was
    predicted; those at others are its row's `scaled`. With `partial` points that are not measured are left out, to show
    a run that is not finished: no error over the grid may be taken of it.

    Raises CompareError when a measurement answers other predictions, ran on other hosts, or when a point has no
    prediction (blind; closed form too for an all-reduce; calibrated if any is; of an arm that is not simulated none)
    or no measurement.
    """
    refuse_others(measurements, digest)
    predicted: dict[Key, dict[str, Prediction]] = defaultdict(dict)
    for p in predictions:
        if p.basis in predicted[p.key]:
            raise CompareError(f"{name(p.key)} has two predictions, {p.basis}")
        predicted[p.key][p.basis] = p
    measured: dict[Key, list[Measurement]] = defaultdict(list)
    scaled: dict[Key, list[Measurement]] = defaultdict(list)
    for m in measurements:
        speedups = {p.speedup for p in predicted.get(m.key, {}).values()}
        (measured if not speedups or m.speedup in speedups else scaled)[m.key].append(m)
    _refuse_gaps(predicted, measured, partial)
    keys = [*(key for key in predicted if key in measured), *(key for key in measured if key not in predicted)]
    return [_row(list(predicted.get(key, {}).values()), measured[key], scaled[key]) for key in keys]


def errors(rows: Iterable[Row]) -> list[Errors]:
    """Summarise the errors per arm and basis, arms in the order of the rows; last, if there are several, of all."""
    grid: dict[tuple[str, str], list[float]] = defaultdict(list)
    over: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        for basis in BASES:
            error = row.error(basis)
            if error is not None:
                grid[row.arm, basis].append(abs(error))
                over[ALL_ARMS, basis].append(abs(error))
    if len({arm for arm, _ in grid}) > 1:
        grid |= over
    return [Errors(arm, basis, len(of), float(np.median(of)),
                   float(np.quantile(of, 0.9, method="inverted_cdf")), max(of))
            for (arm, basis), of in grid.items()]


@dataclass(frozen=True)
class Beaten:
    """An arm that the closed form predicts better than the simulator: medians of |ln|, over the points with both."""

    arm: str
    basis: str
    """The simulator's."""
    simulator: float
    closed_form: float


def beaten(rows: Iterable[Row]) -> list[Beaten]:
    """By arm, in the order of the rows, and last over all arms."""
    rows = [row for row in rows if CLOSED_FORM in row.predicted]
    found = []
    for arm in [*dict.fromkeys(row.arm for row in rows), ALL_ARMS]:
        own = [row for row in rows if arm in (row.arm, ALL_ARMS)]
        for basis in SIMULATED:
            if own and all(basis in row.predicted for row in own):
                ours, theirs = (float(np.median([abs(row.error(of) or 0.0) for row in own]))
                                for of in (basis, CLOSED_FORM))
                if theirs < ours:
                    found.append(Beaten(arm, basis, ours, theirs))
    return found


def _refuse_gaps(predicted: Mapping[Key, Mapping[str, Prediction]],
                 measured: Mapping[Key, Sequence[Measurement]], partial: bool) -> None:
    gaps = [] if partial else [f"not measured: {name(key)}" for key in predicted if key not in measured]
    simulated = SIMULATED if any(CALIBRATED in by for by in predicted.values()) else (BLIND,)
    for key in predicted.keys() | measured.keys():
        arm = ARMS.get(key[0])
        unknown = key[2] == "script" or (arm is not None and not arm.simulated)
        needed = () if unknown else (*simulated, CLOSED_FORM) if key[2] == "all_reduce" else simulated
        gaps += [f"not predicted ({basis}): {name(key)}" for basis in needed if basis not in predicted.get(key, {})]
    if gaps:
        raise CompareError("the grid has gaps, and errors are reported over the whole grid or not at all:\n  "
                           + "\n  ".join(sorted(gaps)))


def _row(predictions: Sequence[Prediction], measurements: Sequence[Measurement], scaled: Sequence[Measurement]) -> Row:
    point: Point = (*predictions, *measurements)[0]
    for other in (*predictions, *measurements, *scaled):
        if other.hosts != point.hosts:
            how = "measured" if isinstance(other, Measurement) else "also predicted"
            raise CompareError(f"{name(point.key)}: predicted on {', '.join(point.hosts)}, but {how} on "
                               f"{', '.join(other.hosts)}")
    return Row(*point.key, point.hosts, {p.basis: p.seconds for p in predictions},
               fit.median([m.seconds for m in measurements]), tuple(measurements), tuple(scaled))


def name(key: Key) -> str:
    """Say which point it is."""
    arm, world_size, workload, nbytes, view, timeline = key
    setting = "" if view is None else f", bucket view {'on' if view else 'off'}"
    campaign = "" if timeline is None else f", timeline {timeline}"
    return f"{arm}, W={world_size}, {workload} of {nbytes} bytes{setting}{campaign}"
