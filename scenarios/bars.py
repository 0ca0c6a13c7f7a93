"""Bars: what a scenario demands of its run, as ratios that are taken within it, so that a slow machine breaks none.

A bar is broken when the whole 95 % interval of the ratio is beyond it (the value itself, with too few repetitions for
an interval): what one disturbed repetition did is no regression.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from emulator.units import format_size
from scenarios import fit
from scenarios.compare import BLIND, Row
from scenarios.fit import Estimate
from scenarios.results import Results
from scenarios.scenario import PREDICTED, THEORY, Bar


@dataclass(frozen=True)
class Check:
    """A bar, held against one point (or, of theory, against one world's b)."""

    bar: Bar
    where: str
    """The point, in words."""
    ratio: Estimate

    @property
    def broken(self) -> bool:
        """Whether all of the ratio's interval is beyond the bar."""
        low, high = self.ratio.interval or (self.ratio.value, self.ratio.value)
        return low > self.bar.at_most or high < self.bar.at_least


def checks(results: Results) -> list[Check]:
    """Hold every bar of the scenario against every point that it is about, in the order of the bars."""
    return [check for bar in results.scenario.bars for check in _of(results, bar)]


def _of(results: Results, bar: Bar) -> Iterator[Check]:
    if bar.over == THEORY:
        for found in results.fits:
            if found.arm == bar.arm and bar.world in (None, found.world_size) and found.theory:
                yield Check(bar, f"W = {found.world_size}, b", _over(found.line.slope, found.theory.slope))
        return
    rows = {(row.arm, row.world_size, row.nbytes): row for row in results.rows if row.workload == "all_reduce"}
    for (arm, world, nbytes), row in rows.items():
        if arm == bar.arm and bar.world in (None, world) and bar.size in (None, nbytes):
            yield Check(bar, f"W = {world}, {format_size(nbytes)}",
                        _over(row.measured, row.predicted[BLIND]) if bar.over == PREDICTED
                        else fit.ratio_of_medians(_blocks(row), _blocks(rows[bar.over, world, nbytes])))


def _over(estimate: Estimate, value: float) -> Estimate:
    interval = estimate.interval and (estimate.interval[0] / value, estimate.interval[1] / value)
    return Estimate(estimate.value / value, interval, estimate.n)


def _blocks(row: Row) -> list[list[float]]:
    """A point's seconds, a row a block, in the order of (campaign, repetition)."""
    blocks: dict[fit.Block, list[float]] = defaultdict(list)
    for m in row.measurements:
        blocks[m.campaign, m.repetition].append(m.seconds)
    return [blocks[block] for block in sorted(blocks)]
