"""What several runs say together: how far predictions are off over all of them, and what is distance and what is world.

The second is for runs of the same worlds and sizes on networks that differ: a time T by (network, W) changes from one
corner of the table to the opposite one by a factor that is a product of two, network and W; which two depends on the
order of the steps, so each is the geometric mean over both orders (Shapley's value of ln T), and they multiply to all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Group
from rich.text import Text

from emulator.units import format_size
from scenarios import compare, tables
from scenarios.compare import BLIND, Row
from scenarios.results import Results

MEDIAN, P90, MAXIMUM = 0.05, 0.10, 0.15
"""What |ln(measured / predicted)| may be, over all points."""

Times = Mapping[tuple[str, int], float]
"""Seconds by network and world size."""


@dataclass(frozen=True)
class Jump:
    """From one world on one network to a larger one on another: T grows `distance` · `world` times."""

    arm: str
    nbytes: int
    near: tuple[str, int]
    far: tuple[str, int]
    distance: float
    world: float

    @property
    def share(self) -> float:
        """What of ln T is distance: 1 if all of it is, above 1 if the world alone makes it shorter."""
        return math.log(self.distance) / math.log(self.distance * self.world)


def jump(arm: str, nbytes: int, times: Times, near: tuple[str, int], far: tuple[str, int]) -> Jump:
    """Split what happens from `near` to `far`; `times` has all four corners."""
    (a, small), (b, large) = near, far
    distance = math.sqrt(times[b, small] / times[a, small] * times[b, large] / times[a, large])
    return Jump(arm, nbytes, near, far, distance, times[far] / times[near] / distance)


def score(runs: Sequence[Results]) -> Group:
    """The errors over all points of the runs, and whether they keep the bars.

    Raises ValueError if a run is not finished.
    """
    if unfinished := [run for run in runs if run.missing]:
        raise ValueError(f"{unfinished[0].directory} is not finished, and errors are over the whole grid or not at "
                         f"all; go on with `frogtorch measure --resume {unfinished[0].directory}`")
    rows = [row for run in runs for row in run.rows]
    shown = tables.errors(rows)
    for e in compare.errors(rows):
        if e.basis in compare.SIMULATED:
            kept = e.median <= MEDIAN and e.p90 <= P90 and e.maximum <= MAXIMUM
            said = f"{'within' if kept else 'BEYOND'} median {MEDIAN:g}, p90 {P90:g}, maximum {MAXIMUM:g}"
            shown.renderables.append(Text(f"{e.arm}, {e.basis}: {said}", style="" if kept else "bold red"))
    return shown


def distance(runs: Sequence[Results]) -> list[Group]:
    """T by network and world, for every arm and size that all the networks have; [] if no two networks share any."""
    by: defaultdict[tuple[str, int], dict[tuple[str, int], Row]] = defaultdict(dict)
    for run in runs:
        for row in run.rows:
            if row.workload == "all_reduce":
                by[row.arm, row.nbytes][run.scenario.topology.name, row.world_size] = row
    networks = list(dict.fromkeys(run.scenario.topology.name for run in runs))
    worlds = sorted(set.intersection(*({*run.scenario.worlds} for run in runs)))
    corners = [(network, world) for network in networks for world in worlds]
    whole = {point: rows for point, rows in sorted(by.items(), key=lambda item: item[0][1])
             if all(corner in rows for corner in corners)}
    if len(networks) < 2 or len(worlds) < 2 or not whole:
        return []
    return [_times(whole, networks, worlds), *_jumps(whole, networks, worlds)]


def _times(whole: Mapping[tuple[str, int], Mapping[tuple[str, int], Row]], networks: Iterable[str],
           worlds: Iterable[int]) -> Group:
    worlds = list(worlds)
    table = tables.sheet("size", "arm", "network", *(f"W = {world}" for world in worlds),
                         *(f"W = {world}, predicted" for world in worlds))
    for (arm, nbytes), rows in whole.items():
        for network in networks:
            own = [rows[network, world] for world in worlds]
            table.add_row(format_size(nbytes), arm, network, *(tables.time(row.measured.value) for row in own),
                          *(tables.time(row.predicted[BLIND]) if BLIND in row.predicted else tables.NONE
                            for row in own))
    return tables.titled("Distance or world size: median seconds of an all-reduce", table)


def _jumps(whole: Mapping[tuple[str, int], Mapping[tuple[str, int], Row]], networks: Sequence[str],
           worlds: Sequence[int]) -> Iterable[Group]:
    """From every network to the next that was named, and from every world to the next larger."""
    for a, b in pairwise(networks):
        for small, large in pairwise(worlds):
            table = tables.sheet("size", "arm", "all", "distance", "world", "distance's share of ln",
                                 "predicted: all", "distance", "world")
            for (arm, nbytes), rows in whole.items():
                found = jump(arm, nbytes, {corner: row.measured.value for corner, row in rows.items()}, (a, small),
                             (b, large))
                cells = [f"× {found.distance * found.world:.3f}", f"× {found.distance:.3f}", f"× {found.world:.3f}",
                         f"{found.share:.0%}"]
                if all(BLIND in row.predicted for row in rows.values()):
                    expected = jump(arm, nbytes, {corner: row.predicted[BLIND] for corner, row in rows.items()},
                                    (a, small), (b, large))
                    cells += [f"× {expected.distance * expected.world:.3f}", f"× {expected.distance:.3f}",
                              f"× {expected.world:.3f}"]
                table.add_row(format_size(nbytes), arm, *cells)
            yield tables.titled(f"From W = {small} on {a} to W = {large} on {b}: T grows by both factors together",
                                table)
