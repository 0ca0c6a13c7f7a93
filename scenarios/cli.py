"""The command line of the testbed: what is common to its commands (:mod:`scenarios.commands`)."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scenarios.commands import (
    bench,
    calibrate,
    compose,
    doctor,
    down,
    heldout,
    links,
    probe,
    ps,
    report,
    rule,
    run,
    scale,
    together,
    topology,
)

COMMANDS = (run, report, together, calibrate, heldout, bench, topology, links, probe, rule, scale, compose, doctor, ps,
            down)
"""In the order of the help."""

_DESCRIPTION = """\
How long does a PyTorch training step take on a network, with a way of exchanging gradients, and why? Predicted by a
simulator, and measured on real packets over links shaped to the same description, side by side."""

_EPILOG = """\
examples:
  frogtorch topology show topologies/seattle-newyork.yaml     what the network is
  frogtorch predict scenarios/quick.yaml                      a second; touches nothing
  sudo frogtorch compare scenarios/quick.yaml                 predict, measure, and show both
  frogtorch report runs/quick-20260102-030405                 the tables and figures of a run, again
  frogtorch measure --resume runs/quick-20260102-030405       go on with a run that was ended
  frogtorch compare runs/quick-20260102-030405 runs/quick-20260103-040506     what changed between two runs
  frogtorch bench --world 2 --sizes 4B 1MiB                   the backend beside gloo on loopback; needs no root
  sudo frogtorch probe --topology topologies/lan.yaml         what limits each path, as if it were not known
  sudo frogtorch down                                         remove what a killed run left

Measuring makes network namespaces: as root, or as a user who may make them (frogtorch doctor says); nothing outside
them is touched."""

_INTERRUPTED = ("the network is gone, what was measured is kept in the run directory: `frogtorch report` shows it, "
                "`frogtorch measure --resume` goes on")

_FULL = ("free some space; a run that was being measured goes on with `frogtorch measure --resume RUN`, all else is "
         "done by giving the command again")
_MENDS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "nothing can be written there: name a directory elsewhere, or a copy of this one",
    errno.EACCES: "give the command as whom the file belongs to, or name another file",
    errno.ENOTDIR: "a part of this path is a file, and no directory: name another path",
}
"""What to do about what the system refuses."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0: well, 1: an error that was explained, or a run that failed, 130: interrupted."""
    options = _parser().parse_args(arguments)
    for ending in (signal.SIGTERM, signal.SIGHUP):  # a terminated run cleans up as an interrupted one does
        signal.signal(ending, _interrupt)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return _for_the_caller(command, options)
    except KeyboardInterrupt:
        print(f"frogtorch: interrupted; {getattr(options, 'interrupted', _INTERRUPTED)}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, RuntimeError) as error:
        print(f"frogtorch: {_explained(error, options)}", file=sys.stderr)
        return 1


def _explained(error: Exception, options: argparse.Namespace) -> str:
    """An error in words; of one that the system has raised, the file, if it is known, and what to do about it."""
    code = error.errno if isinstance(error, OSError) else None
    if not isinstance(error, OSError) or code is None or error.strerror != os.strerror(code):
        return str(error)
    mend = f"; {_MENDS[code]}" if code in _MENDS else ""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}{mend}"
    if _MENDS.get(code) != _FULL:
        return str(error)
    # Python does not say of a write which file's it was.
    directory = getattr(options, "directory", None)
    return error.strerror + (f" (run directory: {directory})" if directory else "") + mend


def _for_the_caller(command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command; under sudo, what it writes belongs to who called sudo, who may want to report on it without."""
    try:
        return command(options)
    finally:
        owner = os.environ.get("SUDO_UID")
        directory = getattr(options, "directory", None)
        if owner and os.geteuid() == 0 and directory is not None and directory.exists():
            user, group = int(owner), int(os.environ.get("SUDO_GID", "-1"))
            default = [directory.parent] if directory.parent == Path("runs") else []
            for path in (*default, directory, *directory.rglob("*")):
                os.chown(path, user, group, follow_symlinks=False)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="frogtorch", description=_DESCRIPTION, epilog=_EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add(commands)
    return parser
