"""What of a run is measured already; so a run that was ended, however, goes on from its last finished point.

A repetition of an all-reduce is finished when its measurement is written, which is the last that is written of it; a
training when the outcomes of all its ranks are. What else a killed run left (a line that is cut off, telemetry of a
repetition without a measurement, steps of a training without outcomes) is removed before the run goes on: nothing that
was finished is lost, and nothing counts twice.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scenarios.records import Fidelity, Measurement, Outcome, RecordError, load, rewrite

MEASURED = ("measurements.jsonl", "outcomes.jsonl", "applied.jsonl", "failures.jsonl", "fidelity.jsonl")
"""The files that measuring adds lines to, beside those of telemetry/; each line says its campaign."""
_OF_CAMPAIGNS = ("fidelity.jsonl", "failures.jsonl")
"""Whose lines are about no repetition or training alone."""
RERUNS = 1
"""How often a campaign is measured again whose links were not what the topology describes."""

Key = tuple[Any, ...]
"""(campaign, workload, world size, arm, then bytes and repetition, or bucket view)"""


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Measure into a run directory; raises ValueError if another process does.

    The lock is on predictions.jsonl, which nobody changes. It goes with the process, however that ends.
    """
    with (directory / "predictions.jsonl").open("r+b") as held:      # for writing: NFS locks no other file
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{directory}: another process{_who_locks(held.fileno())} measures into this run "
                             "directory; wait until it has ended, then `frogtorch measure --resume` goes on if "
                             "anything is left") from None
        yield


def _who_locks(descriptor: int) -> str:
    """Its number, as far as the kernel tells: proc_locks(5)."""
    inode = str(os.fstat(descriptor).st_ino)
    return next((f", number {pid}," for _, kind, _, _, pid, file, *_ in
                 map(str.split, Path("/proc/locks").read_text().splitlines())
                 if kind == "FLOCK" and file.rpartition(":")[2] == inode), "")


def repetition(campaign: int, world_size: int, arm: str, nbytes: int, number: int) -> Key:
    """Of an all-reduce."""
    return campaign, "all_reduce", world_size, arm, nbytes, number


def training(campaign: int, workload: str, world_size: int, arm: str, view: bool | None) -> Key:
    """Of a training arm, or of a script."""
    return campaign, workload, world_size, arm, view


def finished(directory: Path) -> set[Key]:
    """What is measured whole."""
    done = {_key(m.model_dump()) for m in _load(directory / "measurements.jsonl", Measurement)
            if m.workload == "all_reduce"}
    ranks: dict[Key, set[int]] = defaultdict(set)
    for outcome in _load(directory / "outcomes.jsonl", Outcome):
        key = _key(outcome.model_dump())
        ranks[key].add(outcome.rank)
        if len(ranks[key]) == outcome.world_size:
            done.add(key)
    return done


def mend(directory: Path) -> None:
    """Remove what is there of repetitions and trainings that are not finished, and lines that are cut off.

    Raises RecordError for a line that is broken otherwise.
    """
    done = finished(directory)
    kept = {file: _those(file, lambda line: _key(line) in done) if file.name not in _OF_CAMPAIGNS
            else _those(file, lambda line: True) for file in _files(directory)}
    for file, lines in kept.items():
        rewrite(file, b"".join(lines))


def probed(directory: Path, campaign: int) -> bool:
    """Whether the links have been probed after the campaign, and so whether it has come to its end."""
    return any(probe.campaign == campaign and probe.when == "after"
               for probe in _load(directory / "fidelity.jsonl", Fidelity))


def off(directory: Path, campaign: int) -> list[str]:
    """The paths that were not what the topology describes, before or after the campaign."""
    return sorted({f"{probe.source} -> {probe.target}" for probe in _load(directory / "fidelity.jsonl", Fidelity)
                   if probe.campaign == campaign and not probe.valid})


def voids(directory: Path) -> Iterator[tuple[int, Path]]:
    """The campaigns that are void, and where what they measured is kept."""
    for kept in sorted((directory / "void").glob("campaign*-*")):
        yield int(kept.name.removeprefix("campaign").partition("-")[0]), kept


def void(directory: Path, campaign: int) -> Path:
    """Move everything that a campaign measured to a directory of its own, which is returned."""
    number = sum(of == campaign for of, _ in voids(directory)) + 1
    kept = directory / "void" / f"campaign{campaign}-{number}"
    # The probes last: killed in between, the campaign is still one whose links were off.
    for file in sorted(_files(directory), key=lambda file: file.name == "fidelity.jsonl"):
        if gone := _those(file, lambda line: line.get("campaign") == campaign):
            copy = kept / file.relative_to(directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(b"".join(gone))
            rewrite(file, b"".join(_those(file, lambda line: line.get("campaign") != campaign)))
    return kept


def _key(line: dict[str, Any]) -> Key:
    workload = line["workload"]
    if workload == "all_reduce":
        return repetition(line["campaign"], line["world_size"], line["arm"], line["nbytes"], line["repetition"])
    return training(line["campaign"], workload, line["world_size"], line["arm"], line.get("bucket_view"))


def _files(directory: Path) -> list[Path]:
    named = [directory / name for name in MEASURED]
    return [file for file in (*named, *sorted((directory / "telemetry").glob("*.jsonl"))) if file.exists()]


def _those(file: Path, wanted: Callable[[dict[str, Any]], bool]) -> list[bytes]:
    """Its lines that are wanted; one without an end was cut off. Raises RecordError for one that is no record."""
    found = []
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        try:
            if line.endswith(b"\n") and wanted(dict(json.loads(line))):
                found.append(line)
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{file}:{number}: this is no record of a run ({error!r}): take the line out, and what "
                              "it was about is measured again") from None
    return found


def _load(file: Path, kind: Any) -> Iterable[Any]:
    return load(file, kind) if file.exists() else ()
