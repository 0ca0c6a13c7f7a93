"""What a measured run writes into its directory, as it goes: :mod:`scenarios.records` says what each file holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from emulator.links.fidelity import PathFidelity
from scenarios.campaigns import Campaign
from scenarios.predict import NOTHING, computed
from scenarios.records import Applied, Failure, Fidelity, Measurement, Outcome, append, environment, rewrite, sha256
from scenarios.scenario import Training

_REDUCTIONS = ("all_reduce", "faithful")


class Recorder:
    """Adds to the records of a run whose predictions are written."""

    def __init__(self, directory: Path) -> None:
        """Raises RecordError for an environment.json that is none."""
        self._directory = directory
        self._prediction = sha256(directory / "predictions.jsonl")
        environment(directory)      # which is added to, and must not be refused when something is measured
        (directory / "telemetry").mkdir(exist_ok=True)

    def measurement(self, spans: Sequence[tuple[float, float]], life: Callable[[float], float], campaign: Campaign, *,
                    hosts: tuple[str, ...], in_step: bool = True, **point: Any) -> None:
        """Record a repetition: each rank's start and end, and what makes life-size seconds of the clock's."""
        starts, ends = zip(*spans, strict=True)
        clock = max(ends) - min(starts) if in_step else max(end - start for start, end in spans)
        append(self._directory / "measurements.jsonl", [Measurement(
            world_size=len(hosts), hosts=hosts, speedup=campaign.speedup, campaign=campaign.index,
            timeline=campaign.timeline, seconds=life(clock), clock_seconds=clock,
            rank_seconds=tuple(end - start for start, end in spans), start_skew_seconds=max(starts) - min(starts),
            prediction=self._prediction, **point)])

    def steps(self, results: list[Any], campaign: Campaign, training: Training,
              second: Callable[[float], float] | None, life: Callable[[float], float], *, steps: int | None = None,
              **point: Any) -> None:
        """Record the steps after the warm-up; `second` is what makes a second of a timeline of a time by the clock."""
        for step in range(training.warmup, steps or training.steps):
            spans = [result["steps"][step] for result in results]
            began = second(min(start for start, _ in spans)) if second else None
            exchange = None
            if point.get("in_step", True) and "exchanges" in results[0]:
                ready, exchanged = zip(*(result["exchanges"][step] for result in results), strict=True)
                exchange = max(exchanged) - max(ready)
            slept = tuple(result["slept"][step] for result in results if "slept" in result)
            self.measurement(spans, life, campaign, repetition=step, second=began, exchange_seconds=exchange,
                             slept_seconds=slept if any(slept) else None, **point)

    def outcomes(self, results: list[Any], campaign: Campaign, **point: Any) -> None:
        """Record what each rank had in the end, and what its backend saw. The outcomes come last: they finish it."""
        self.telemetry(results, campaign=campaign.index, speedup=campaign.speedup,
                       **{name: point[name] for name in ("workload", "arm", "bucket_view")})
        outcomes = []
        for rank, result in enumerate(results):
            reduced = [seen for seen in result["telemetry"] if seen["collective"] in _REDUCTIONS]
            outcomes.append(Outcome(
                world_size=len(point["hosts"]), speedup=campaign.speedup, campaign=campaign.index,
                timeline=campaign.timeline, rank=rank, all_reduces=len(reduced) or None,
                **point, **{name: result.get(name) for name in ("parameters_sha256", "held_out_loss",
                                                                "held_out_accuracy", "incorporated")}))
        append(self._directory / "outcomes.jsonl", outcomes)

    def telemetry(self, results: list[dict[str, Any]], **point: Any) -> None:
        """Record what each rank's backend saw of a point."""
        for rank, result in enumerate(results):
            with (self._directory / "telemetry" / f"rank{rank}.jsonl").open("a", encoding="utf-8") as lines:
                for seen in result["telemetry"]:
                    lines.write(json.dumps({**seen, **point}) + "\n")

    def applied(self, changes: Iterable[Applied]) -> None:
        """Record what of a timeline was done to the network."""
        append(self._directory / "applied.jsonl", changes)

    def failure(self, campaign: Campaign, error: Exception, **point: Any) -> Failure:
        """Record that an error ended a point."""
        failure = Failure(campaign=campaign.index, speedup=campaign.speedup, world_size=len(point["hosts"]),
                          error=str(error), date=datetime.now(UTC).isoformat(timespec="seconds"), **point)
        append(self._directory / "failures.jsonl", [failure])
        return failure

    def fidelity(self, campaign: Campaign, when: Literal["before", "after"], paths: Iterable[PathFidelity]) -> None:
        """Record what the paths were like, before or after a campaign."""
        append(self._directory / "fidelity.jsonl", [
            Fidelity(campaign=campaign.index, when=when, speedup=campaign.speedup, source=path.source,
                     target=path.target, rtt_seconds=path.rtt, expected_rtt_seconds=path.expected_rtt,
                     goodput=path.goodput, expected_goodput=path.expected_goodput, valid=path.valid,
                     attempts=path.attempts)
            for path in paths])

    def printed(self, results: list[Any], arm: str, world: int, campaign: Campaign) -> None:
        """Keep what a script has printed."""
        (self._directory / "printed").mkdir(exist_ok=True)
        of = "" if campaign.timeline is None else f"-campaign{campaign.index}"
        for rank, result in enumerate(results):
            (self._directory / "printed" / f"{arm}-W{world}{of}-rank{rank}.txt").write_text(result["printed"])

    def compute(self, world_size: int) -> dict[str, float]:
        """Seconds of the parts of a step without its exchange, as the predictions took them."""
        file = self._directory / "compute.json"
        return computed(file, [world_size])[str(world_size)] if file.exists() else NOTHING

    def refuse_mixed_code(self, modules: Sequence[dict[str, str]], world: Sequence[str]) -> None:
        """Record what each rank runs; raises ValueError if it is not the same as on every other, and as so far."""
        mine: list[dict[str, Any]] = [
            {"world_size": len(world), "rank": rank, "host": host, "modules_sha256": modules[rank]}
            for rank, host in enumerate(world)]
        known = environment(self._directory).get("ranks", [])
        first = (*known, *mine)[0]
        for other in mine:
            if other["modules_sha256"] != first["modules_sha256"]:
                parts = sorted(name for name, digest in other["modules_sha256"].items()
                               if digest != first["modules_sha256"].get(name))
                raise ValueError(f"mixed code: rank {other['rank']} on {other['host']} does not run the same "
                                 f"{' and '.join(parts)} as rank {first['rank']} on {first['host']} did (SHA-256 of "
                                 "their modules): install one version on every host, and predict into a new run "
                                 "directory if this one has measured with another")
        self.stamp("ranks", [one for one in mine if one not in known])

    def stamp(self, what: str, more: list[Any]) -> None:
        """Add to a list of environment.json."""
        known = environment(self._directory)
        known.setdefault(what, []).extend(more)
        rewrite(self._directory / "environment.json", (json.dumps(known, indent=2) + "\n").encode())
