"""Times collectives of the backend beside Gloo's, on this machine's loopback: no shaping, no root.

Both run in the same processes. A block holds every (size, arm) once, in an order of its own; for each, the ranks begin
together and run the collective a few times, one straight after the other. A time is the mean over the ranks of what
one operation took; the median is over all operations of all blocks, and a ratio's interval resamples blocks. CPU time
is that of all threads of all ranks.

algbw is the tensor's bytes over the median time. busbw is what an ideal algorithm would put on each rank's link in that
time: algbw · 2(W−1)/W for all-reduce (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from emulator.units import format_size
from scenarios.fit import median, ratio_of_medians
from scenarios.progress import Stages
from scenarios.ranks import Place, Ranks
from scenarios.records import Record
from scenarios.workloads import FOUNDING

GLOO = "gloo"
SIZES = (4, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 16_900_000, 100 << 20)
STEP = "training step"

_BLOCK_BYTES = 32 << 20
_BLOCK_OPERATIONS = 50
_BLOCK_STEPS = 4
_TIMEOUT = 60.0


class Result(Record):
    """One arm at one point, beside gloo. Times are seconds, rates bytes per second."""

    what: str
    """``all_reduce``, or ``training step``: one of the founding workload under DDP, all gradients together."""
    world_size: int
    arm: str
    nbytes: int
    operations: int
    """Operations timed."""
    seconds: float
    """Median."""
    interval: tuple[float, float] | None
    """Of the median, at 95 %."""
    algbw: float
    busbw: float
    cpu_seconds: float
    """An operation, all ranks together."""
    publish_seconds: float | None
    """Median that a rank spent publishing; None for gloo, which does not."""
    ratio: float | None
    """Of medians, this arm's over gloo's; None for gloo itself."""
    ratio_interval: tuple[float, float] | None


@dataclass
class _Samples:
    """What one arm did at one point, by block."""

    seconds: list[list[float]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    publish: list[float] = field(default_factory=list)

    def add(self, ranks: list[dict[str, Any]]) -> None:
        """Take in one block's answers, one a rank."""
        self.seconds.append(np.mean([rank["seconds"] for rank in ranks], axis=0).tolist())
        self.cpu.append(sum(rank["cpu"] for rank in ranks) / len(self.seconds[-1]))
        self.publish += [seen["publish"] for rank in ranks for seen in rank["telemetry"]
                         if seen["collective"] == "all_reduce"]


def bench(worlds: Sequence[int], sizes: Sequence[int], arms: Sequence[str], repetitions: int, ddp: bool,
          stages: Stages) -> Iterator[list[Result]]:
    """Measure world by world, `repetitions` blocks each; with `ddp` training steps, else all-reduces of `sizes`.

    Raises RankError when a rank fails.
    """
    for world_size in worlds:
        points = [FOUNDING.gradient_bytes] if ddp else list(sizes)
        samples = _measure(world_size, points, (GLOO, *arms), repetitions, ddp, stages)
        yield [_result(world_size, arm, nbytes, samples, ddp) for nbytes in points for arm in (GLOO, *arms)]


def _measure(world_size: int, sizes: Sequence[int], arms: tuple[str, ...], repetitions: int, ddp: bool,
             stages: Stages) -> dict[tuple[int, str], _Samples]:
    samples: dict[tuple[int, str], _Samples] = defaultdict(_Samples)
    points = [(nbytes, arm) for nbytes in sizes for arm in arms]
    with tempfile.TemporaryDirectory() as store, Ranks([
            Place(rank=rank, world_size=world_size, host="this machine", store=f"{store}/store", arms=arms,
                  timeout=_TIMEOUT) for rank in range(world_size)]) as ranks:
        stages.stage(f"W = {world_size}: {repetitions} blocks and one to warm up", (repetitions + 1) * len(points))
        for block in range(-1, repetitions):
            for nbytes, arm in random.Random(f"{world_size} {block}").sample(points, len(points)):
                if ddp:
                    found = ranks.tell("repeat_step", arm=arm, count=_BLOCK_STEPS)
                else:
                    count = max(1, min(_BLOCK_OPERATIONS, _BLOCK_BYTES // nbytes))
                    found = ranks.tell("repeat", arm=arm, nbytes=nbytes, count=count)
                if block >= 0:
                    samples[nbytes, arm].add(found)
                stages.advance(f"W = {world_size}: block {max(block, 0) + 1} of {repetitions}, "
                               f"{STEP if ddp else format_size(nbytes)}, {arm}")
    return samples


def _result(world_size: int, arm: str, nbytes: int, samples: dict[tuple[int, str], _Samples], ddp: bool) -> Result:
    own, reference = samples[nbytes, arm], samples[nbytes, GLOO]
    time = median([seconds for block in own.seconds for seconds in block])
    ratio = None if arm == GLOO else ratio_of_medians(own.seconds, reference.seconds)
    return Result(what=STEP if ddp else "all_reduce", world_size=world_size, arm=arm, nbytes=nbytes,
                  operations=time.n, seconds=time.value, interval=time.interval, algbw=nbytes / time.value,
                  busbw=nbytes / time.value * 2 * (world_size - 1) / world_size,
                  cpu_seconds=statistics.median(own.cpu),
                  publish_seconds=statistics.median(own.publish) if own.publish else None,
                  ratio=ratio.value if ratio else None, ratio_interval=ratio.interval if ratio else None)


def table(results: Iterable[Result]) -> Group:
    """Show the results of one world."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("size", "arm", "median ms", "algbw MB/s", "busbw MB/s", "CPU ms", "publish ms", "÷ gloo",
                   "95 % interval"):
        shown.add_column(column, justify="left" if column == "arm" else "right", overflow="fold")
    results = list(results)
    for r in results:
        interval = "" if r.ratio_interval is None else "{:.3f}…{:.3f}".format(*r.ratio_interval)
        shown.add_row(format_size(r.nbytes) if r.arm == GLOO else "", r.arm, f"{r.seconds * 1e3:.3f}",
                      f"{r.algbw / 1e6:.1f}", f"{r.busbw / 1e6:.1f}", f"{r.cpu_seconds * 1e3:.3f}",
                      "" if r.publish_seconds is None else f"{r.publish_seconds * 1e3:.3f}",
                      "" if r.ratio is None else f"{r.ratio:.3f}", interval)
    first = results[0]
    return Group(Text(f"{first.what}, W = {first.world_size}, loopback; CPU: all ranks together, an operation",
                      style="bold"), shown)
