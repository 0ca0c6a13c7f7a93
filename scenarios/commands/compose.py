"""``frogtorch compose``: a topology becomes compose.yaml."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.topology import load
from scenarios.commands import command

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    composing = command(commands, "compose", _compose, "print a compose.yaml of a topology (at most twelve hosts)",
                        "example:\n  frogtorch compose topologies/seattle-newyork.yaml > compose.yaml")
    composing.add_argument("topology", type=Path, help="a topology, as YAML (topologies/*.yaml of this checkout: the "
                                                       "image holds a copy of them)")


def _compose(options: argparse.Namespace) -> int:
    from scenarios.compose_file import compose

    print(compose(load(options.topology)), end="")
    return 0
