"""``frogtorch scale``: how large a world the simulator can take, and studies of many generated networks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios import records
from scenarios.arms import ARMS
from scenarios.commands import command, console, tensor_size

if TYPE_CHECKING:
    from scenarios.commands import Commands

_EPILOG = """\
Networks are generated from their seed: W hosts in about sqrt(W) sites, rates of paths from a heavy tail. Every case is
one all-reduce by one arm; `took` is what simulating it took, `of a core` leaves out when others had it, and `growth` is
of that. With --limits access the rates are those of hosts' accesses, so that all flows share limits, and most change
whenever one ends. With --jobs 1 each case has a process of its own, and `memory` is what that had at most.

examples:
  frogtorch scale                                              every arm at W = 64 and 256
  frogtorch scale --world 1024 --arm shard                     some minutes and some GiB
  frogtorch scale --world 6 --seeds 200 --jobs 8 --json s.jsonl      a study of 200 networks on 8 cores
  frogtorch scale --world 64 --seeds 500 --cluster tcp://scheduler:8786      the same on a Dask cluster"""


MOST_RANKS = 4096
"""Time and memory grow with W²: of as many, they are days and 100 GB."""


def add(commands: Commands) -> None:
    """Add the command."""
    arms = [arm for arm, what in ARMS.items() if what.simulated == arm]
    scaling = command(commands, "scale", _scale, "simulate all-reduces in large worlds, and say what that took",
                      _EPILOG)
    scaling.add_argument("--world", type=_number(2, "ranks", MOST_RANKS), nargs="+", default=[64, 256], metavar="W",
                         help="numbers of ranks (default: 64 256)")
    scaling.add_argument("--arm", choices=arms, nargs="+", default=arms, help="default: all of them")
    scaling.add_argument("--limits", choices=("path", "access"), nargs="+", default=["path"],
                         help="what has the rates (default: path)")
    scaling.add_argument("--size", type=tensor_size, default=16_867_332, metavar="SIZE",
                         help="size of the fp32 tensor (default: 16.867332 MB)")
    scaling.add_argument("--seeds", type=_number(1, "networks"), default=1, metavar="N",
                         help="networks of each world, of the seeds 1 to N (default: 1)")
    where = scaling.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=_number(1, "processes"), default=1, metavar="N",
                       help="cases at a time, on this machine (default: 1, for times that mean something)")
    where.add_argument("--cluster", metavar="ADDRESS",
                       help="the scheduler of a Dask cluster, whose workers have this checkout")
    scaling.add_argument("--json", type=Path, metavar="FILE",
                         help="add a line a case to this file (scenarios/scale.py: Scale)")


def _scale(options: argparse.Namespace) -> int:
    from scenarios import scale

    options.interrupted = "nothing was written"
    cases = [scale.Case(arm, world, options.size, seed, limits) for world in options.world
             for seed in range(1, options.seeds + 1) for limits in options.limits for arm in options.arm]
    results = []
    with scale.workers(options.jobs, options.cluster) as workers:
        for _, result in scale.study(scale.run, cases, workers):
            results.append(result)
            if options.json:
                records.append(options.json, [result])
                options.interrupted = f"what was done is in {options.json}"
    console(130).print(scale.table(results))
    return 0


def _number(least: int, of: str, most: int = 1_000_000) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 7 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:20]!r} is no number of {of}: write {least} to {most}")
        return int(text)

    return parse
