"""``frogtorch rule``: how often the rule of a scenario's verdict is right."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from scenarios import hidden, scale
from scenarios.calibration import cores
from scenarios.commands import command, console
from scenarios.progress import Stages
from scenarios.scenario import load
from scenarios.verdict import UNDECIDED

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    trying = command(commands, "rule", _rule,
                     "try the rule of a scenario's verdict on simulated networks whose answer is known")
    trying.set_defaults(interrupted="nothing was written")
    trying.add_argument("scenario", type=Path, help="a scenario that asks for a verdict")
    trying.add_argument("--worlds", type=int, default=60, metavar="N",
                        help="networks to draw, a third of each class: limited per path, at equal accesses, mixed "
                             "(default: 60)")
    trying.add_argument("--draws", type=int, default=20, metavar="N",
                        help="sets of noisy measurements of each (default: 20)")
    trying.add_argument("--seed", metavar="TEXT", help="what they are drawn from (default: the commit's hash)")


def _rule(options: argparse.Namespace) -> int:
    if options.worlds < 1 or options.draws < 1:
        raise ValueError("--worlds and --draws are 1 or more")
    scenario = load(options.scenario)
    rule, sizes = hidden.asked(scenario)
    seed = options.seed or hidden.commit()
    with Stages() as stages, scale.workers(cores(), None) as executor:
        stages.stage(f"trying the rule on {options.worlds} networks", options.worlds)
        scores = hidden.scores(rule, sizes, options.worlds, options.draws, seed, executor, stages.advance)
    table = Table("class of network", "b_gloo / b_shard follows", "draws", "right", "undecided", "wrong")
    for score in scores:
        draws = sum(score.said.values())
        undecided = score.said[UNDECIDED]
        table.add_row(score.kind, score.truth, str(draws), str(score.right), str(undecided),
                      str(draws - score.right - undecided))
    console().print(table, f"seed {seed}")
    return 0
