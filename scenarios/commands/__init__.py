"""The commands, one file each: every module's ``add`` gives the parser a command, which ends in a function of its own.

A command's function takes the parsed options and returns the exit status; an error that explains itself is a
ValueError, OSError or RuntimeError, which the command line prints.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from emulator.hosts.runtime import EXTERNAL, RUNTIMES
from emulator.links.engines import ENGINES
from emulator.probe.meet import SECRET, Place, place
from scenarios.scenario_file import FASTEST, parse_tensor

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def command(commands: Commands, name: str, act: Callable[[argparse.Namespace], int], text: str,
            epilog: str | None = None) -> argparse.ArgumentParser:
    """Add a command that `act` carries out, with `text` as its help, in lower case and without a full stop."""
    added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=epilog,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    added.set_defaults(command=act, given=lambda options, name: getattr(options, name) != added.get_default(name))
    return added


def refuse_ignored(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise ValueError if one of these options is given, which nothing would read; `why` follows its name."""
    for name in names:
        if options.given(options, name):
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def link_options(of: argparse.ArgumentParser, external: bool = False) -> None:
    """Add the options of a command that makes links; or, if hosts may be `external` too, finds them."""
    more = ", or machines of yours with the network that they have" if external else ""
    of.add_argument("--runtime", choices=(*RUNTIMES, *([EXTERNAL] if external else [])), default=RUNTIMES[0],
                    help=f"what hosts are: network namespaces or Docker containers{more} (default: %(default)s)")
    of.add_argument("--engine", choices=("auto", *ENGINES), default="auto",
                    help="what holds packets for a path's delay (default: the first of these that this "
                         "machine has)")


MACHINE = ("rank", "world", "master", "name", "address", "secret_file")
"""The options of the next function."""


def machine_options(of: argparse.ArgumentParser) -> None:
    """Add the options of a command that is started on each of the user's machines."""
    machines = of.add_argument_group("machines of your own")
    machines.add_argument("--rank", type=int, help="this machine's number, from 0 (default: RANK)")
    machines.add_argument("--world", type=int, metavar="N", help="how many machines take part (default: WORLD_SIZE)")
    machines.add_argument("--master", metavar="HOST:PORT",
                          help="where rank 0 is reached (default: MASTER_ADDR, and the port after MASTER_PORT, which "
                               "torchrun itself holds)")
    machines.add_argument("--name", help="this machine's name in the topology (default: its host name)")
    machines.add_argument("--address", help="the address by which the other machines reach this one (default: the one "
                                            "that it reaches rank 0 from)")
    machines.add_argument("--secret-file", type=Path, metavar="FILE",
                          help=f"a file with the secret that all know (default: the variable {SECRET})")


def place_of(options: argparse.Namespace) -> Place:
    """Which machine this is, by those options and torchrun's environment. Raises ValueError."""
    return place(options.rank, options.world, options.master, options.name, options.address, options.secret_file)


def console(width: int = 100) -> Console:
    """For results: as wide as the terminal, or as the tables want in a pipe."""
    return Console(width=None if sys.stdout.isatty() else width)


def speedup(text: str) -> float:
    """A speed-up, as an option gives it; argparse prints what is wrong with it."""
    try:
        k = float(text)
    except ValueError:
        k = math.nan
    if not 1 <= k <= FASTEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no speed-up: write a number from 1 to {FASTEST}")
    return k


def tensor_size(text: str) -> int:
    """Bytes of an fp32 tensor, as an option gives them; argparse prints what is wrong with it."""
    try:
        return parse_tensor(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
