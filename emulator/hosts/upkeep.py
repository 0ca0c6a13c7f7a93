"""What is up on this machine, in any runtime, and its end."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.hosts import ledger
from emulator.hosts.ledger import Ledger
from emulator.links.namespace import NAMED, LinkError


@dataclass(frozen=True)
class Up:
    """A run of which something is up."""

    run: str
    runtime: str
    in_use: bool
    """Whether the process that made it lives."""
    things: tuple[str, ...]
    """Namespaces, containers and networks, in words."""


def up() -> list[Up]:
    """All runs of which something is up, by name."""
    docker = _docker()
    found = []
    for run in sorted({*ledger.runs(), *docker}):
        room = Ledger(run)
        names = [f"namespace {name}" for name in room.namespaces if (NAMED / name).exists()]
        found.append(Up(run, room.runtime or ("docker" if run in docker else "none"), room.in_use(),
                        (*names, *docker.get(run, ()))))
    return found


def down(run: str | None = None) -> list[str]:
    """Take away what a run owns, in whatever runtime: processes, namespaces, containers, networks.

    Without a name, what all runs have left whose makers are gone; one that is in use must be named. Returns what was
    removed, in words. A run that is not up is no error. Raises ValueError for an impossible name, and LinkError if it
    is Docker's and its daemon does not answer.
    """
    if run is not None:
        return _clear(Ledger(run))
    done = []
    for left in up():
        done += [f"run {left.run} is in use and was left alone (to end it: frogtorch down {left.run})"] \
            if left.in_use else _clear(Ledger(left.run))
    return done


def _clear(room: Ledger) -> list[str]:
    if room.runtime == "docker" or room.run in _docker():
        from emulator.hosts import containers

        return containers.down(room.run)
    return room.clear()


def _docker() -> dict[str, list[str]]:
    """What runs have in Docker; nothing if there is no Docker, unless a run says that it is there."""
    try:
        from emulator.hosts import containers

        return containers.owned()
    except (ImportError, LinkError):
        if any(Ledger(run).runtime == "docker" for run in ledger.runs()):
            raise
        return {}
