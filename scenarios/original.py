"""The founding experiment's own figures, as its text gives them, which of them a network can have, and ours beside."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from emulator.topology import Topology
from scenarios.compare import BLIND
from scenarios.theory import Limit, theory

if TYPE_CHECKING:
    from scenarios.compare import Row
    from scenarios.records import Collective
    from scenarios.results import Results

WORLD = 4
GRADIENT_BYTES = 16_867_332
STEPS: Mapping[str, tuple[float, ...]] = {
    "gloo": (13.1, 13.4, 22.0, 22.7, 29.8, 62.0),
    "shard": (12.3, 12.9, 13.0, 13.4, 15.3),
}
"""Median seconds of a training step, a campaign each, over both settings of gradient_as_bucket_view."""
SHARD_EQUIVALENTS, FAITHFUL_EQUIVALENTS = 1.648, 3.390
"""Bytes of an all-reduce at W = 4, in tensor equivalents: 1.5 and 3.0 by the algorithm alone."""
PARAMETERS = 4_216_833


@dataclass(frozen=True)
class Admitted:
    """Which of an arm's medians a network limited like this one can have."""

    arm: str
    limit: Limit
    least: float
    """Seconds: the bytes of a step over what binds them. Nothing is faster."""
    possible: tuple[float, ...]
    impossible: tuple[float, ...]


def admitted(topology: Topology, hosts: Sequence[str]) -> Iterator[Admitted]:
    """For each arm for which theory has a slope on the W = 4 hosts. Raises ValueError for another world."""
    if len(hosts) != WORLD:
        raise ValueError(f"the founding figures are of W = {WORLD}, and these are {len(hosts)} hosts")
    for arm, medians in STEPS.items():
        if found := theory(topology, hosts, arm):
            least = found.slope * GRADIENT_BYTES
            yield Admitted(arm, found.limit, least, tuple(m for m in medians if m >= least),
                           tuple(m for m in medians if m < least))


@dataclass(frozen=True)
class Figure:
    """One figure of the text, and ours; None where the run has no such thing, or the simulator does not say it."""

    figure: str
    original: str
    measured: str | None
    predicted: str | None
    network: str
    """The class of network in which ours holds."""


ANY = "any"
_CLASSES: Mapping[Limit | None, str] = {"path": "limit per path", "access": "limit at each access",
                                        "window": "limit per connection (window)"}


def rows(results: Results) -> list[Figure]:
    """Every figure of the text, in its order. Times of ours are life-size."""
    return [*_workload(results), *_steps(results), *_phases(results), *_bytes(results), *_outlook(results)]


def _class(results: Results) -> str:
    """In which class of network times of this run hold."""
    hosts = results.scenario.worlds.get(WORLD) or next(iter(results.scenario.worlds.values()))
    limits = {found.limit if (found := theory(results.scenario.topology, hosts, arm)) else None for arm in STEPS}
    changing = ", changing" if any(network.timeline for _, network in results.scenario.networks) else ""
    return (_CLASSES.get(limits.pop(), "no one limit") if len(limits) == 1 else "no one limit") + changing


def _workload(results: Results) -> Iterator[Figure]:
    training, topology = results.scenario.training, results.scenario.topology
    size = training.workload.gradient_bytes if training else None
    yield Figure("model parameters", f"{PARAMETERS:,}", f"{size // 4:,}" if size else None, None, ANY)
    yield Figure("gradients a step", "16.9 MB", f"{size / 1e6:.3f} MB" if size else None, None, ANY)
    yield Figure("steps of an arm: warm-up and measured", "8 + 40",
                 f"{training.warmup} + {training.steps - training.warmup}" if training else None, None, ANY)
    yield Figure("campaigns, and arms (bucket view off and on are two)", "8, and 10",
                 f"{len({row.campaign for r in results.rows for row in r.measurements})}, and "
                 f"{len({(r.arm, r.bucket_view) for r in results.rows if r.workload != 'all_reduce'})}", None, ANY)
    hosts = results.scenario.worlds.get(WORLD)
    rates = sorted(path.rate / 1e6 for path in topology.paths
                   if hosts and path.rate and path.source == hosts[0] and path.target in hosts)
    seen = sorted(p.goodput / p.speedup / 1e6 for p in results.fidelity
                  if hosts and p.source == hosts[0] and p.target in hosts)
    named = "{:.2f}…{:.2f} MB/s".format
    yield Figure("throughput from rank 0: slowest and fastest path", "0.6–0.8 and 25–37 MB/s",
                 named(seen[0], seen[-1]) if seen else None, named(rates[0], rates[-1]) if rates else None,
                 "as described")
    yield Figure("asymmetry of throughput", "40×", f"{seen[-1] / seen[0]:.0f}×" if seen else None,
                 f"{rates[-1] / rates[0]:.0f}×" if rates else None, "as described")
    ended = [o for o in results.outcomes if o.world_size == WORLD and o.arm in STEPS and o.held_out_loss is not None]
    losses = sorted({f"{o.held_out_loss:.4f}" for o in ended})
    yield Figure("held-out result, gloo and shard", "the same to 4 decimals", ", ".join(losses) or None, None, ANY)
    hashes: dict[tuple[str, bool | None], set[str]] = defaultdict(set)
    for outcome in ended:
        hashes[outcome.arm, outcome.bucket_view].add(outcome.parameters_sha256)
    yield Figure("parameter hashes over the ranks of an arm", "equal",
                 ("equal" if all(len(of) == 1 for of in hashes.values()) else "DIFFER") if hashes else None, None, ANY)
    arms = {arm: {digest for (name, _), of in hashes.items() if name == arm for digest in of} for arm in STEPS}
    yield Figure("parameter hashes of gloo and shard", "differ",
                 ("differ" if not arms["gloo"] & arms["shard"] else "equal") if all(arms.values()) else None, None, ANY)


def _steps(results: Results) -> Iterator[Figure]:
    network = _class(results)
    trained = [r for r in results.rows if r.workload == "training" and r.world_size == WORLD and r.arm in STEPS]
    measured: _Medians = {(r.arm, r.bucket_view, campaign): statistics.median(seconds)
                for r in trained for campaign, seconds in _campaigns(r).items()}
    predicted: _Medians = {(r.arm, r.bucket_view, r.timeline): r.predicted[BLIND]
                           for r in trained if BLIND in r.predicted}

    def both(say: Callable[[_Medians], str | None]) -> tuple[str | None, str | None]:
        return say(measured), say(predicted)

    for arm, name in (("shard", "the direct backend's"), ("gloo", "Gloo's")):
        yield Figure(f"medians of a step, {name} campaigns", f"{_listed(STEPS[arm])} s",
                     *both(partial(_own, arm=arm)), network)
    yield Figure("pairs of one campaign that shard wins", "4 of 4", *both(_won),
                 network)
    yield Figure("gloo ÷ shard with bucket view on", "1.03 and 1.75",
                 *both(lambda of: _listed(_quotients(of, True), "{:.2f}") or None), network)
    yield Figure("gloo ÷ shard with bucket view off", "not given",
                 *both(lambda of: _listed(_quotients(of, False), "{:.2f}") or None), network)
    yield Figure("Gloo with bucket view off and on", "29.8 and 13.1 s: 56 % less",
                 *both(_view), network)
    for arm, band in (("shard", "12.3–15.3 s: 24 %"), ("gloo", "13.1–62.0 s; 127 % without 62.0")):
        yield Figure(f"band of {arm}'s medians across campaigns", band,
                     *both(partial(_band, arm=arm)), network)


def _phases(results: Results) -> Iterator[Figure]:
    network = _class(results)
    trained = [c for c in results.collectives if c.workload == "training" and c.collective == "all_reduce"
               and c.algorithm == "shard"]
    own = [c for c in trained if c.world_size == WORLD]
    runs = {(c.campaign, c.bucket_view, c.rank) for c in own}
    yield Figure("all-reduces of a rank and run", "95", f"{len(own) / len(runs):g}" if runs else None, None, ANY)
    yield Figure("observations of each phase, over all ranks and campaigns", "1,900", f"{len(own):,}" if own else None,
                 None, ANY)
    for part, text in (("publish", "0.3–1.3 ms"), ("phase1", "seconds"), ("phase2", "seconds")):
        yield Figure(f"median of {_PARTS[part]}, W = 4, over ranks", text, _medians(own, part), None, network)
    three = [c for c in trained if c.world_size == 3]
    for part, text in (("publish", "0.6 ms"), ("phase1", "13.7 ms"), ("phase2", "16.0 ms")):
        yield Figure(f"median of {_PARTS[part]}, W = 3 on a LAN", text, _medians(three, part), None,
                     "a LAN in the original; " + network)


def _bytes(results: Results) -> Iterator[Figure]:
    yield Figure("ideal volume a rank, gloo and shard, W = 4", "1.5 S: 25.35 MB", None,
                 f"1.5 S: {1.5 * GRADIENT_BYTES / 1e6:.2f} MB", ANY)
    for algorithm, ideal, text in (("shard", 1.5, SHARD_EQUIVALENTS), ("faithful", 3.0, FAITHFUL_EQUIVALENTS)):
        seen = [c for c in results.collectives if c.world_size == WORLD and c.workload == "training" and c.nbytes
                and (c.algorithm if c.collective == "all_reduce" else c.collective) == algorithm]
        moved = sum(c.socket_received or 0 for c in seen) / sum(c.nbytes for c in seen) if seen else None
        yield Figure(f"bytes of {algorithm}, in tensor equivalents, on the socket", f"{text:.3f}",
                     f"{moved:.3f}" if moved else None, f"{ideal:g}", ANY)


def _outlook(results: Results) -> Iterator[Figure]:
    network = _class(results)
    yield Figure("PyTorch's own distributed tests", "31 pass, 60 skip, 5 fail of 96 (an early state)", None, None, ANY)
    for world in (2, 3, 4, 6):
        found = next((r for r in results.ratios if r.world_size == world), None)
        yield Figure(f"b_gloo ÷ b_shard at W = {world}", "to be measured",
                     f"{found.measured.value:.3f}" if found else None,
                     f"{found.predicted[BLIND]:.3f}" if found else None, network)


_PARTS = {"publish": "publication", "phase1": "phase 1", "phase2": "phase 2"}
_Medians = Mapping[tuple[str, bool | None, int | None], float]
"""Seconds of a step, by arm, bucket view and campaign (predicted ones by timeline)."""


def _campaigns(row: Row) -> Mapping[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for m in row.measurements:
        found[m.campaign].append(m.seconds)
    return found


def _listed(values: Iterable[float], text: str = "{:.1f}") -> str:
    return ", ".join(text.format(value) for value in values)


def _own(of: _Medians, arm: str) -> str | None:
    medians = sorted(seconds for (name, *_), seconds in of.items() if name == arm)
    return f"{_listed(medians)} s" if medians else None


def _quotients(of: _Medians, view: bool | None = None) -> list[float]:
    return sorted(seconds / of["shard", own, campaign] for (arm, own, campaign), seconds in of.items()
                  if arm == "gloo" and ("shard", own, campaign) in of and view in (None, own))


def _won(of: _Medians) -> str | None:
    quotients = _quotients(of)
    return f"{sum(quotient > 1 for quotient in quotients)} of {len(quotients)}" if quotients else None


def _view(of: _Medians) -> str | None:
    found = []
    for (arm, view, campaign), off in of.items():
        if arm == "gloo" and view is False and ("gloo", True, campaign) in of:
            on = of["gloo", True, campaign]
            found.append(f"{off:.1f} and {on:.1f} s: {abs(1 - on / off):.0%} {'less' if on < off else 'more'}")
    return "; ".join(found) or None


def _band(of: _Medians, arm: str) -> str | None:
    medians = [seconds for (name, *_), seconds in of.items() if name == arm]
    return (f"{min(medians):.1f}–{max(medians):.1f} s: {max(medians) / min(medians) - 1:.0%}"
            if len(medians) > 1 else None)


def _medians(seen: Sequence[Collective], part: str) -> str | None:
    """The least and the greatest of the ranks' medians, life-size: seconds by the clock, times the speed-up."""
    by_rank: dict[tuple[int, bool | None, int], list[float]] = defaultdict(list)
    life: Callable[[Collective], float] = (lambda c: 1.0) if part == "publish" else (lambda c: c.speedup)
    for c in seen:
        if (value := getattr(c, part)) is not None:
            by_rank[c.campaign, c.bucket_view, c.rank].append(value * life(c))
    medians = [statistics.median(values) for values in by_rank.values()]
    if not medians:
        return None
    scale, unit = (1, "s") if min(medians) >= 1 else (1e3, "ms")
    return f"{min(medians) * scale:.3g}–{max(medians) * scale:.3g} {unit}"
