"""``frogtorch bench``: the backend beside gloo on loopback."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios import records
from scenarios.commands import command, console, tensor_size
from scenarios.progress import Stages

if TYPE_CHECKING:
    from scenarios.commands import Commands

_EPILOG = """\
Every (size, arm) runs once a block, in random order, in processes that hold a gloo and a frogtorch group each; the
ratio is of medians over all blocks, its interval resamples blocks. algbw is bytes over time; busbw is algbw x 2(W-1)/W,
what an ideal all-reduce would put on each rank's link. Other load on the machine hits both: trust ratios, not times.

examples:
  frogtorch bench                                          everything: about two minutes on two cores
  frogtorch bench --world 2 --sizes 4B 1KiB --arm shard whole --repetitions 40
  frogtorch bench --ddp --json steps.jsonl                 training steps, four ranks"""


def add(commands: Commands) -> None:
    """Add the command."""
    benching = command(commands, "bench", _bench,
                       "time the backend beside gloo, in the same processes, on unshaped loopback", _EPILOG)
    benching.set_defaults(interrupted="the ranks are gone; worlds that were done are printed, and in the --json file")
    benching.add_argument("--world", type=_world, nargs="+", metavar="W",
                          help="numbers of ranks, all on this machine (default: 2 3 4; of --ddp: 4)")
    work = benching.add_mutually_exclusive_group()
    work.add_argument("--sizes", type=tensor_size, nargs="+", metavar="SIZE",
                      help="sizes of the fp32 tensor (default: 4B 1KiB 16KiB 64KiB 1MiB 16.9MB 100MiB)")
    work.add_argument("--ddp", action="store_true",
                      help="time training steps of the founding workload under DistributedDataParallel instead")
    benching.add_argument("--arm", choices=("shard", "pipelined", "whole", "direct"), nargs="+", default=["shard"],
                          help="all-reduce algorithms of frogtorch (default: shard)")
    benching.add_argument("--repetitions", type=_repetitions, default=20, metavar="N",
                          help="blocks; each holds every size and arm once (default: 20)")
    benching.add_argument("--json", type=Path, metavar="FILE",
                          help="add a line a result to this file (scenarios/bench.py: Result)")


def _bench(options: argparse.Namespace) -> int:
    from scenarios import bench

    worlds = options.world or ([4] if options.ddp else [2, 3, 4])
    out = console()
    with Stages() as stages:
        for results in bench.bench(worlds, options.sizes or bench.SIZES, options.arm, options.repetitions, options.ddp,
                                   stages):
            if options.json:
                records.append(options.json, results)
            out.print(bench.table(results))
    return 0


def _world(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks: write 2 to 64")
    return int(text)


def _repetitions(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of blocks: write 2 or more; an interval needs 6")
    return int(text)
