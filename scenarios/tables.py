"""The tables of a report. Times are life-size seconds unless a title says otherwise; b is in seconds per MB (1e6)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp
from typing import TypeVar

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from emulator.units import format_size
from scenarios import compare, original
from scenarios.arms import Keeps, kept
from scenarios.bars import Check
from scenarios.compare import BASES, BLIND, CALIBRATED, CLOSED_FORM, SIMULATED, Row
from scenarios.fit import Estimate, median
from scenarios.records import Applied, Collective, Outcome
from scenarios.results import Results
from scenarios.theory import Limit
from scenarios.verdict import NEITHER, UNDECIDED

P = TypeVar("P", Row, Outcome)

MEGA = 1e6
FP32 = 4
NONE = "–"
SUMS = ("all_reduce", "faithful")
"""The collectives that move gradients."""
_CALIBRATED = ["calibrated", "error"]
"""Columns that a calibrated run has more."""
_WORDS = ("arm", "bar", "point", "basis", "workload", "algorithm", "parameters", "network", "traffic", "figure", "host",
          "original", "class of network", "what", "value", "modules", "SHA-256", "path", "when", "what changed")
"""Columns of words, which stand at the left."""
SCALES_WITHIN = 0.03
"""How far k·T may be apart at different speed-ups k."""


def points(results: Results) -> Iterator[Group]:
    """One table a world: every size that a or b comes from, predicted and measured."""
    assert results.scenario.all_reduce is not None
    sizes = {results.scenario.all_reduce.intercept, *results.scenario.all_reduce.slope}
    for world_size, hosts in results.scenario.worlds.items():
        rows = [row for row in results.rows if row.workload == "all_reduce" and row.world_size == world_size]
        title = f"W = {world_size} ({', '.join(hosts)}), seconds"
        yield _points(f"All-reduce, {title}", [row for row in rows if row.nbytes in sizes], results.calibrated)
        beside = [row for row in rows if row.nbytes not in sizes]
        if beside:
            yield _points(f"Other sizes, not in the fits, {title}", beside, results.calibrated)


def _points(title: str, rows: Iterable[Row], calibrated: bool) -> Group:
    table = sheet("size", "arm", "predicted", "measured", "95 % interval", "n", "error",
                   *_CALIBRATED * calibrated, "closed form", "error")
    last = None
    for row in sorted(rows, key=lambda row: row.nbytes):
        table.add_row(format_size(row.nbytes) if row.nbytes != last else "", row.arm, time(row.predicted[BLIND]),
                      *_estimate(row.measured), _error(row.error(BLIND)),
                      *[time(row.predicted[CALIBRATED]), _error(row.error(CALIBRATED))] if calibrated else [],
                      time(row.predicted[CLOSED_FORM]), _error(row.error(CLOSED_FORM)))
        last = row.nbytes
    return titled(title, table)


def intercepts(results: Results) -> Group:
    """a, measured and predicted."""
    assert results.scenario.all_reduce is not None
    size = format_size(results.scenario.all_reduce.intercept)
    table = sheet("W", "arm", "measured", "95 % interval", "n", "predicted", "error",
                   *_CALIBRATED * results.calibrated, "closed form", "error")
    for f in results.fits:
        table.add_row(str(f.world_size), f.arm, *_estimate(f.a),
                      *(cell for basis in BASES if basis in f.predicted_a
                        for cell in (time(f.predicted_a[basis]), _relative(f.a.value, f.predicted_a[basis]))))
    return titled(f"a, seconds: the median time of {size} at speed-up 1", table)


def slopes(results: Results) -> Group:
    """b, measured, predicted and by theory."""
    assert results.scenario.all_reduce is not None
    sizes = ", ".join(format_size(size) for size in sorted(results.scenario.all_reduce.slope))
    table = sheet("W", "arm", "measured", "95 % interval", "ns/element", "predicted", "error",
                   *_CALIBRATED * results.calibrated, "theory", "error")
    for f in results.fits:
        b = f.line.slope
        table.add_row(str(f.world_size), f.arm, *_estimate(b, MEGA)[:2], f"{b.value * FP32 * 1e9:.0f}",
                      *(cell for basis in SIMULATED if basis in f.predicted_b
                        for cell in (time(f.predicted_b[basis] * MEGA), _relative(b.value, f.predicted_b[basis]))),
                      time(f.theory.slope * MEGA) if f.theory else NONE,
                      _relative(b.value, f.theory.slope) if f.theory else NONE)
    return titled(f"b, seconds per MB (ns per fp32 element): Theil-Sen slope over {sizes}", table)


def ratios(results: Results) -> Group:
    """b_gloo / b_shard against theory, and what binds each arm."""
    table = sheet("W", "measured", "95 % interval", "predicted", "theory", "error", "gloo is bound by",
                   "shard is bound by")
    bounds = {(f.world_size, f.arm): f"{f.theory.limit}, {f.theory.goodput / MEGA:.3f} MB/s" if f.theory else NONE
              for f in results.fits}
    for r in results.ratios:
        table.add_row(str(r.world_size), f"{r.measured.value:.3f}", interval(r.measured),
                      f"{r.predicted[BLIND]:.3f}", f"{r.theory:.3f}" if r.theory else NONE,
                      _relative(r.measured.value, r.theory) if r.theory else NONE,
                      bounds[r.world_size, "gloo"], bounds[r.world_size, "shard"])
    return titled("b_gloo / b_shard; theory: W−1 where the limit is per path, 1 where it is at equal accesses", table)


def verdict(results: Results) -> Group:
    """What the scenario's rule makes of the ratios, and what of it is this network's own doing."""
    found, rule = results.verdict, results.scenario.rule
    assert found is not None
    assert rule is not None
    table = sheet("W", "b_gloo / b_shard", "simultaneous 95 % interval", "W − 1", "share of the difference in b")
    for world, ratio in found.ratios.items():
        phi = found.phi[world]
        table.add_row(str(world), f"{ratio.value:.3f}", interval(ratio), str(world - 1),
                      NONE if phi is None else f"{phi:.3f}")
    follows = {NEITHER: "follows neither W − 1 nor 1", UNDECIDED: "is undecided"}.get(
        found.follows, f"follows {found.follows}")
    where = "there is no difference to place" if found.where == "neither" else f"the difference is in {found.where}"
    text = Text(f"b_gloo / b_shard {follows} ({found.reason}); {where}.", style="bold")
    limits = {f.theory.limit if f.theory else None for f in results.fits if f.world_size in rule.worlds}
    text.append("\n" + _conditional(limits), style="not bold")
    if original.WORLD in results.scenario.worlds:
        for admitted in original.admitted(results.scenario.topology, results.scenario.worlds[original.WORLD]):
            text.append(f"\nA step of {admitted.arm} takes {admitted.least:.1f} s or more on this network, so of the "
                        f"founding medians it can have {_seconds(admitted.possible)}, and not "
                        f"{_seconds(admitted.impossible)}.", style="not bold")
    return Group(Text("Verdict", style="bold"), text, Text(), table)


def _conditional(limits: set[Limit | None]) -> str:
    """Say on what kind of network the verdict depends."""
    if limits in ({"path"}, {"window"}):
        where = "on each path" if limits == {"path"} else "on each connection's window"
        return (f"On this network the limit is {where}, and that gives W − 1 by construction: the verdict holds for "
                "networks of this class, and says nothing of others.")
    if limits == {"access"}:
        return ("On this network the limit is each host's access, and that gives 1 by construction: the verdict holds "
                "for networks of this class, and says nothing of others.")
    return ("On this network theory has no one limit for both arms: the verdict holds for it, and says nothing of "
            "networks limited in one way.")


def _seconds(medians: Sequence[float]) -> str:
    return f"{', '.join(f'{median:g}' for median in medians)} s" if medians else "none"


def scaling(results: Results) -> Group:
    """The same points at several speed-ups: life-size, their times must agree, each with each."""
    table = sheet("W", "arm", "size", "k", "measured", "95 % interval", "n", "against the lowest k", "all k")
    for row in results.rows:
        if row.scaled:
            times: dict[float, list[float]] = defaultdict(list)
            for m in (*row.measurements, *row.scaled):
                times[m.speedup].append(m.seconds)
            found = {k: median(times[k]) for k in sorted(times)}
            lowest, *_ = values = [estimate.value for estimate in found.values()]
            verdict = "agree" if max(values) / min(values) - 1 <= SCALES_WITHIN else "DISAGREE"
            for k, estimate in found.items():
                table.add_row(str(row.world_size), row.arm, format_size(row.nbytes), f"{k:g}", *_estimate(estimate),
                              _relative(estimate.value, lowest), verdict)
    return titled(f"Proof of the speed-up: k times the clock's seconds, at every k, within {SCALES_WITHIN:.0%}", table)


def errors(rows: Sequence[Row]) -> Group:
    """How far off the simulator and the closed form are, over the whole grid; and where the latter is nearer."""
    table = sheet("arm", "basis", "points", "median", "p90", "maximum")
    for e in compare.errors(rows):
        table.add_row(e.arm, e.basis, str(e.points), *(f"{value:.3f}" for value in (e.median, e.p90, e.maximum)))
    calibrated = any(CALIBRATED in row.predicted for row in rows)
    known = "blind, calibrated" if calibrated else "blind"
    shown = titled(f"|ln(measured / predicted)| of the simulator ({known}) and the closed form, over every point",
                   table)
    for b in compare.beaten(rows):
        shown.renderables.append(Text(f"The closed form is nearer than the simulator ({b.basis}) for {b.arm}: median "
                                      f"{b.closed_form:.3f}, against {b.simulator:.3f} at the same points."))
    return shown


def bars(checks: Sequence[Check]) -> Group:
    """What the scenario demands of the run, point by point."""
    table = sheet("bar", "point", "measured", "95 % interval", "verdict")
    for check in checks:
        table.add_row(str(check.bar), check.where, f"{check.ratio.value:.3f}",
                      interval(check.ratio), "BROKEN" if check.broken else "kept",
                      style="bold red" if check.broken else None)
    return titled("Bars: a ratio whose whole interval is beyond its bound breaks it", table)


def training(results: Results) -> Iterator[Group]:
    """Step times; one table for all arms that keep the same, as only those can be held against each other.

    `view` is gradient_as_bucket_view.
    """
    for keeps, rows in _by_what_they_keep([row for row in results.rows if row.workload != "all_reduce"]):
        drawn = bool(results.scenario.timelines)
        table = sheet("W", *["timeline"] * drawn, "arm", "view", "predicted", "measured", "95 % interval", "n", "error")
        for row in rows:
            table.add_row(str(row.world_size), *[str(row.timeline)] * drawn, row.arm, on_off(row.bucket_view),
                          time(row.predicted[BLIND]) if BLIND in row.predicted else NONE, *_estimate(row.measured),
                          _error(row.error(BLIND)))
        yield titled(f"Training, seconds of a step: {_KEPT[keeps]}", table)


def outcomes(results: Results) -> Iterator[Group]:
    """What the ranks had at the end of a training; tables as for the step times.

    `in a mean` is how many ranks' contributions a mean had.
    """
    for keeps, ended in _by_what_they_keep(results.outcomes):
        accuracy = any(outcome.held_out_accuracy is not None for outcome in ended)
        hooked = any(outcome.incorporated for outcome in ended)
        table = sheet("W", "arm", "view", "steps", "held-out loss", *["accuracy"] * accuracy, "all-reduces",
                       *["in a mean"] * hooked, "parameters")
        groups: dict[tuple[int, str, bool | None], list[Outcome]] = defaultdict(list)
        for outcome in ended:
            groups[outcome.world_size, outcome.arm, outcome.bucket_view].append(outcome)
        for (world_size, arm, view), ranks in groups.items():
            table.add_row(str(world_size), arm, on_off(view), _distinct(str(o.steps) for o in ranks),
                          _range([o.held_out_loss for o in ranks], "{:.6f}".format),
                          *[_range([o.held_out_accuracy for o in ranks], "{:.1%}".format)] * accuracy,
                          _distinct(NONE if o.all_reduces is None else str(o.all_reduces) for o in ranks),
                          *[_incorporated(ranks)] * hooked, _agreement(ranks, world_size, keeps))
        yield titled(f"Training, what the ranks ended with: {_KEPT[keeps]}", table)


_KEPT = {Keeps.SUM: "arms that keep the sum", Keeps.SYNCHRONY: "arms that exchange approximations",
         Keeps.NOTHING: "arms that skip contributions; a step is the slowest rank's own"}


def _by_what_they_keep(points: Iterable[P]) -> Iterator[tuple[Keeps, list[P]]]:
    of: dict[Keeps, list[P]] = defaultdict(list)
    for point in points:
        of[kept(point.arm)].append(point)
    return ((keeps, of[keeps]) for keeps in Keeps if keeps in of)


def _range(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """The values, where they are few, or from which to which they go."""
    known = sorted({value for value in values if value is not None})
    if len({text(value) for value in known}) > 2:
        return f"{text(known[0])}…{text(known[-1])}"
    return " / ".join(dict.fromkeys(text(value) for value in known)) or NONE


def _incorporated(ranks: Sequence[Outcome]) -> str:
    """Say how many ranks' contributions a mean had, over all steps, buckets and ranks."""
    counts = [count for outcome in ranks for count in outcome.incorporated or ()]
    return f"{statistics.mean(counts):.2f}" if counts else NONE


def on_off(view: bool | None) -> str:
    """Say a setting of gradient_as_bucket_view; empty where nothing is trained."""
    return "" if view is None else "on" if view else "off"


def _agreement(ranks: Sequence[Outcome], world_size: int, keeps: Keeps) -> str:
    """Say whether all ranks of a world hold the same parameters, which of some arms they need not."""
    missing = sorted(set(range(world_size)) - {outcome.rank for outcome in ranks})
    if missing:
        return f"no outcome of rank {', '.join(map(str, missing))}"
    hashes = {outcome.parameters_sha256 for outcome in ranks}
    if len(hashes) == 1:
        return f"all equal, {min(hashes)[:8]}"
    return f"{'differ' if keeps is Keeps.NOTHING else 'DIFFER'}: {len(hashes)} hashes"


def _distinct(texts: Iterable[str]) -> str:
    return " / ".join(sorted(set(texts)))


def steps(results: Results) -> Iterator[Group]:
    """Each training on a network that changes, step by step, beside the network; of campaigns there would be many."""
    for history in () if results.scenario.timelines else results.histories:
        table = sheet("step", "begins, predicted", "measured", "takes, predicted", "measured", "error", "network")
        for step in history.steps:
            table.add_row(str(step.number), *(NONE if second is None else f"{second:.1f}"
                                              for second in (step.predicted_second, step.measured_second)),
                          NONE if step.predicted is None else time(step.predicted), time(step.measured),
                          _error(step.error), step.network)
        view = "" if history.row.bucket_view is None else f", bucket view {on_off(history.row.bucket_view)}"
        yield titled(f"Training step by step, {history.row.arm}, W = {history.row.world_size}{view}: seconds of the "
                      "timeline at which a step begins, and seconds that it takes", table)


def applied(results: Results) -> Group:
    """What of the timeline was done to the network."""
    drawn = bool(results.scenario.timelines)
    table = sheet("W", *["campaign"] * drawn, "arm", "view", "changes", "late, median", "at most", "traffic")
    done: dict[tuple[int, int, str, bool | None], list[Applied]] = defaultdict(list)
    for one in results.applied:
        done[one.world_size, one.campaign, one.arm, one.bucket_view].append(one)
    for (world_size, campaign, arm, view), all_done in done.items():
        changes = [one.late * 1e3 for one in all_done if one.received_bytes is None]
        traffic = [f"{one.what[0]}: {format_size(one.received_bytes)} arrived from {one.applied_second:.1f} to "
                   f"{one.ended_second:.1f} s" for one in all_done if one.received_bytes is not None]
        late = [f"{value:.1f}" for value in (statistics.median(changes), max(changes))] if changes else [NONE, NONE]
        table.add_row(str(world_size), *[str(campaign)] * drawn, arm, on_off(view), str(len(changes)), *late,
                      "\n".join(traffic))
    return titled("The timeline, as it was applied; late in milliseconds by the clock", table)


def phases(results: Results) -> Group:
    """Medians of what telemetry says of the collectives that sum: by size, which in training is a bucket's.

    Of training also over all buckets together, as the founding experiment's text has them.
    """
    table = sheet("workload", "W", "algorithm", "size", "k", "n", "publish", "phase 1", "phase 2", "whole")
    groups: dict[tuple[str, int, str, float], list[Collective]] = defaultdict(list)
    for c in results.collectives:
        if c.collective in SUMS:
            groups[c.workload, c.world_size, c.algorithm or c.collective, c.speedup].append(c)
    for (workload, world_size, algorithm, speedup), seen in sorted(groups.items()):
        sizes = sorted({c.nbytes for c in seen})
        for nbytes in [*[None] * (workload != "all_reduce"), *sizes]:
            own = [c for c in seen if nbytes in (None, c.nbytes)]
            table.add_row(workload, str(world_size), algorithm, "all" if nbytes is None else format_size(nbytes),
                          f"{speedup:g}", str(len(own)), *(milliseconds(getattr(c, part) for c in own)
                                                           for part in ("publish", "phase1", "phase2", "seconds")))
    return titled("Phases of an all-reduce, medians over ranks, milliseconds by the clock at speed-up k", table)


def milliseconds(values: Iterable[float | None]) -> str:
    """Format the median of those seconds that are known."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known) * 1e3:.2f}" if known else NONE


def time(seconds: float) -> str:
    """Format with the decimals that a time of this length deserves: 12.051, 0.1051, 0.000421."""
    return f"{seconds:.{3 if seconds >= 1 else 4 if seconds >= 0.01 else 6}f}"


def _estimate(estimate: Estimate, scale: float = 1) -> tuple[str, str, str]:
    return time(estimate.value * scale), interval(estimate, time, scale), str(estimate.n)


def interval(estimate: Estimate, text: Callable[[float], str] = "{:.3f}".format, scale: float = 1) -> str:
    """Say an estimate's interval: 1.021…1.043."""
    return NONE if estimate.interval is None else "{}…{}".format(*(text(end * scale) for end in estimate.interval))


def _error(logarithm: float | None) -> str:
    return NONE if logarithm is None else f"{exp(logarithm) - 1:+z.1%}"


def _relative(measured: float, expected: float) -> str:
    return f"{measured / expected - 1:+z.1%}"


def sheet(*columns: str) -> Table:
    """Return an empty table; columns of words stand at the left, of numbers at the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        words = column in _WORDS or column.endswith("bound by")
        # A narrow terminal folds a number: an ellipsis would lose its digits.
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    return table


def titled(title: str, table: Table) -> Group:
    """A title of its own is as wide as the terminal; rich would wrap the table's to the table."""
    return Group(Text(title, style="bold"), table)
