"""How often a verdict's rule is right: on simulated worlds whose answer is known, and which nobody tuned it to.

A hidden world is a network drawn from a seed, of one of three classes: one rate on every path, one rate at every
access, or rates of their own on both. The simulator says what each all-reduce takes there, so what the ratio truly
follows is known: W − 1 or 1 if it lies within the band in every world, else neither. Then the measurements are drawn
about these times, with noise that a block's points have in common and noise of their own, log-normal, of a spread that
is itself drawn, log-uniform from 0.3 % to 10 %, and one point in twenty disturbed by up to as much again as it takes.
"""

from __future__ import annotations

import math
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from emulator import sim
from emulator.topology import Topology, load
from scenarios import fit
from scenarios.records import Measurement
from scenarios.scenario import Rule, Scenario
from scenarios.verdict import NEITHER, STRUCTURES, Times, verdict

CLASSES = ("path", "access", "mixed")
NOISE = (0.003, 0.1)
DISTURBED = 0.05

Exact = dict[int, dict[str, dict[int, float]]]
"""Seconds by world size, arm and bytes."""


@dataclass(frozen=True)
class Score:
    """What the rule said, over all draws of the worlds of one class whose ratio truly follows `truth`."""

    kind: str
    truth: str
    said: Counter[str]

    @property
    def right(self) -> int:
        """Draws on which it said what is true."""
        return self.said[self.truth]


def scores(rule: Rule, sizes: Sequence[int], worlds: int, draws: int, seed: str, executor: Executor,
           advance: Callable[[], None] = lambda: None) -> list[Score]:
    """Try a rule, of tensors of `sizes` bytes, on `worlds` hidden worlds, `draws` times each, by class and truth.

    The same seed gives the same worlds and draws. `advance` is called after each world.
    """
    tried = executor.map(_try, *zip(*((rule, sizes, CLASSES[index % len(CLASSES)], f"{seed} {index}", draws)
                                      for index in range(worlds)), strict=True))
    found: dict[tuple[str, str], Counter[str]] = {}
    for kind, truth, said in tried:
        found.setdefault((kind, truth), Counter()).update(said)
        advance()
    return [Score(kind, truth, said) for (kind, truth), said in sorted(found.items())]


def asked(scenario: Scenario) -> tuple[Rule, Sequence[int]]:
    """The rule and the sizes of a scenario's verdict. Raises ValueError for a scenario without one."""
    if scenario.rule is None or scenario.all_reduce is None:
        raise ValueError(f"{scenario.file}: it asks for no verdict; add one (scenarios/scenario.py says how)")
    return scenario.rule, scenario.all_reduce.slope


def _try(rule: Rule, sizes: Sequence[int], kind: str, seed: str, draws: int) -> tuple[str, str, Counter[str]]:
    rng = random.Random(seed)
    times = exact(network(kind, rng), rule.worlds, sizes)
    said = Counter(verdict(rule, measured(times, rule.blocks, rng), sizes, seed=draw).follows for draw in range(draws))
    return kind, truth(rule, times, sizes), said


def commit() -> str:
    """The hash of the commit that this is, as a seed. Raises ValueError outside a checkout."""
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, check=True, capture_output=True,
                              text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise ValueError("the seed is the commit's hash, and this is no checkout of git; give one with --seed"
                         ) from None


def network(kind: str, rng: random.Random, hosts: int = 6) -> Topology:
    """A drawn network: see :func:`draw`."""
    with tempfile.TemporaryDirectory() as room:
        file = Path(room) / "hidden.yaml"
        file.write_text(draw(kind, rng, hosts, f"hidden-{kind}"), encoding="utf-8")
        return load(file)


def draw(kind: str, rng: random.Random, hosts: int, name: str) -> str:
    """Draw a network, as YAML: rates log-uniform from 0.3 to 30 MB/s, delays uniform from 1 to 80 ms."""
    def rate() -> str:
        return f"{math.exp(rng.uniform(math.log(0.3), math.log(30))):.4f} MB/s"

    def access() -> str:
        return f", access: {{up: {rate()}, down: {rate()}}}" if kind == "mixed" else own

    one = rate()
    own = f", access: {{up: {one}, down: {one}}}" if kind == "access" else ""
    lines = [f"name: {name}", "sites: [here]", "hosts:",
             *(f"  h{index}: {{site: here{access()}}}" for index in range(hosts)), "paths:"]
    for a in range(hosts):
        for b in range(a):
            limit = {"path": f", rate: {one}", "access": "", "mixed": f", rate: {rate()}"}[kind]
            lines.append(f"  - {{between: [h{a}, h{b}], delay: {rng.uniform(1, 80):.2f} ms{limit}}}")
    return "\n".join(lines) + "\n"


def exact(topology: Topology, worlds: Sequence[int], sizes: Sequence[int]) -> Exact:
    """What the simulator says that gloo and shard take, rank i on the i-th host."""
    names = [host.name for host in topology.hosts]
    return {world: {arm: {n: sim.all_reduce(topology, names[:world], arm, n).seconds for n in sizes}
                    for arm in ("gloo", "shard")} for world in worlds}


def truth(rule: Rule, times: Exact, sizes: Sequence[int]) -> str:
    """What the ratio of the noiseless slopes follows."""
    ratios = {world: fit.predicted(arms["gloo"], sizes) / fit.predicted(arms["shard"], sizes)
              for world, arms in times.items()}
    for name, structure in STRUCTURES.items():
        if all(abs(ratio / structure(world) - 1) <= rule.within for world, ratio in ratios.items()):
            return name
    return NEITHER


def measured(times: Exact, blocks: int, rng: random.Random) -> Times:
    """Draw measurements about the times."""
    low, high = map(math.log, NOISE)
    spread = math.exp(rng.uniform(low, high))

    def of(world: int) -> Iterator[Measurement]:
        for block in range(blocks):
            common = rng.gauss(0, spread)
            for arm, by_size in times[world].items():
                for nbytes, seconds in by_size.items():
                    slower = rng.uniform(1, 2) if rng.random() < DISTURBED else 1.0
                    took = seconds * slower * math.exp(common + rng.gauss(0, spread))
                    yield Measurement(arm=arm, world_size=world, hosts=("hidden",) * world, workload="all_reduce",
                                      nbytes=nbytes, speedup=1.0, campaign=0, repetition=block, seconds=took,
                                      clock_seconds=took, rank_seconds=(took,) * world, prediction="")

    drawn = {world: list(of(world)) for world in times}
    return {world: ([m for m in of if m.arm == "gloo"], [m for m in of if m.arm == "shard"])
            for world, of in drawn.items()}
