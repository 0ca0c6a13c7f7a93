"""What a scenario's YAML may say, field by field; :mod:`scenarios.scenario` documents it and makes a scenario of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from emulator.document import Name, Section
from emulator.units import format_size, parse_share, parse_size, parse_time, shown
from scenarios.workloads import FOUNDING

ELEMENT = 4
"""Bytes of an element: tensors are fp32."""
LARGEST = 16 << 30
"""Bytes of a tensor: what an all-reduce takes to simulate grows with it, and soon no machine could measure it."""


def parse_tensor(value: object) -> int:
    """Bytes of an fp32 tensor, as text or a number gives them. Raises ValueError."""
    size = parse_size(value)
    if size > LARGEST:
        raise ValueError(f"{shown(value)} is too large for a tensor here; write at most {format_size(LARGEST)}")
    if size % ELEMENT:
        raise ValueError(f"{shown(value)} is no whole number of fp32 elements; write a multiple of {ELEMENT} B, such "
                         f"as {format_size(max(ELEMENT, size - size % ELEMENT))}")
    return size


Size = Annotated[int, BeforeValidator(parse_tensor)]
FASTEST = 10
"""The greatest speed-up: computing, timers and scheduling are not sped up, and would tell."""
Speedup = Annotated[float, Field(strict=True, ge=1, le=FASTEST)]


def _speedup(value: object) -> object:
    by_world = value if isinstance(value, dict) else {None: value}
    for world, one in by_world.items():
        if world is not None and type(world) is not int:
            raise ValueError(f"{shown(world)} is no world size; write a number for all worlds, or one for each, as in "
                             "{2: 10, 3: 5}")
        if isinstance(one, bool) or not isinstance(one, int | float) or not 1 <= one <= FASTEST:
            of = "" if world is None else f" for W = {shown(world)}"
            raise ValueError(f"{shown(one)}{of} is refused; it should be a number from 1 to {FASTEST}")
    return value


def _length(value: object) -> float:
    length = parse_time(value)
    if length < 1:
        raise ValueError(f"{shown(value)} is too short for a network to change; write a time of 1 s or more")
    return length


def _views(value: object) -> object:
    views = value if isinstance(value, list) else [value]
    if any(not isinstance(view, bool) for view in views) or len(set(views)) < max(1, len(views)):
        raise ValueError(f"{shown(value)} is refused; it should be true, false, or both: [false, true]")
    return tuple(views)


class AllReduceEntry(Section):
    """Sizes of tensors that are reduced."""

    intercept: Size
    slope: tuple[Size, ...]
    beside: tuple[Size, ...] = ()


class ScalingEntry(Section):
    """One all-reduce at other speed-ups."""

    world: Annotated[int, Field(strict=True)]
    size: Size
    speedups: Annotated[tuple[Speedup, ...], Field(min_length=1)]


class TrainingEntry(Section):
    """A workload and its steps."""

    steps: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    warmup: Annotated[int, Field(strict=True, ge=0)]
    workload: str = FOUNDING.name
    bucket_view: Annotated[tuple[bool, ...], BeforeValidator(_views)] = (False,)
    staleness_bound: Annotated[int, Field(strict=True, ge=0)] = 64
    k: Annotated[int, Field(strict=True, ge=1)] = 4
    stragglers: Annotated[dict[str, Annotated[float, Field(strict=True, ge=1, le=1000)]], Field(default_factory=dict)]


class BarEntry(Section):
    """A demand on the run; what it may speak of depends on the rest of the file."""

    arm: str
    over: str
    world: Annotated[int, Field(strict=True)] | None = None
    size: Size | None = None
    at_least: Annotated[float, Field(strict=True, gt=0)] | None = None
    at_most: Annotated[float, Field(strict=True, gt=0)] | None = None


class RuleEntry(Section):
    """What is asked of b_gloo ÷ b_shard."""

    worlds: Annotated[tuple[Annotated[int, Field(strict=True, ge=3)], ...], Field(min_length=1)]
    blocks: Annotated[int, Field(strict=True, ge=6)] = 10
    within: Annotated[float, BeforeValidator(parse_share), Field(gt=0, lt=0.5)] = 0.1


class UntilEntry(Section):
    """When blocks of all-reduces end."""

    within: Annotated[float, BeforeValidator(parse_share), Field(gt=0, lt=1)]
    budget: Annotated[float, BeforeValidator(parse_time), Field(gt=0)]


class CampaignsEntry(Section):
    """How many campaigns there are, and what their networks are drawn from."""

    number: Annotated[int, Field(strict=True, ge=2, le=100)]
    seed: Annotated[int, Field(strict=True)]
    length: Annotated[float, BeforeValidator(_length)]


class ScenarioFile(Section):
    """The whole file."""

    name: Name
    topology: str
    worlds: Annotated[dict[Annotated[int, Field(strict=True, ge=2)], tuple[str, ...]], Field(min_length=1)]
    arms: Annotated[tuple[str, ...], Field(min_length=1)]
    repetitions: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    until: UntilEntry | None = None
    speedup: Annotated[float | dict[int, float], BeforeValidator(_speedup)] = 1.0
    timeout: Annotated[float, BeforeValidator(parse_time), Field(gt=0)] = 300.0
    all_reduce: AllReduceEntry | None = None
    scaling: ScalingEntry | None = None
    training: TrainingEntry | None = None
    campaigns: CampaignsEntry | None = None
    bars: tuple[BarEntry, ...] = ()
    verdict: RuleEntry | None = None
