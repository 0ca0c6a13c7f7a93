"""What changed between two runs: their points, as ratios with intervals, and what they were made with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text
from scipy import stats

from emulator.units import format_size
from scenarios.compare import CompareError, Row
from scenarios.fit import LEVEL, RESAMPLES, Estimate
from scenarios.results import Results
from scenarios.tables import NONE, interval, on_off, sheet, time, titled

_OF_THE_DAY = ("date", "command", "schema")
"""What two runs never have in common."""
_LEAST = 6
"""Repetitions of a run, below which their median has no interval."""


def changes(first: Path, second: Path) -> tuple[RenderableType, bool]:
    """Say what of run B, the second, is not as in run A: for a rich Console; and whether both runs are beyond doubt.

    The ratio of a point is B's median over A's; each run's repetitions are resampled by themselves, as they have no
    block in common. A point changed where the 95 % interval of its ratio leaves out 1. Raises what
    :meth:`Results.load` raises, and CompareError where the runs have no point in common.
    """
    a, b = Results.load(first), Results.load(second)
    before, after = ({row.key: row for row in results.rows} for results in (a, b))
    common = [key for key in before if key in after]
    if not common:
        raise CompareError(f"{first} and {second} have no point in common: no arm of one world and size was measured "
                           "in both")
    table = sheet("W", "workload", "arm", "view", "size", "A, s", "B, s", "B ÷ A", "95 % interval", "what changed")
    found = {True: 0, False: 0}
    for key in common:
        old, new = before[key], after[key]
        ratio = _ratio(old, new)
        sure = ratio.interval is not None and not ratio.interval[0] <= 1 <= ratio.interval[1]
        said = "" if not sure else "slower" if ratio.value > 1 else "faster"
        if sure:
            found[ratio.value > 1] += 1
        workload = new.workload if new.timeline is None else f"{new.workload}, timeline {new.timeline}"
        table.add_row(str(new.world_size), workload, new.arm, on_off(new.bucket_view), format_size(new.nbytes),
                      time(old.measured.value), time(new.measured.value), f"{ratio.value:.3f}", interval(ratio),
                      said + (", other hosts" if old.hosts != new.hosts else ""))
    summary = Text(f"Of {len(common)} points, {found[True]} are slower in B, {found[False]} faster, and "
                   f"{len(common) - sum(found.values())} not told apart.", style="bold")
    parts: list[RenderableType] = [Text(f"A: {first}\nB: {second}"), summary,
                                   titled("B against A, medians, life-size", table)]
    for name, only in ((first, before.keys() - after.keys()), (second, after.keys() - before.keys())):
        if only:
            parts.append(Text(f"Only in {name}: {len(only)} points"))
    parts.append(_environment(a, b))
    doubts = [Text(f"{name}: {doubt}", style="bold red") for name, of in (("A", a), ("B", b)) for doubt in of.doubts]
    return Group(*(item for part in (*parts, *doubts) for item in (part, Text()))), not doubts


def _ratio(old: Row, new: Row) -> Estimate:
    above, below = (np.asarray([m.seconds for m in row.measurements]) for row in (new, old))
    value, n = float(np.median(above) / np.median(below)), len(above) + len(below)
    if min(len(above), len(below)) < _LEAST:
        return Estimate(value, None, n)
    found = stats.bootstrap((above, below), lambda x, y, axis: np.median(x, axis=axis) / np.median(y, axis=axis),
                            n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile",
                            random_state=np.random.default_rng(0)).confidence_interval
    return Estimate(value, (float(found.low), float(found.high)), n)


def _environment(a: Results, b: Results) -> RenderableType:
    """What they were made with that is not the same in both."""
    table = sheet("what", "A", "B")
    values = [dict(_flat({name: value for name, value in results.environment.items() if name not in _OF_THE_DAY}
                         | {"scenario.yaml": results.scenario.text, "topology.yaml": results.scenario.topology.text}))
              for results in (a, b)]
    for name in dict.fromkeys([*values[0], *values[1]]):
        old, new = (of.get(name, NONE) for of in values)
        if old != new:
            text = "\n" in old or "\n" in new
            table.add_row(name, *(("as here", "differs") if text else (old, new)))
    return titled("What they were made with, where it differs", table) if table.row_count else Text(
        "Both were made with the same: machine, versions, modules, links, scenario and topology.")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}: ")
        elif isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, dict):
                    yield from _flat(one, f"{prefix}{name} {index}: ")
                else:
                    yield f"{prefix}{name} {index}", json.dumps(one)
        else:
            yield prefix + name, value if isinstance(value, str) else json.dumps(value)
