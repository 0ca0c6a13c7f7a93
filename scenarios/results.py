"""A run directory read back: everything that the report and the figures show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from scenarios import fit, resume
from scenarios.compare import BASES, CALIBRATED, CompareError, Row, join, name, recorded
from scenarios.records import (
    Applied,
    Collective,
    Failure,
    Fidelity,
    Measurement,
    Outcome,
    Prediction,
    R,
    RecordError,
    environment,
    load,
    sha256,
)
from scenarios.scenario import AllReduce, Scenario
from scenarios.script import as_predicted
from scenarios.steps import History, histories
from scenarios.theory import Theory, ratio, theory
from scenarios.verdict import Verdict, verdict

SHOWN = 20
"""How many of the points that are missing are named."""


@dataclass(frozen=True)
class ArmFit:
    """a (seconds) and b (seconds per byte) of one arm in one world: measured, predicted by basis, and by theory."""

    arm: str
    world_size: int
    a: fit.Estimate
    line: fit.Line
    predicted_a: Mapping[str, float]
    predicted_b: Mapping[str, float]
    theory: Theory | None


@dataclass(frozen=True)
class Ratio:
    """b_gloo / b_shard of one world."""

    world_size: int
    measured: fit.Estimate
    predicted: Mapping[str, float]
    theory: float | None


@dataclass(frozen=True)
class Results:
    """One run: its records joined, fitted and summarised."""

    directory: Path
    scenario: Scenario
    environment: Mapping[str, Any]
    fidelity: tuple[Fidelity, ...]
    rows: tuple[Row, ...]
    fits: tuple[ArmFit, ...]
    ratios: tuple[Ratio, ...]
    verdict: Verdict | None
    outcomes: tuple[Outcome, ...]
    collectives: tuple[Collective, ...]
    histories: tuple[History, ...]
    """On a network that changes: its trainings, step by step."""
    applied: tuple[Applied, ...]
    failures: tuple[Failure, ...]
    missing: tuple[str, ...]
    """What the scenario asks for and was not measured, in words; then there is no error over the grid."""
    voids: tuple[tuple[int, Path], ...]
    """Campaigns that were void, and where their records are."""

    @property
    def calibrated(self) -> bool:
        """Whether there are calibrated predictions: of all points that are simulated, then."""
        return any(CALIBRATED in row.predicted for row in self.rows)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why nothing should be concluded from the run yet, each with what to do; links must have been probed."""
        found = []
        if self.missing:
            shown = [*self.missing[:SHOWN], *[f"… and {len(self.missing) - SHOWN} more"]
                     * (len(self.missing) > SHOWN)]
            found.append("INCOMPLETE: there is no verdict, no bar and no error over the grid, which are of the whole "
                         f"grid or not at all; `frogtorch measure --resume {self.directory}` goes on.\n  "
                         + "\n  ".join(shown))
        if not all(probe.valid for probe in self.fidelity):
            found.append("INVALID: links were not what the topology describes; which, is said beside the links. "
                         "Measure again before concluding anything.")
        measured = sorted({m.campaign for row in self.rows for m in (*row.measurements, *row.scaled)})
        probed = {(probe.campaign, probe.when) for probe in self.fidelity}
        if unknown := [f"{when} campaign {campaign}" for campaign in measured for when in ("before", "after")
                       if (campaign, when) not in probed]:
            found.append("NOT PROBED: nothing says that links were what the topology describes "
                         f"{', '.join(unknown)}. Measure again before concluding anything.")
        return tuple(found)

    @classmethod
    def load(cls, directory: Path) -> Results:
        """Read a measured run.

        Raises ScenarioError or TopologyError for its scenario or topology, RecordError for a wrong line, CompareError
        where predictions or measurements are missing as a whole or do not belong together, FitError where sizes for a
        or b are missing. A run that is not finished is read as far as it goes.
        """
        scenario = as_predicted(directory)
        predictions, measurements = recorded(directory, dict(scenario.networks))
        rows = join(predictions, measurements, sha256(directory / "predictions.jsonl"), partial=True)
        if not rows:
            raise CompareError(f"{directory}: nothing is measured yet; `frogtorch measure` does that")
        made_with = environment(directory) if (directory / "environment.json").exists() else {}
        _refuse_mixed_code(directory, made_with)
        missing = tuple(_missing(scenario, predictions, rows))
        fits = _fits(scenario, rows) if scenario.all_reduce else []
        return cls(
            directory, scenario, made_with, _optional(directory / "fidelity.jsonl", Fidelity),
            tuple(rows), tuple(fits), tuple(_ratios(scenario, rows, fits)),
            None if missing else _verdict(scenario, rows),
            _optional(directory / "outcomes.jsonl", Outcome),
            tuple(line for file in sorted((directory / "telemetry").glob("*.jsonl"))
                  for line in load(file, Collective)),
            tuple(histories(dict(scenario.networks), rows, predictions)),
            _optional(directory / "applied.jsonl", Applied), _optional(directory / "failures.jsonl", Failure), missing,
            tuple(resume.voids(directory)))


def _refuse_mixed_code(directory: Path, environment: Mapping[str, Any]) -> None:
    ranks = environment.get("ranks", [])
    for rank in ranks:
        if rank["modules_sha256"] != ranks[0]["modules_sha256"]:
            raise RecordError(f"{directory / 'environment.json'}: mixed code: rank {rank['rank']} on {rank['host']} (W "
                              f"= {rank['world_size']}) ran other modules than rank {ranks[0]['rank']} on "
                              f"{ranks[0]['host']}, so the run measured two systems: measure again with one")


def _missing(scenario: Scenario, predictions: Sequence[Prediction], rows: Sequence[Row]) -> Iterator[str]:
    """Say which points were not measured, or not as often as the scenario says."""
    measured = {row.key for row in rows}
    yield from dict.fromkeys(f"not measured: {name(p.key)}" for p in predictions if p.key not in measured)
    predicted = {(p.arm, p.world_size, p.workload) for p in predictions}
    if scenario.training:  # those that nobody predicts
        workload = "script" if scenario.training.script else "training"
        views = (None,) if scenario.training.script else scenario.training.bucket_views
        seen = {(row.arm, row.world_size, row.workload, row.bucket_view, row.timeline) for row in rows}
        for (timeline, _), arm, world, view in product(scenario.networks, scenario.arms, scenario.worlds, views):
            if (arm, world, workload) not in predicted and (arm, world, workload, view, timeline) not in seen:
                setting = "" if view is None else f", bucket view {'on' if view else 'off'}"
                yield f"not measured: {arm}, W={world}, {workload}{setting}" + (
                    "" if timeline is None else f", timeline {timeline}")
    for row in rows:
        steps = scenario.training.steps - scenario.training.warmup if scenario.training else 0
        wanted = {"all_reduce": scenario.repetitions, "training": steps}.get(row.workload, 0)
        if row.measured.n < wanted:
            yield f"{row.measured.n} of {wanted} times measured: {name(row.key)}"


def _optional(file: Path, kind: type[R]) -> tuple[R, ...]:
    return tuple(load(file, kind)) if file.exists() else ()


def _fits(scenario: Scenario, rows: list[Row]) -> list[ArmFit]:
    assert scenario.all_reduce is not None
    wanted = {scenario.all_reduce.intercept, *scenario.all_reduce.slope}
    return [_fit(scenario, scenario.all_reduce, world_size, arm, rows)
            for world_size in scenario.worlds for arm in scenario.arms
            if wanted <= {row.nbytes for row in _of(rows, world_size, arm)}]


def _fit(scenario: Scenario, sizes: AllReduce, world_size: int, arm: str, rows: list[Row]) -> ArmFit:
    own = _of(rows, world_size, arm)
    measurements = _measurements(own)
    times = {basis: {row.nbytes: row.predicted[basis] for row in own} for basis in BASES
             if all(basis in row.predicted for row in own)}
    return ArmFit(
        arm, world_size, fit.intercept(measurements, sizes.intercept), fit.line(measurements, sizes.slope),
        {basis: of[sizes.intercept] for basis, of in times.items()},
        {basis: fit.predicted(of, sizes.slope) for basis, of in times.items()},
        theory(scenario.topology, scenario.worlds[world_size], arm))


def _ratios(scenario: Scenario, rows: list[Row], fits: list[ArmFit]) -> list[Ratio]:
    by_point = {(f.world_size, f.arm): f for f in fits}
    found = []
    for world_size, hosts in scenario.worlds.items():
        ring, shard = by_point.get((world_size, "gloo")), by_point.get((world_size, "shard"))
        if scenario.all_reduce and ring and shard:
            measured = fit.ratio(_measurements(_of(rows, world_size, "gloo")),
                                 _measurements(_of(rows, world_size, "shard")), scenario.all_reduce.slope)
            predicted = {basis: ring.predicted_b[basis] / b for basis, b in shard.predicted_b.items()}
            found.append(Ratio(world_size, measured, predicted, ratio(scenario.topology, hosts)))
    return found


def _verdict(scenario: Scenario, rows: list[Row]) -> Verdict | None:
    if scenario.rule is None or scenario.all_reduce is None:
        return None
    times = {world: (_measurements(_of(rows, world, "gloo")), _measurements(_of(rows, world, "shard")))
             for world in scenario.rule.worlds}
    return verdict(scenario.rule, times, scenario.all_reduce.slope)


def _of(rows: list[Row], world_size: int, arm: str) -> list[Row]:
    return [row for row in rows if (row.arm, row.world_size, row.workload) == (arm, world_size, "all_reduce")]


def _measurements(rows: list[Row]) -> list[Measurement]:
    return [m for row in rows for m in row.measurements]
