"""``frogtorch together``: what several measured runs say together."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from scenarios.commands import command, console

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    joining = command(commands, "together", _together,
                      "the errors of predictions over several runs; for runs on several networks with the same worlds "
                      "and sizes, also what of the time is distance and what is world size")
    joining.add_argument("runs", type=Path, nargs="+", metavar="RUN",
                         help="measured run directories; networks from near to far")


def _together(options: argparse.Namespace) -> int:
    from scenarios import together
    from scenarios.results import Results

    if twice := [run for run in options.runs if [other.resolve() for other in options.runs].count(run.resolve()) > 1]:
        raise ValueError(f"{twice[0]} is named twice, and its points would count twice; name every run once")
    runs = [Results.load(directory) for directory in options.runs]
    score = together.score(runs)
    out = console()
    for part in together.distance(runs):
        out.print(part, Text())
    out.print(score)
    doubts = [f"{run.directory}: {doubt}" for run in runs for doubt in run.doubts]
    for doubt in doubts:
        out.print(doubt, style="bold red", markup=False)
    return 1 if doubts else 0
