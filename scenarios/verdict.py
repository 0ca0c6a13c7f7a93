"""The verdict on the founding question, by a rule that the scenario states before it is run.

Does b_gloo / b_shard grow with the world as the structure says, and is the difference in b or in a of T(n) = a + b·n?

With h(W) = W − 1 (what a limit per path makes of it) or h(W) = 1 (a limit at each access): the ratio *follows h* if in
every world its interval lies within the rule's band about h; it follows *neither* if, for each of the two, some world's
interval lies wholly outside the band; else it is *undecided*. The intervals hold at 95 % together: each has 1 − 0.05/m
for m worlds (Bonferroni's inequality, which needs no independence), resampled over blocks.

Where the difference is: φ = Δb·n / ΔT at the largest size n, Δb = b_gloo − b_shard, ΔT = T_gloo(n) − T_shard(n). In b
if φ > 0.9 in every world, in a if φ < 0.1 in every world, else in both. Where ΔT is less than a tenth of T_gloo there
is no difference to place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scenarios import fit
from scenarios.fit import Estimate
from scenarios.records import Measurement
from scenarios.scenario import Rule

PER_PATH, PER_ACCESS, NEITHER, UNDECIDED = "W − 1", "1", "neither", "undecided"
STRUCTURES: Mapping[str, Callable[[int], float]] = {PER_PATH: lambda size: size - 1.0, PER_ACCESS: lambda size: 1.0}
"""What the ratio may follow, by name: h of the world size."""
IN_B, IN_A = 0.9, 0.1
NO_DIFFERENCE = 0.1
"""Of T_gloo: less than that between the arms is not placed."""

Times = Mapping[int, tuple[Sequence[Measurement], Sequence[Measurement]]]
"""Measurements of gloo and of shard, by world size."""


@dataclass(frozen=True)
class Verdict:
    """What a run says. The ratios' intervals hold together."""

    follows: str
    """One of PER_PATH, PER_ACCESS, NEITHER, UNDECIDED."""
    reason: str
    ratios: Mapping[int, Estimate]
    """b_gloo / b_shard by world size."""
    phi: Mapping[int, float | None]
    """Share of the difference at the largest size that is in b, by world size; None where there is none to place."""

    @property
    def where(self) -> str:
        """In which of a and b the difference is: "b", "a", "both", or "neither" where there is none."""
        known = [phi for phi in self.phi.values() if phi is not None]
        if not known:
            return "neither"
        return "b" if min(known) > IN_B else "a" if max(known) < IN_A else "both"


def verdict(rule: Rule, times: Times, sizes: Sequence[int], seed: int = 0) -> Verdict:
    """Apply the rule to the measurements of its worlds; `sizes` (bytes) are those of the slope.

    Raises FitError where a world or a size is missing.
    """
    if missing := [world for world in rule.worlds if world not in times]:
        raise fit.FitError(f"the verdict needs W = {missing[0]}, which was not measured")
    level = 1 - (1 - fit.LEVEL) / len(rule.worlds)
    ratios = {world: fit.ratio(*times[world], sizes, seed, level) for world in rule.worlds}
    phi = {world: _share(*times[world], sizes) for world in rule.worlds}
    blocks = min(len({(m.campaign, m.repetition) for m in gloo if m.nbytes in sizes})
                 for gloo, _ in (times[world] for world in rule.worlds))
    if blocks < rule.blocks:
        return Verdict(UNDECIDED, f"{blocks} blocks, and the rule asks for {rule.blocks}", ratios, phi)
    follows, reason = _follows(rule, ratios)
    return Verdict(follows, reason, ratios, phi)


def _follows(rule: Rule, ratios: Mapping[int, Estimate]) -> tuple[str, str]:
    intervals = {world: ratios[world].interval for world in rule.worlds}
    excluded = {}
    for name, structure in STRUCTURES.items():
        bands = {world: ((1 - rule.within) * structure(world), (1 + rule.within) * structure(world))
                 for world in rule.worlds}
        if all(interval and bands[world][0] <= interval[0] and interval[1] <= bands[world][1]
               for world, interval in intervals.items()):
            return name, f"every interval lies within {rule.within:.0%} of {name}"
        outside = [world for world, interval in intervals.items()
                   if interval and (interval[1] < bands[world][0] or interval[0] > bands[world][1])]
        if outside:
            excluded[name] = f"W = {outside[0]} is outside {rule.within:.0%} of {name}"
    if len(excluded) == len(STRUCTURES):
        return NEITHER, "; ".join(excluded.values())
    return UNDECIDED, "some interval reaches over the edge of a band"


def _share(gloo: Sequence[Measurement], shard: Sequence[Measurement], sizes: Sequence[int]) -> float | None:
    """Return φ at the largest size."""
    largest = max(sizes)
    ring, spread = (fit.median([m.seconds for m in of if m.nbytes == largest]).value for of in (gloo, shard))
    if abs(ring - spread) < NO_DIFFERENCE * ring:
        return None
    difference = fit.line(gloo, sizes).slope.value - fit.line(shard, sizes).slope.value
    return difference * largest / (ring - spread)
