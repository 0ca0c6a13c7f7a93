"""Scenarios: what is predicted and measured, on which network, in which worlds.

A scenario is a page of YAML::

    name: seattle-newyork
    topology: ../topologies/seattle-newyork.yaml    # relative to this file
    worlds:                                         # world size: rank i runs on the i-th host
      2: [seattle-ai, newyork-1]
      3: [seattle-ai, seattle-gateway, newyork-1]
    arms: [gloo, shard]
    repetitions: 6                                  # blocks of interleaved arms and sizes; 1 by default
    until: {within: 5 %, budget: 600 s}             # then more, until the 95 % interval of every median is within 5 %
                                                    # of it, or 600 s (of a world, at a speed-up) are over; may be left
                                                    # out
    speedup: 10                                     # k: rates × k, delays ÷ k; from 1, the default, to 10; or by world,
                                                    # as in {2: 10, 3: 5}
    timeout: 300 s                                  # the longest that a collective may take; this is the default

    all_reduce:                                     # tensor sizes: whole fp32 elements
      intercept: 4 KiB                              # a is the time of this one
      slope: [2.1 MB, 4.2 MB, 8.4 MB, 16.9 MB]      # b is the Theil–Sen slope through these
      beside: [16 KiB, 64 KiB]                      # measured and printed, in no fit; may be left out

    scaling:                                        # proof that the speed-up changes nothing; may be left out
      world: 4                                      # this size, in this world, is run at these speed-ups too:
      size: 4.2 MB                                  # k × its time must agree
      speedups: [1, 5]

    training:                                       # beside or instead of all_reduce
      workload: founding                            # or digits, or small (scenarios/workloads)
      steps: 48                                     # of each arm, warm-up included
      warmup: 8                                     # first steps, which are not recorded
      bucket_view: false                            # DDP's gradient_as_bucket_view; this is the default. With
                                                    # [false, true] every arm trains twice
      staleness_bound: 64                           # of fresh_only: steps that a peer may lag; this is the default
      k: 4                                          # of every_k; this is the default
      stragglers: {newyork-1: 3}                    # hosts that are slow, and how many times longer than the others
                                                    # they compute; at life size only; may be left out

    campaigns: {number: 8, seed: 7, length: 300 s}  # the training is measured so often, each time on a network that is
                                                    # drawn anew from the seed and changes for so long
                                                    # (scenarios/timelines.py); may be left out

    bars:                                           # what this run must show, or it has failed; may be left out
      - {arm: shard, over: predicted, at_most: 1.08}                  # measured ÷ predicted, of every all-reduce
      - {arm: shard, over: theory, world: 4, at_most: 1.05}           # b ÷ what bytes alone say of it
      - {arm: gloo, over: shard, world: 4, size: 4.2 MB, at_least: 2.8}      # ÷ another arm's time at the same point

    verdict:                                        # what is asked of b_gloo ÷ b_shard, before the run; may be left out
      worlds: [3, 4, 6]                             # not 2, where W − 1 and 1 are the same
      blocks: 10                                    # repetitions that it needs at the least
      within: 10 %                                  # of W − 1, or of 1 (scenarios/verdict.py)

Sizes below 1 MiB always run at life size, whatever the speed-up: they measure latency, which scheduling jitter would
hide. A host may appear in a world as often as it has slots. The arms are those of scenarios/arms.py; some of them only
train. Imports no torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path

from emulator.document import Document, DocumentError, suggest
from emulator.topology import Topology
from emulator.topology import load as load_topology
from emulator.units import format_size, shown
from scenarios import timelines
from scenarios.arms import ARMS
from scenarios.scenario_file import (
    AllReduceEntry,
    BarEntry,
    CampaignsEntry,
    RuleEntry,
    ScalingEntry,
    ScenarioFile,
    TrainingEntry,
    UntilEntry,
)
from scenarios.workloads import WORKLOADS, Workload

PREDICTED, THEORY = "predicted", "theory"
"""What a bar may hold an arm against, other than another arm."""

LEAST = 6
"""Repetitions whose median has a 95 % interval (:func:`scenarios.fit.median`)."""

LARGE = 1 << 20
"""Bytes from which on a tensor's time is its transfer: for the slope, and for a speed-up."""


class ScenarioError(DocumentError):
    """A scenario that is refused; its message starts with ``file:line: ``."""


@dataclass(frozen=True)
class AllReduce:
    """All-reduces of tensors of these sizes, in bytes."""

    intercept: int
    slope: tuple[int, ...]
    beside: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every size once, ascending."""
        return tuple(sorted({self.intercept, *self.slope, *self.beside}))


@dataclass(frozen=True)
class Scaling:
    """One all-reduce, of the slope's sizes, repeated at other speed-ups than the scenario's."""

    world: int
    size: int
    """Bytes."""
    speedups: tuple[float, ...]


@dataclass(frozen=True)
class Training:
    """Steps of a workload, of which the first `warmup` are not recorded."""

    workload: Workload
    steps: int
    warmup: int
    bucket_views: tuple[bool, ...]
    """Settings of gradient_as_bucket_view: every arm trains once with each."""
    staleness_bound: int
    """Of fresh_only."""
    k: int
    """Of every_k."""
    stragglers: Mapping[str, float] = field(default_factory=dict)
    """By host: how many times longer than the others it computes."""
    script: str | None = None
    """A script of the user's that trains in place of the workload (:mod:`scenarios.script`)."""


@dataclass(frozen=True)
class Bar:
    """A demand on a run: the measured time of `arm` ÷ `over` (or its b ÷ theory's) is within these bounds."""

    arm: str
    over: str
    """PREDICTED, THEORY, or another arm."""
    world: int | None
    """None: every world."""
    size: int | None
    """Bytes; None: every size."""
    at_least: float
    at_most: float

    def __str__(self) -> str:
        bounds = [f"at least {self.at_least:g}"] * (self.at_least > 0) + [f"at most {self.at_most:g}"] * (
            self.at_most < math.inf)
        return f"{self.arm} ÷ {self.over} {' and '.join(bounds)}"


@dataclass(frozen=True)
class Until:
    """When no more blocks of all-reduces are run, once there are the scenario's repetitions."""

    within: float
    """Share of each median that its 95 % interval may reach from it."""
    budget: float
    """Seconds by the clock, of one world at one speed-up: after them no block is begun."""


@dataclass(frozen=True)
class Rule:
    """How the run is asked whether b_gloo / b_shard follows the structure (:mod:`scenarios.verdict`)."""

    worlds: tuple[int, ...]
    blocks: int
    within: float
    """A share of what the ratio is held against."""


@dataclass(frozen=True)
class Scenario:
    """What is predicted and measured; ``worlds[W][i]`` is the host of rank i."""

    name: str
    file: str
    text: str
    """The file's text, as it was read."""
    topology: Topology
    worlds: dict[int, tuple[str, ...]]
    arms: tuple[str, ...]
    repetitions: int
    """Blocks; with `until` at the least."""
    speedups: dict[int, float]
    """The speed-up of each world, for tensors of at least LARGE bytes and for training."""
    timeout: float
    """Seconds that a collective may take."""
    all_reduce: AllReduce | None
    scaling: Scaling | None
    training: Training | None
    bars: tuple[Bar, ...]
    rule: Rule | None
    until: Until | None = None
    timelines: tuple[Topology, ...] = ()
    """The topology as it was drawn for each campaign, with its timeline; empty where none are asked for."""

    @cached_property
    def network(self) -> Topology:
        """The part of the topology that is used."""
        return self.used(self.topology)

    @property
    def networks(self) -> tuple[tuple[int | None, Topology], ...]:
        """What is predicted and measured: each of the timelines by its number, or the topology alone, as None."""
        return tuple(enumerate(self.timelines)) or ((None, self.topology),)

    def used(self, topology: Topology) -> Topology:
        """The part of it that the worlds and its traffic use: what has to be up to measure them."""
        traffic = (host for flow in topology.timeline.traffic for host in (flow.source, flow.target))
        return topology.select(chain(*self.worlds.values(), traffic))

    def speedup_for(self, nbytes: int, world: int) -> float:
        """Return the speed-up at which a tensor of that size runs."""
        return self.speedups[world] if nbytes >= LARGE else 1.0


def load(file: Path | str, topology: Path | str | None = None) -> Scenario:
    """Read a scenario and its topology.

    With `topology` that file is read in place of the one which the scenario names: a run directory has its own copy,
    and beside it the campaigns' networks, which are then read and not drawn.

    Raises ScenarioError or TopologyError, with the mend, for anything that is wrong with them.
    """
    document = Document(file, ScenarioFile, ScenarioError)
    content = document.content
    named = Path(topology) if topology else document.file.parent / content.topology
    if not os.path.isfile(named):  # False, and not an OSError, for what cannot be a file name at all
        raise document.error("topology", message=f"topology: there is no file {named}; give its path relative to the "
                                                 "scenario's own directory")
    network = load_topology(named)
    for size, world in content.worlds.items():
        _check_world(document, network, size, world)
    for index, arm in enumerate(content.arms):
        if arm not in ARMS:
            raise document.error("arms", index, message=f"unknown arm {arm!r}; {suggest(arm, ARMS)}")
        if arm in content.arms[:index]:
            raise document.error("arms", index, message=f"arm {arm!r} is listed twice; keep one")
        if content.all_reduce and ARMS[arm].only_trains:
            raise document.error("arms", index, message=f"arm {arm!r} exchanges the gradients of a training, and is no "
                                                        "all-reduce; name it in a scenario that has training alone")
    speedups = _speedups(document, content)
    if content.all_reduce and network.timeline:
        raise document.error("all_reduce", message=f"topology {network.name!r} has a timeline, whose second 0 is the "
                                                   "start of a training, and an all-reduce has none; train, or take a "
                                                   "topology without")
    if not (content.all_reduce or content.training):
        raise document.error(message="nothing to run; add all_reduce or training")
    return Scenario(
        content.name, str(document.file), document.text, network, content.worlds, content.arms, content.repetitions,
        speedups, content.timeout,
        _all_reduce(document, content.all_reduce) if content.all_reduce else None,
        _scaling(document, content, content.scaling, speedups) if content.scaling else None,
        _training(document, content, content.training, network, speedups) if content.training else None,
        tuple(_bar(document, content, index, bar) for index, bar in enumerate(content.bars)),
        _rule(document, content, content.verdict) if content.verdict else None,
        _until(document, content, content.until) if content.until else None,
        _timelines(document, content, content.campaigns, network, recorded=topology is not None)
        if content.campaigns else ())


def _until(document: Document[ScenarioFile], content: ScenarioFile, until: UntilEntry) -> Until:
    if content.repetitions < LEAST:
        raise document.error("until", message=f"until: medians of {content.repetitions} repetitions have no interval; "
                                              f"make repetitions {LEAST} or more")
    return Until(until.within, until.budget)


def _check_world(document: Document[ScenarioFile], topology: Topology, size: int, world: tuple[str, ...]) -> None:
    slots = {host.name: host.slots for host in topology.hosts}
    here = ("worlds", size)
    if size > sum(slots.values()):
        raise document.error(*here, message=f"W = {shown(size)} is more ranks than the {sum(slots.values())} that "
                                            f"the hosts of topology {topology.name!r} may run; make W smaller, or "
                                            "the slots of a host more")
    if len(world) != size:
        raise document.error(*here, message=f"W = {size} names {len(world)} hosts; name one host a rank, {size}")
    for rank, name in enumerate(world):
        if name not in slots:
            raise document.error(*here, rank, message=f"unknown host {name!r} for rank {rank} of W = {size}; "
                                                      f"{suggest(name, slots)}")
        taken = world[:rank].count(name)
        if taken >= slots[name]:
            raise document.error(*here, rank, message=f"rank {rank} of W = {size} is on {name!r}, which has slots "
                                                      f"for {slots[name]} and runs rank {world.index(name)}; name "
                                                      "another host, or give it more slots in the topology")


def _all_reduce(document: Document[ScenarioFile], content: AllReduceEntry) -> AllReduce:
    here = ("all_reduce", "slope")
    # The Theil–Sen slope is a median over pairs of sizes: two sizes make one pair, and no residual.
    if len(set(content.slope)) < 3:
        raise document.error(*here, message="a slope needs at least 3 different sizes; add some")
    for index, size in enumerate(content.slope):
        if size < LARGE:
            raise document.error(*here, index, message=f"slope: {format_size(size)} is a size whose time is latency; "
                                                       f"write sizes of at least {format_size(LARGE)}")
    if content.intercept >= LARGE:
        raise document.error("all_reduce", "intercept",
                             message=f"intercept: {format_size(content.intercept)} is a size whose time is transfer; "
                                     f"write a size below {format_size(LARGE)}")
    return AllReduce(content.intercept, content.slope, content.beside)


def _speedups(document: Document[ScenarioFile], content: ScenarioFile) -> dict[int, float]:
    if not isinstance(content.speedup, dict):
        return dict.fromkeys(content.worlds, content.speedup)
    if missing := [world for world in content.worlds if world not in content.speedup]:
        raise document.error("speedup", message=f"speedup: none is given for W = {missing[0]}; give one for each "
                                                "world, or one number for all")
    for world in content.speedup:
        if world not in content.worlds:
            raise document.error("speedup", world, message=f"speedup: there is no world {shown(world)}; name those of "
                                                           f"worlds, {', '.join(map(str, content.worlds))}")
    return content.speedup


def _scaling(document: Document[ScenarioFile], content: ScenarioFile, scaling: ScalingEntry,
             speedups: dict[int, float]) -> Scaling:
    if scaling.world not in content.worlds:
        raise document.error("scaling", "world", message=f"scaling: there is no world {shown(scaling.world)}; name one "
                                                         f"of {', '.join(map(str, content.worlds))}")
    sizes = content.all_reduce.slope if content.all_reduce else ()
    if scaling.size not in sizes:
        raise document.error("scaling", "size", message=f"scaling: {format_size(scaling.size)} is none of the slope's "
                                                        "sizes, and so is not measured at the scenario's own speed-up; "
                                                        "name one of them")
    for index, speedup in enumerate(scaling.speedups):
        if speedup == speedups[scaling.world] or speedup in scaling.speedups[:index]:
            raise document.error("scaling", "speedups", index, message=f"speed-up {speedup:g} is run already; name "
                                                                       "others")
    return Scaling(scaling.world, scaling.size, scaling.speedups)


def _training(document: Document[ScenarioFile], content: ScenarioFile, training: TrainingEntry, network: Topology,
              speedups: dict[int, float]) -> Training:
    if training.warmup >= training.steps:
        raise document.error("training", "warmup", message=f"warmup: of {training.steps} steps "
                                                           f"{shown(training.warmup)} are warm-up, which leaves "
                                                           "none; write fewer")
    if training.workload not in WORKLOADS:
        raise document.error("training", "workload", message=f"unknown workload {training.workload!r}; "
                                                             f"{suggest(training.workload, WORKLOADS)}")
    _check_stragglers(document, content, training.stragglers, network, speedups)
    return Training(WORKLOADS[training.workload], training.steps, training.warmup, training.bucket_view,
                    training.staleness_bound, training.k, training.stragglers)


def _check_stragglers(document: Document[ScenarioFile], content: ScenarioFile, stragglers: Mapping[str, float],
                      network: Topology, speedups: dict[int, float]) -> None:
    names = [host.name for host in network.hosts]
    for host in stragglers:
        here = ("training", "stragglers", host)
        if host not in names:
            raise document.error(*here, message=f"unknown host {host!r}; {suggest(host, names)}")
        worlds = [size for size, world in content.worlds.items() if host in world]
        if not worlds:
            raise document.error(*here, message=f"host {host!r} runs no rank in any world; name one of "
                                                f"{', '.join(dict.fromkeys(chain(*content.worlds.values())))}")
        # A slow host computes beside the others' exchange. Computing is not sped up, so more of it would hide there.
        if fast := [size for size in worlds if speedups[size] != 1]:
            raise document.error(*here, message=f"host {host!r} is slow at life size, and W = {fast[0]} is sped up, "
                                                "which computing is not; write speedup: 1")


def _timelines(document: Document[ScenarioFile], content: ScenarioFile, campaigns: CampaignsEntry, network: Topology,
               recorded: bool) -> tuple[Topology, ...]:
    if content.all_reduce or not content.training:
        raise document.error("campaigns", message="campaigns: their timelines begin with a training; write training, "
                                                  "and all_reduce in another scenario")
    if network.timeline:
        raise document.error("campaigns", message=f"campaigns: topology {network.name!r} has a timeline already; take "
                                                  "one without")
    if recorded:
        return timelines.recorded(Path(network.file).parent, campaigns.number)
    hosts = chain(*content.worlds.values())
    try:
        return timelines.draw(network, hosts, campaigns.number, campaigns.seed, campaigns.length)
    except ValueError as error:
        raise document.error("campaigns", message=f"campaigns: {error}") from None


def _bar(document: Document[ScenarioFile], content: ScenarioFile, index: int, bar: BarEntry) -> Bar:
    def refuse(field: str, message: str) -> DocumentError:
        return document.error("bars", index, field, message=message)

    if content.all_reduce is None:
        raise refuse("arm", "a bar is about all-reduces, and there are none; add all_reduce")
    if bar.arm not in content.arms:
        raise refuse("arm", f"arm {bar.arm!r} is not run; {suggest(bar.arm, content.arms)}")
    others = (PREDICTED, THEORY, *(arm for arm in content.arms if arm != bar.arm))
    if bar.over not in others:
        raise refuse("over", f"{bar.over!r} is nothing to hold {bar.arm!r} against; {suggest(bar.over, others)}")
    if bar.world is not None and bar.world not in content.worlds:
        raise refuse("world", f"there is no world {shown(bar.world)}; name one of "
                              f"{', '.join(map(str, content.worlds))}")
    sizes = _all_reduce(document, content.all_reduce).sizes
    if bar.size is not None and (bar.over == THEORY or bar.size not in sizes):
        raise refuse("size", "theory speaks of b, which has no size; leave it out" if bar.over == THEORY else
                     f"{format_size(bar.size)} is not run; name one of {', '.join(map(format_size, sizes))}")
    at_least, at_most = bar.at_least or 0.0, bar.at_most or math.inf
    if (bar.at_least, bar.at_most) == (None, None) or at_least > at_most:
        raise refuse("arm", "this bar has no room, or no end; write at_least, at_most, or both in this order")
    return Bar(bar.arm, bar.over, bar.world, bar.size, at_least, at_most)


def _rule(document: Document[ScenarioFile], content: ScenarioFile, rule: RuleEntry) -> Rule:
    if content.all_reduce is None or not {"gloo", "shard"}.issubset(content.arms):
        raise document.error("verdict", message="the verdict is about b of gloo and shard; run all_reduce with both")
    for index, world in enumerate(rule.worlds):
        if world not in content.worlds:
            raise document.error("verdict", "worlds", index, message=f"verdict: there is no world {shown(world)}; name "
                                                                     f"some of {', '.join(map(str, content.worlds))}")
    if rule.blocks > content.repetitions:
        raise document.error("verdict", "blocks", message=f"verdict: {shown(rule.blocks)} blocks are asked for, and "
                                                          f"there are {content.repetitions} repetitions; make those "
                                                          "more")
    return Rule(rule.worlds, rule.blocks, rule.within)
