"""What a run's telemetry and campaigns say, as tables: pairs and bands, waits, bytes, the original's rows."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rich.console import Group

from emulator.units import format_size
from scenarios import fit, original
from scenarios.arms import Keeps, kept
from scenarios.compare import BLIND, Row
from scenarios.records import Collective, Measurement
from scenarios.results import Results
from scenarios.tables import MEGA, NONE, SUMS, interval, milliseconds, on_off, sheet, time, titled
from scenarios.timelines import in_words


def _trained(results: Results, keeps: Keeps | None = None) -> list[Row]:
    return [row for row in results.rows if row.workload != "all_reduce" and keeps in (None, kept(row.arm))]


def _by_campaign(measurements: Iterable[Measurement]) -> dict[int, list[float]]:
    """Life-size seconds of the steps of each campaign."""
    found: dict[int, list[float]] = defaultdict(list)
    for m in measurements:
        found[m.campaign].append(m.seconds)
    return found


@dataclass(frozen=True)
class Pair:
    """The ratio of two trainings' steps, within one campaign."""

    campaign: int
    world_size: int
    arm: str
    view: bool | None
    above: float
    """Median seconds of a step, life-size, as `below`."""
    below: float
    ratio: fit.Estimate


def _pairs(above: Row, below: Row) -> Iterator[Pair]:
    over, under = _by_campaign(above.measurements), _by_campaign(below.measurements)
    for campaign in sorted(over.keys() & under.keys()):
        steps = min(len(over[campaign]), len(under[campaign]))
        # Step i of one is resampled with step i of the other.
        ratio = fit.ratio_of_medians([[s] for s in over[campaign][:steps]], [[s] for s in under[campaign][:steps]])
        yield Pair(campaign, above.world_size, above.arm, above.bucket_view, statistics.median(over[campaign]),
                   statistics.median(under[campaign]), ratio)


def ratios_of_steps(results: Results) -> Iterator[Pair]:
    """Gloo over shard, each pair of one campaign, world and bucket view."""
    rows = {(row.arm, row.world_size, row.bucket_view, row.timeline): row for row in _trained(results, Keeps.SUM)}
    for (arm, world, view, timeline), row in rows.items():
        if arm == "gloo" and ("shard", world, view, timeline) in rows:
            yield from _pairs(row, rows["shard", world, view, timeline])


def effects_of_views(results: Results) -> Iterator[Pair]:
    """Each arm without gradient_as_bucket_view over the same arm with it, within one campaign."""
    for keeps in Keeps:
        rows = {(row.arm, row.world_size, row.bucket_view, row.timeline): row for row in _trained(results, keeps)}
        for (arm, world, view, timeline), row in rows.items():
            if view is False and (arm, world, True, timeline) in rows:
                yield from _pairs(row, rows[arm, world, True, timeline])


@dataclass(frozen=True)
class Band:
    """An arm's medians of a step, life-size seconds by campaign: of a scenario with timelines, by the timeline."""

    world_size: int
    arm: str
    view: bool | None
    measured: Mapping[int, float]
    predicted: Mapping[int, float]
    """Blind; empty where there is no prediction a campaign."""
    original: tuple[float, ...]
    """The founding experiment's medians, if it has this arm."""

    @property
    def keeps(self) -> Keeps:
        """What the arm keeps; an arm that is not known, the sum."""
        return kept(self.arm)


def across(results: Results) -> list[Band]:
    """The arms that were measured in more than one campaign."""
    of: dict[tuple[int, str, bool | None], list[Row]] = defaultdict(list)
    for row in _trained(results):
        of[row.world_size, row.arm, row.bucket_view].append(row)
    found = []
    for (world, arm, view), rows in of.items():
        measured = {campaign if row.timeline is None else row.timeline: statistics.median(seconds)
                    for row in rows for campaign, seconds in _by_campaign(row.measurements).items()}
        predicted = {row.timeline: row.predicted[BLIND] for row in rows
                     if row.timeline is not None and BLIND in row.predicted}
        founding = world == original.WORLD and rows[0].nbytes == original.GRADIENT_BYTES
        if len(measured) > 1:
            found.append(Band(world, arm, view, measured, predicted, original.STEPS.get(arm, ()) if founding else ()))
    return found


def pairs(results: Results) -> Iterator[Group]:
    """Gloo against shard within each campaign, and what the bucket view does to each arm."""
    table = sheet("campaign", "W", "view", "gloo, s", "shard, s", "gloo ÷ shard", "95 % interval")
    for pair in ratios_of_steps(results):
        table.add_row(str(pair.campaign), str(pair.world_size), on_off(pair.view), time(pair.above), time(pair.below),
                      f"{pair.ratio.value:.3f}", interval(pair.ratio))
    if table.row_count:
        yield titled("Gloo and shard, each pair within one campaign: medians of a step", table)
    effects = list(effects_of_views(results))
    for keeps in Keeps:
        table = sheet("campaign", "W", "arm", "off, s", "on, s", "off ÷ on", "95 % interval")
        for pair in effects:
            if kept(pair.arm) is keeps:
                table.add_row(str(pair.campaign), str(pair.world_size), pair.arm, time(pair.above), time(pair.below),
                              f"{pair.ratio.value:.3f}", interval(pair.ratio))
        if table.row_count:
            yield titled(f"What gradient_as_bucket_view does: medians of a step without and with it ({keeps.value} is "
                         "kept)", table)


def bands(results: Results) -> Iterator[Group]:
    """How far each arm's median moves from campaign to campaign; arms that keep the same in one table."""
    found = across(results)
    for keeps in Keeps:
        table = sheet("W", "arm", "view", "campaigns", "measured, s", "ratio", "predicted, s", "ratio", "original, s")
        for band in found:
            if band.keeps is keeps:
                founding = f"{min(band.original)}–{max(band.original)}" if band.original else NONE
                table.add_row(str(band.world_size), band.arm, on_off(band.view), str(len(band.measured)),
                              *_band(band.measured), *_band(band.predicted), founding)
        if table.row_count:
            yield titled("Bands across campaigns: the least and the greatest median of a step, and their ratio "
                         f"({keeps.value} is kept)", table)


def _band(medians: Mapping[int, float]) -> tuple[str, str]:
    if len(medians) < 2:
        return NONE, NONE
    least, greatest = min(medians.values()), max(medians.values())
    return f"{time(least)}–{time(greatest)}", f"{greatest / least:.3f}"


def networks(results: Results) -> Group | None:
    """What was drawn for each campaign."""
    table = sheet("timeline", "from second", "what")
    for timeline, topology in enumerate(results.scenario.timelines):
        for second, what in in_words(topology):
            table.add_row(str(timeline), f"{second:g}", what)
    return titled("The campaigns' networks, drift apart: seconds from the start of every training",
                  table) if table.row_count else None


def waits(results: Results) -> Iterator[tuple[int, Group]]:
    """For every rank: how long it waited for each peer's bytes, and how long these then took, in each phase."""
    ranks: dict[int, dict[tuple[int, str, int, int], list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for c in results.collectives:
        if c.collective in SUMS:
            for peer in c.peers:
                ranks[c.rank][c.world_size, c.algorithm or c.collective, c.nbytes, peer].append(c)
    for rank, groups in sorted(ranks.items()):
        table = sheet("W", "algorithm", "size", "peer", "n", "wait 1, ms", "transfer 1, ms", "wait 2, ms",
                      "transfer 2, ms", "rate, MB/s")
        for (world, algorithm, nbytes, peer), seen in sorted(groups.items()):
            spans = {phase: [span for c in seen if (span := getattr(c.peers[peer], phase))]
                     for phase in ("phase1", "phase2")}
            if not any(spans.values()):
                spans["phase1"] = [c.peers[peer] for c in seen]
            rates = [rate / c.speedup for c in seen if (rate := c.peers[peer].rate)]
            table.add_row(str(world), algorithm, format_size(nbytes), str(peer), str(len(seen)),
                          *(milliseconds(getattr(span, part) for span in spans[phase])
                            for phase in ("phase1", "phase2") for part in ("wait", "transfer")),
                          f"{statistics.median(rates) / MEGA:.3f}" if rates else NONE)
        yield rank, titled(f"Rank {rank}: waiting for each peer, and transferring from it, in phases 1 and 2; medians, "
                           "by the clock; the rate is life-size", table)


def accounting(results: Results) -> Group | None:
    """Bytes that a rank moved, in tensor equivalents: the sum over its all-reduces, over the sum of their sizes."""
    table = sheet("workload", "W", "algorithm", "n", "payload in", "socket in", "socket out", "ideal",
                  "socket in ÷ ideal")
    groups: dict[tuple[str, int, str], list[Collective]] = defaultdict(list)
    for c in results.collectives:
        if c.collective in SUMS and c.payload_received is not None and c.nbytes:
            groups[c.workload, c.world_size, c.algorithm or c.collective].append(c)
    for (workload, world, algorithm), seen in sorted(groups.items()):
        size = sum(c.nbytes for c in seen)
        moved = [sum(getattr(c, what) or 0 for c in seen) / size
                 for what in ("payload_received", "socket_received", "socket_sent")]
        ideal = world - 1.0 if algorithm in ("whole", "faithful") else 2 * (world - 1) / world
        table.add_row(workload, str(world), algorithm, str(len(seen)), *(f"{value:.4f}" for value in moved),
                      f"{ideal:.3f}", f"{moved[1] / ideal:.4f}")
    return titled("Bytes of an all-reduce, a rank, in tensor equivalents (the original at W = 4: shard "
                  f"{original.SHARD_EQUIVALENTS} of 1.5, faithful {original.FAITHFUL_EQUIVALENTS} of 3.0)",
                  table) if table.row_count else None


def originals(results: Results) -> Group:
    """Every figure of the original text, beside ours measured and ours predicted."""
    table = sheet("figure", "original", "ours, measured", "ours, predicted", "class of network")
    for row in original.rows(results):
        table.add_row(row.figure, row.original, row.measured or NONE, row.predicted or NONE, row.network)
    return titled("The founding experiment's figures, beside this run's; – where this run has no such thing", table)


def every_error(results: Results) -> Group:
    """Predicted against measured, every point."""
    drawn = bool(results.scenario.timelines)
    table = sheet("W", *["timeline"] * drawn, "workload", "arm", "view", "size", "predicted, s", "measured, s",
                  "95 % interval", "n", "ln(measured ÷ predicted)")
    for row in results.rows:
        error = row.error(BLIND)
        table.add_row(str(row.world_size), *[str(row.timeline)] * drawn, row.workload, row.arm,
                      on_off(row.bucket_view), format_size(row.nbytes),
                      time(row.predicted[BLIND]) if BLIND in row.predicted else NONE, time(row.measured.value),
                      interval(row.measured, time), str(row.measured.n), NONE if error is None else f"{error:+.4f}")
    return titled("Predicted (blind) and measured, every point, life-size", table)


def environment(results: Results) -> Iterator[Group]:
    """The machine, and what each rank ran."""
    table = sheet("what", "value")
    for name, value in results.environment.items():
        if not isinstance(value, dict | list):
            table.add_row(name, str(value))
        elif isinstance(value, dict):
            for inner, one in value.items():
                table.add_row(f"{name}: {inner}", str(one))
    yield titled("Environment", table)
    ranks = sheet("W", "rank", "host", "modules", "SHA-256")
    for rank in results.environment.get("ranks", []):
        for name, digest in rank["modules_sha256"].items():
            ranks.add_row(str(rank["world_size"]), str(rank["rank"]), rank["host"], name, digest)
    if ranks.row_count:
        yield titled("What each rank ran: SHA-256 of its module files", ranks)


def links(results: Results) -> Group | None:
    """Every path's fidelity, before and after each campaign."""
    table = sheet("campaign", "k", "path", "when", "goodput, MB/s", "expected", "round trip, ms", "expected", "verdict")
    for p in results.fidelity:
        table.add_row(str(p.campaign), f"{p.speedup:g}", f"{p.source} → {p.target}", p.when, f"{p.goodput / MEGA:.3f}",
                      "any" if p.expected_goodput is None else f"{p.expected_goodput / MEGA:.3f}",
                      f"{p.rtt_seconds * 1e3:.2f}", f"{p.expected_rtt_seconds * 1e3:.2f}",
                      "valid" if p.valid else "OFF", style=None if p.valid else "bold red")
    return titled("Links before and after each campaign, by the clock at speed-up k",
                  table) if table.row_count else None
