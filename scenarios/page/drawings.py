"""The figures of the page, beside those of :mod:`scenarios.figures`. They can be told apart in grey as well."""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator

import matplotlib
import networkx as nx
from matplotlib.figure import Figure

from emulator.units import format_rate, format_time
from scenarios import figures
from scenarios.accounts import across
from scenarios.arms import Keeps, kept
from scenarios.compare import BLIND, Row
from scenarios.figures import STYLES, Style
from scenarios.records import Fidelity
from scenarios.results import Results

VALID, OFF = STYLES[0].color, STYLES[1].color


def svg(figure: Figure) -> str:
    """The figure as an SVG element, whose text is text."""
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "frogtorch"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return drawn.getvalue()[drawn.getvalue().index("<svg"):]


def drawings(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """The section that each belongs to, what it shows in words, and the figure."""
    styles = {arm: STYLES[index % len(STYLES)] for index, arm in enumerate(results.scenario.arms)}
    for keeps in Keeps:
        rows = [row for row in results.rows if row.workload != "all_reduce" and kept(row.arm) is keeps]
        if rows:
            yield "steps", f"Seconds of a step, arms that keep {keeps.value}", _steps(rows, styles)
    if results.fits:
        yield "times", "T(n): measured, fitted, and predicted", figures.times(results, styles)
        yield "times", "b over the world size", figures.slopes(results, styles)
        yield "times", "What the fitted lines leave of each measurement", _residuals(results, styles)
    if results.scenario.timelines:
        if found := across(results):
            yield "campaigns", "Every campaign's median of a step", figures.bands(found, styles)
        for timeline in range(len(results.scenario.timelines)):
            if own := [history for history in results.histories if history.row.timeline == timeline]:
                yield "campaigns", f"Step by step on timeline {timeline}", figures.steps(results, own, styles)
    elif results.histories:
        yield ("steps", "Step by step on a network that changes",
               figures.steps(results, results.histories, styles))
    if any(BLIND in row.predicted for row in results.rows):
        yield "errors", "Predicted against measured, every point", _against(results, styles)
    if results.fidelity:
        yield "links", "The network, and how near its links were to what it describes", _network(results)


def _steps(rows: list[Row], styles: dict[str, Style]) -> Figure:
    """Medians with intervals, a line an arm, world and view; predictions as crosses."""
    figure = Figure(figsize=(8, 1.1 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        style = styles[row.arm]
        low, high = row.measured.interval or (row.measured.value, row.measured.value)
        axes.errorbar(row.measured.value, place, xerr=[[row.measured.value - low], [high - row.measured.value]],
                      marker=style.marker, markersize=6, markerfacecolor="none", capsize=4, color=style.color)
        if BLIND in row.predicted:
            axes.plot(row.predicted[BLIND], place, marker="x", markersize=9, color="black", linestyle="none")
    view = {None: "", True: ", view on", False: ", view off"}
    axes.set_yticks(range(len(rows)), [
        f"{row.arm}, W = {row.world_size}{view[row.bucket_view]}"
        + ("" if row.timeline is None else f", timeline {row.timeline}") for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of a step (life-size): measured median with 95 % interval; × predicted")
    axes.grid(alpha=0.3, axis="x")
    return figure


def _residuals(results: Results, styles: dict[str, Style]) -> Figure:
    worlds = list(results.scenario.worlds)
    columns = min(2, len(worlds))
    height = math.ceil(len(worlds) / columns)
    figure = Figure(figsize=(5 * columns, 0.8 + 2.6 * height), layout="constrained")
    panels = list(figure.subplots(height, columns, squeeze=False, sharex=True).flat)
    for world, axes in zip(worlds, panels, strict=False):
        for index, f in enumerate(f for f in results.fits if f.world_size == world):
            style = styles[f.arm]
            # Beside each other: arms have the same sizes.
            axes.plot([r.nbytes / 1e6 * (1 + 0.015 * index) for r in f.line.residuals],
                      [r.seconds for r in f.line.residuals], linestyle="none", marker=style.marker, markersize=4,
                      markerfacecolor="none", color=style.color, label=f.arm)
        axes.axhline(0, color="0.5", linewidth=0.8)
        axes.set_title(f"W = {world}", fontsize="medium")
        axes.set_xlabel("size n, MB")
        axes.set_ylabel("T(n) − line, seconds (life-size)")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize="small")
    for axes in panels[len(worlds):]:
        axes.set_axis_off()
    return figure


def _against(results: Results, styles: dict[str, Style]) -> Figure:
    figure = Figure(figsize=(6.5, 5.2), layout="constrained")
    axes = figure.subplots()
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in results.rows:
        if BLIND in row.predicted:
            points[row.arm].append((row.predicted[BLIND], row.measured.value))
    every = [value for of in points.values() for pair in of for value in pair]
    ends = [min(every) / 1.2, max(every) * 1.2]
    axes.plot(ends, ends, color="0.4", linewidth=1, label="measured = predicted")
    axes.fill_between(ends, [end / 1.1 for end in ends], [end * 1.1 for end in ends], color="0.9", zorder=0,
                      label="within 10 %")
    for arm, of in points.items():
        axes.plot(*zip(*of, strict=True), linestyle="none", marker=styles[arm].marker, markersize=6,
                  markerfacecolor="none", color=styles[arm].color, label=arm)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("predicted (blind), seconds (life-size)")
    axes.set_ylabel("measured median, seconds (life-size)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    return figure


def _network(results: Results) -> Figure:
    """The hosts in a circle, site by site; a panel before and one after, with the worst probe of all campaigns."""
    hosts = sorted(results.scenario.network.hosts, key=lambda host: host.site)
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(host.name for host in hosts)
    places = nx.circular_layout(graph)
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    for when, axes in zip(("before", "after"), figure.subplots(1, 2), strict=True):
        probes: dict[frozenset[str], list[Fidelity]] = defaultdict(list)
        for probe in results.fidelity:
            if probe.when == when:
                probes[frozenset((probe.source, probe.target))].append(probe)
        for ends, of in probes.items():
            if not all(end in places for end in ends):
                continue
            (x1, y1), (x2, y2) = (places[end] for end in sorted(ends))
            valid = all(probe.valid for probe in of)
            axes.plot([x1, x2], [y1, y2], color=VALID if valid else OFF, linestyle="-" if valid else "--",
                      linewidth=1 if valid else 2, zorder=1)
            # A third of the way: in the middle of a circle all labels would meet.
            axes.text(x1 + 0.36 * (x2 - x1), y1 + 0.36 * (y2 - y1), _worst(of), fontsize=6.5, ha="center", va="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}, zorder=2)
        for host in hosts:
            x, y = places[host.name]
            axes.text(x * 1.14, y * 1.1, f"{host.name}\n({host.site})", ha="center", va="center", fontsize=8, zorder=3,
                      bbox={"facecolor": "white", "edgecolor": "0.4", "boxstyle": "round,pad=0.3"})
        axes.set_title(f"{when} the campaigns: solid valid, dashed off", fontsize="medium")
        axes.set_xlim(-1.5, 1.5)
        axes.set_ylim(-1.35, 1.35)
        axes.set_axis_off()
    return figure


def _worst(probes: list[Fidelity]) -> str:
    """The expected rates and round trips of a pair, life-size, and how far off the worst probe was."""
    rates = {float(f"{p.expected_goodput / p.speedup:.3g}") for p in probes if p.expected_goodput is not None}
    trips = {float(f"{p.expected_rtt_seconds * p.speedup:.3g}") for p in probes}
    off = [abs(p.goodput / p.expected_goodput - 1) for p in probes if p.expected_goodput]
    trip = max(abs(p.rtt_seconds / p.expected_rtt_seconds - 1) for p in probes if p.expected_rtt_seconds)
    text = f"{_ends(rates, format_rate) or 'no limit'}, {_ends(trips, format_time)}"
    return f"{text}\noff {max(off):.1%}, {trip:.1%}" if off else f"{text}\noff {trip:.1%}"


def _ends(values: set[float], text: Callable[[float], str]) -> str:
    """The least and the greatest, or the only one."""
    return "–".join(dict.fromkeys(map(text, (min(values), max(values))))) if values else ""
