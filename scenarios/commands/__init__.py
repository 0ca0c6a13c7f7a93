"""The commands, one file each: every module's ``add`` gives the parser a command, which ends in a function of its own.

A command's function takes the parsed options and returns the exit status; an error that explains itself is a
ValueError, OSError or RuntimeError, which the command line prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console

from emulator.hosts.runtime import RUNTIMES
from emulator.links.engines import ENGINES
from emulator.units import parse_size

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def command(commands: Commands, name: str, act: Callable[[argparse.Namespace], int], text: str,
            epilog: str | None = None) -> argparse.ArgumentParser:
    """Add a command that `act` carries out, with `text` as its help, in lower case and without a full stop."""
    added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=epilog,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    added.set_defaults(command=act)
    return added


def link_options(of: argparse.ArgumentParser) -> None:
    """Add the options of a command that makes links."""
    of.add_argument("--runtime", choices=RUNTIMES, default=RUNTIMES[0],
                    help="what hosts are: network namespaces or Docker containers (default: %(default)s)")
    of.add_argument("--engine", choices=("auto", *ENGINES), default="auto",
                    help="what holds packets for a path's delay (default: the first of these that this "
                         "machine has)")


def console(width: int = 100) -> Console:
    """For results: as wide as the terminal, or as the tables want in a pipe."""
    return Console(width=None if sys.stdout.isatty() else width)


def tensor_size(text: str) -> int:
    """Bytes of an fp32 tensor, as an option gives them; argparse prints what is wrong with it."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size % 4:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of fp32 elements of 4 bytes")
    return size
