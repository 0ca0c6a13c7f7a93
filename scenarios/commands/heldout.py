"""``frogtorch heldout``: networks and scenarios that nobody has tuned to, drawn from a seed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios import heldout, hidden
from scenarios.commands import command

if TYPE_CHECKING:
    from scenarios.commands import Commands

MOST = 1000
_EPILOG = """\
example, the score that counts:
  frogtorch heldout --output heldout
  for n in 1 2 3 4; do
    sudo frogtorch compare heldout/heldout-$n.yaml --calibrate --output runs/heldout-$n
  done
  frogtorch together runs/heldout-*"""


def add(commands: Commands) -> None:
    """Add the command."""
    drawing = command(commands, "heldout", _heldout,
                      "write scenarios on networks drawn from the commit's hash, for predictions nobody has tuned",
                      _EPILOG)
    drawing.set_defaults(interrupted="nothing was written")
    drawing.add_argument("--seed", metavar="TEXT", help="what they are drawn from (default: the commit's hash)")
    drawing.add_argument("--worlds", type=int, default=4, metavar="N", help="how many (default: %(default)s)")
    drawing.add_argument("--output", type=Path, metavar="DIR",
                         help="a directory that must not exist yet (default: heldout-<the seed's start>)")


def _heldout(options: argparse.Namespace) -> int:
    if not 1 <= options.worlds <= MOST:
        raise ValueError(f"--worlds {options.worlds}: draw from 1 to {MOST}")
    seed = options.seed if options.seed is not None else hidden.commit()
    directory = options.directory = options.output or Path(f"heldout-{seed[:12]}")
    for scenario in heldout.write(directory, seed, options.worlds):
        print(scenario)
    return 0
