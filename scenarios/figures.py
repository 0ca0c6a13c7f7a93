"""The figures of a run, PNG: T(n) with a panel a world, and b over W. They can be told apart in grey as well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, StrMethodFormatter

from scenarios.accounts import Band, across
from scenarios.compare import BLIND, Row
from scenarios.fit import Estimate
from scenarios.results import ArmFit, Results
from scenarios.steps import History

MEGA = 1e6
DPI = 150


@dataclass(frozen=True)
class Style:
    """How an arm is drawn."""

    color: str
    marker: str
    cross: str
    """The marker of its predictions."""
    dashes: str | tuple[int, tuple[int, ...]]
    """Matplotlib's name of a dash pattern, or (offset, lengths on and off)."""

    @property
    def line(self) -> dict[str, Any]:
        """What Axes.plot is given for a line of this style."""
        return {"linestyle": self.dashes, "color": self.color, "linewidth": 1.5}


# Okabe and Ito's palette, in an order of falling contrast; each with markers and a line of its own.
STYLES = (Style("#0072B2", "o", "x", "-"), Style("#D55E00", "s", "+", "--"), Style("#009E73", "^", "1", "-."),
          Style("#CC79A7", "D", "2", ":"), Style("#E69F00", "v", "3", (0, (5, 1, 1, 1, 1, 1))),
          Style("#56B4E9", "P", "4", (0, (1, 1))), Style("#000000", "X", "|", (0, (8, 2))))


def draw(results: Results, directory: Path) -> list[Path]:
    """Write the figures into `directory`; returns their files: of all-reduces, and of a network that changes."""
    styles = {arm: STYLES[index % len(STYLES)] for index, arm in enumerate(results.scenario.arms)}
    figures: dict[str, Figure] = {}
    if results.fits:
        figures |= {"times.png": times(results, styles), "slopes.png": slopes(results, styles)}
    if results.scenario.timelines:
        if found := across(results):
            figures["bands.png"] = bands(found, styles)
    elif results.histories:
        figures["steps.png"] = steps(results, results.histories, styles)
    files = []
    for name, figure in figures.items():
        figure.savefig(directory / name, dpi=DPI)
        files.append(directory / name)
    return files


def times(results: Results, styles: dict[str, Style]) -> Figure:
    """T(n): medians with intervals, the line of b over its sizes, a as a level, predictions as crosses."""
    worlds = list(results.scenario.worlds)
    columns = min(2, len(worlds))
    height = math.ceil(len(worlds) / columns)
    figure = Figure(figsize=(5 * columns, 0.6 + 3.6 * height), layout="constrained")
    panels = figure.subplots(height, columns, squeeze=False, sharex=True, sharey=True).flat
    for world_size, axes in zip(worlds, panels, strict=False):
        _panel(axes, results, world_size, styles)
    for axes in list(panels)[len(worlds):]:
        axes.set_axis_off()
    figure.suptitle(f"All-reduce time, {results.scenario.name} on {results.scenario.topology.name}")
    _legend(figure, styles)
    return figure


def _panel(axes: Axes, results: Results, world_size: int, styles: dict[str, Style]) -> None:
    for f in (f for f in results.fits if f.world_size == world_size):
        style = styles[f.arm]
        rows = sorted((row for row in results.rows if (row.arm, row.world_size, row.workload)
                       == (f.arm, world_size, "all_reduce")), key=lambda row: row.nbytes)
        _fit(axes, f, rows, results, style)
        axes.plot([row.nbytes for row in rows], [row.predicted[BLIND] for row in rows], linestyle="none",
                  marker=style.cross, markersize=9, color=style.color, label=f"{f.arm}: predicted")
        _measured(axes, [row.nbytes for row in rows], [row.measured for row in rows], 1, style,
                  f"{f.arm}: measured median, 95 % interval")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"W = {world_size}", fontsize="medium")
    axes.set_xlabel("size n, bytes")
    axes.set_ylabel("T(n), seconds (life-size)")
    axes.label_outer()
    axes.grid(alpha=0.3)


def _fit(axes: Axes, f: ArmFit, rows: Sequence[Row], results: Results, style: Style) -> None:
    sizes = results.scenario.all_reduce
    assert sizes is not None
    ends = [min(sizes.slope), max(sizes.slope)]
    axes.plot(ends, [f.line.intercept + f.line.slope.value * end for end in ends], **style.line,
              label=f"{f.arm}: fitted a, b")
    axes.plot([sizes.intercept, 8 * sizes.intercept], [f.a.value] * 2, **style.line)


def slopes(results: Results, styles: dict[str, Style]) -> Figure:
    """The slope b over W: measured with intervals, predicted as crosses, theory as lines."""
    figure = Figure(figsize=(6.5, 4.8), layout="constrained")
    axes = figure.subplots()
    for arm, style in styles.items():
        fits = [f for f in results.fits if f.arm == arm]
        stated = [(f.world_size, f.theory.slope * MEGA) for f in fits if f.theory]
        if stated:
            axes.plot(*zip(*stated, strict=True), **style.line, label=f"{arm}: theory")
        axes.plot([f.world_size for f in fits], [f.predicted_b[BLIND] * MEGA for f in fits], linestyle="none",
                  marker=style.cross, markersize=10, color=style.color, label=f"{arm}: predicted")
        _measured(axes, [f.world_size for f in fits], [f.line.slope for f in fits], MEGA, style,
                  f"{arm}: measured, 95 % interval")
    axes.set_title(f"b of T(n) = a + b·n, {results.scenario.name} on {results.scenario.topology.name}",
                   fontsize="medium")
    axes.set_xlabel("world size W, ranks")
    axes.set_ylabel("b, seconds per MB (life-size)")
    axes.xaxis.set_major_locator(FixedLocator(list(results.scenario.worlds)))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    _legend(figure, styles)
    return figure


def steps(results: Results, histories: Sequence[History], styles: dict[str, Style]) -> Figure:
    """Seconds of each step over the second of the timeline at which it begins, a panel a training; changes as lines."""
    count = len(histories)
    networks = dict(results.scenario.networks)
    figure = Figure(figsize=(8, 0.6 + 2.2 * count), layout="constrained")
    panels = figure.subplots(count, 1, squeeze=False, sharex=True, sharey=True).flat
    for history, axes in zip(histories, panels, strict=True):
        arm = history.row.arm
        for moment in networks[history.row.timeline].timeline.moments:
            axes.axvline(moment, color="0.8", linewidth=0.8, zorder=0)
        predicted = [(step.predicted_second, step.predicted) for step in history.steps if step.predicted is not None]
        if predicted:
            axes.plot(*zip(*predicted, strict=True), linestyle="none", marker=styles[arm].cross, markersize=9,
                      color=styles[arm].color, label=f"{arm}: predicted")
        axes.plot([step.measured_second for step in history.steps], [step.measured for step in history.steps],
                  marker=styles[arm].marker, markersize=5, markerfacecolor="none", **styles[arm].line,
                  label=f"{arm}: measured")
        view = "" if history.row.bucket_view is None else f", bucket view {'on' if history.row.bucket_view else 'off'}"
        axes.set_title(f"{arm}, W = {history.row.world_size}{view}", fontsize="medium")
        axes.set_yscale("log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(StrMethodFormatter("{x:g}"))
        axes.grid(alpha=0.3, axis="y")
        axes.legend(frameon=False, fontsize="small")
        axes.set_ylabel("seconds of a step")
    axes.set_xlabel("second of the timeline at which the step begins; the network changes at the grey lines")
    figure.suptitle(f"Step by step, {results.scenario.name} on {results.scenario.topology.name}")
    return figure


def bands(found: Sequence[Band], styles: dict[str, Style]) -> Figure:
    """Every campaign's median of a step, for each arm, world and view: measured, predicted, and the original's."""
    figure = Figure(figsize=(8, 1.2 + 0.7 * len(found)), layout="constrained")
    axes = figure.subplots()
    for place, band in enumerate(found):
        style = styles[band.arm]
        for medians, at, marker, color in ((band.measured.values(), place - 0.2, style.marker, style.color),
                                           (band.predicted.values(), place, "x", "black"),
                                           (band.original, place + 0.2, "|", "0.45")):
            axes.plot(sorted(medians), [at] * len(medians), marker=marker, markersize=6, markerfacecolor="none",
                      linewidth=1, color=color)
    view = {None: "", True: ", view on", False: ", view off"}
    axes.set_yticks(range(len(found)), [f"{band.arm}, W = {band.world_size}{view[band.view]}" for band in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xscale("log")
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("median seconds of a step (life-size), a marker a campaign; × predicted, | the original's")
    axes.grid(alpha=0.3, axis="x", which="both")
    return figure


def _legend(figure: Figure, styles: dict[str, Style]) -> None:
    """Below the panels, a column an arm."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    by_arm = sorted(zip(labels, handles, strict=True), key=lambda entry: list(styles).index(entry[0].split(":")[0]))
    figure.legend([handle for _, handle in by_arm], [label for label, _ in by_arm], loc="outside lower center",
                  ncols=len(styles), frameon=False, fontsize="small")


def _measured(axes: Axes, x: Sequence[float], estimates: Sequence[Estimate], scale: float, style: Style,
              label: str) -> None:
    """Markers with intervals as bars; a value without an interval has no bar."""
    values = [estimate.value * scale for estimate in estimates]
    intervals = [estimate.interval or (estimate.value, estimate.value) for estimate in estimates]
    bars = [[value - low * scale for value, (low, _) in zip(values, intervals, strict=True)],
            [high * scale - value for value, (_, high) in zip(values, intervals, strict=True)]]
    axes.errorbar(x, values, bars, linestyle="none", marker=style.marker, markersize=5, markerfacecolor="none",
                  capsize=3, color=style.color, label=label)
