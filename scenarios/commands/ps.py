"""``frogtorch ps``: what is up."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from rich.table import Table

from scenarios.commands import command, console

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    command(commands, "ps", _ps, "list the runs that are up, in every runtime, and what they have")


def _ps(options: argparse.Namespace) -> int:
    from emulator.hosts import upkeep

    table = Table("run", "runtime", "its maker", "has")
    for run in upkeep.up():
        table.add_row(run.run, run.runtime, "lives" if run.in_use else "is gone", "\n".join(run.things))
    if table.row_count:
        console().print(table)
    else:
        print("nothing of ours is up")
    if os.geteuid() != 0:
        print("(what root has up, only root sees: sudo frogtorch ps)")
    return 0
