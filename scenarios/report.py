"""The report of a run: tables for the terminal, and a page with everything and further files in the run directory."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from scenarios import accounts, anatomy, bars, figures, tables
from scenarios.compare import BLIND, CALIBRATED, CLOSED_FORM
from scenarios.page import timeline
from scenarios.page.page import page
from scenarios.records import Fidelity
from scenarios.results import Results

CSV_HEADER = ("arm", "world_size", "hosts", "workload", "nbytes", "speedup", "n", "measured_median_s",
              "measured_low_s", "measured_high_s", "blind_s", "closed_form_s", "blind_ln_error", "closed_form_ln_error",
              "bucket_view", "calibrated_s", "calibrated_ln_error", "timeline")


def report(directory: Path) -> tuple[RenderableType, bool]:
    """Return the report of a measured run, for a rich Console, and whether the run was well: links, bars, all points.

    Writes report.html, points.csv, the figures (PNG) and timeline.json (for Perfetto) beside the run's records. Raises
    what :meth:`Results.load` raises, before anything is written.
    """
    results = Results.load(directory)
    write_csv(results, directory / "points.csv")
    written = [directory / "report.html", directory / "points.csv", *figures.draw(results, directory)]
    if results.collectives:
        written.append(directory / "timeline.json")
        timeline.write(directory, written[-1])
    parts: list[RenderableType] = [header(results)]
    if results.verdict:
        parts.append(tables.verdict(results))
    if results.scenario.all_reduce:
        parts += [*tables.points(results), tables.intercepts(results), tables.slopes(results),
                  anatomy.bounds(results), anatomy.delays(results)]
    if results.scenario.until:
        parts.append(anatomy.sureness(results))
    if results.ratios:
        parts.append(tables.ratios(results))
    if any(row.scaled for row in results.rows):
        parts.append(tables.scaling(results))
    if results.scenario.training:
        parts += [*tables.training(results), *accounts.pairs(results), *accounts.bands(results),
                  *tables.steps(results), *tables.outcomes(results)]
    if results.applied:
        parts.append(tables.applied(results))
    if results.collectives:
        parts.append(tables.phases(results))
    if moved := accounts.accounting(results):
        parts.append(moved)
    if any(row.workload == "training" for row in results.rows):      # of a script's steps it has nothing
        parts.append(accounts.originals(results))
    held = [] if results.missing else bars.checks(results)
    if held:
        parts.append(tables.bars(held))
    if not results.missing:  # of a part of the grid it would be a choice
        parts.append(tables.errors(results.rows))
    parts.append(Text("Written: " + ", ".join(str(file) for file in written)))
    remarks = list(notes(results, held))
    (directory / "report.html").write_text(page(results, header(results), remarks), encoding="utf-8")
    well = not results.doubts and not any(check.broken for check in held)
    return Group(*(item for part in (*parts, *remarks) for item in (part, Text()))), well


def notes(results: Results, held: Sequence[bars.Check]) -> Iterator[Text]:
    """What is wrong with the run: campaigns that were void, points that failed, bars, what is missing, links."""
    for campaign, kept in results.voids:
        yield Text(f"Campaign {campaign} was void, as links were off, and was measured again; what it measured first "
                   f"is in {kept}, and in no table.")
    for failure in results.failures:
        yield Text(f"FAILED: {failure}, at {failure.date}\n{failure.error.strip()}", style="red")
    if broken := [check for check in held if check.broken]:
        yield Text("BROKEN: " + "; ".join(f"{check.bar}, but {check.ratio.value:.3f} at {check.where}"
                                          for check in broken), style="bold red")
    for doubt in results.doubts:
        yield Text(doubt, style="bold red")


def write_csv(results: Results, file: Path) -> None:
    """Write a line a point. Times are life-size seconds, errors ln(measured median / predicted), empty: none."""
    with file.open("w", encoding="utf-8", newline="") as out:
        lines = csv.writer(out)
        lines.writerow(CSV_HEADER)
        for row in results.rows:
            low, high = row.measured.interval or (None, None)
            lines.writerow([row.arm, row.world_size, " ".join(row.hosts), row.workload, row.nbytes,
                            f"{row.measurements[0].speedup:g}", row.measured.n, row.measured.value, low, high,
                            *(row.predicted.get(basis) for basis in (BLIND, CLOSED_FORM)),
                            *(row.error(basis) for basis in (BLIND, CLOSED_FORM)), tables.on_off(row.bucket_view),
                            row.predicted.get(CALIBRATED), row.error(CALIBRATED), row.timeline])


def header(results: Results) -> Text:
    """What was run, on which network, and whether the links were what the topology describes."""
    text = Text()
    scenario = results.scenario
    text.append(f"{scenario.name}", style="bold")
    text.append(f" on {scenario.topology.name}, {scenario.repetitions} repetitions, "
                f"times life-size (large points ran at speed-up "
                f"{', '.join(f'{k:g}' for k in sorted(set(scenario.speedups.values())))})\n")
    if scenario.training and scenario.training.stragglers:
        text.append("Stragglers: " + ", ".join(f"{host} computes {factor:g} times as long as others" for host, factor in
                                               scenario.training.stragglers.items()) + "\n")
    for stamp in results.environment.get("networks", []):
        text.append("Network: " + ", ".join(f"{name} {_value(value)}" for name, value in stamp.items()
                                            if not isinstance(value, dict | list)) + "\n")
    for line, good in _fidelity(results.fidelity):
        text.append(line + "\n", style="green" if good else "bold red")
    text.rstrip()
    return text


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fidelity(probes: tuple[Fidelity, ...]) -> Iterator[tuple[str, bool]]:
    """Return a line a campaign and moment, and one a path that is off."""
    if not probes:
        yield "Links: not probed; nothing says that they were what the topology describes", False
    for campaign, when, speedup in sorted({(p.campaign, p.when, p.speedup) for p in probes},
                                          key=lambda key: (key[0], key[1] == "after")):
        probed = [p for p in probes if (p.campaign, p.when) == (campaign, when)]
        off = [p for p in probed if not p.valid]
        paths, wrong = ({(p.source, p.target) for p in of} for of in (probed, off))  # twice in a run that was resumed
        verdict = f"INVALID, {len(wrong)} of {len(paths)} paths off" if off else f"valid, {len(paths)} paths"
        yield f"Links {when} campaign {campaign} (speed-up {speedup:g}): {verdict}", not off
        for p in off:
            expected = "any" if p.expected_goodput is None else f"{p.expected_goodput / 1e6:.3f}"
            yield (f"  {p.source} -> {p.target}: goodput {p.goodput / 1e6:.3f} MB/s, expected {expected}; "
                   f"round trip {p.rtt_seconds * 1e3:.2f} ms, expected {p.expected_rtt_seconds * 1e3:.2f}"), False
