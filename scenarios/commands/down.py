"""``frogtorch down``: remove what a run left."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from scenarios.commands import command

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    removing = command(commands, "down", _down,
                       "remove what a run left up (after kill -9, say); twice is not an error")
    removing.add_argument("run", nargs="?",
                          help="the run's id, as `measure` printed it (default: all whose makers are gone)")


def _down(options: argparse.Namespace) -> int:
    from emulator.hosts import upkeep

    removed = upkeep.down(options.run)
    print("\n".join(removed) if removed else "nothing of ours is up")
    if os.geteuid() != 0:
        print("(what root has up, only root sees: sudo frogtorch down)")
    return 0
