"""What a run owns, written down before it is made, so that it can be taken away after any end of its maker.

``/run/frogtorch/<run>/`` belongs to one run (an ordinary user, who may have containers, has a directory of the user's
own); making it is what claims the name. It holds ``ledger.json``, logs, ``maker``, on which the maker holds a lock as
long as it lives, and ``gate``: who makes something holds a shared lock on it meanwhile
(:mod:`emulator.links.namespace`), who takes the run away waits for the exclusive lock and then removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as File

from emulator.links.namespace import NAMED, LinkError, run

ROOM = File("/run/frogtorch") if os.geteuid() == 0 else \
    File(os.environ.get("XDG_RUNTIME_DIR", "/tmp"), f"frogtorch-{os.geteuid()}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_PATIENCE = 10.0      # seconds for killed processes to be gone


class Ledger:
    """The directory of one run."""

    def __init__(self, run_name: str) -> None:
        if not _NAME.fullmatch(run_name):
            raise ValueError(f"{run_name!r} is no name for a run: up to 40 of a-z, 0-9 and -, with no - at either end")
        self.run = run_name
        self.room = ROOM / run_name
        self.gate = self.room / "gate"
        self._file = self.room / "ledger.json"
        self._maker: int | None = None

    def open(self, namespaces: Sequence[str], runtime: str = "netns") -> None:
        """Claim the run for a runtime, and write down the namespaces that it will make.

        Raises LinkError if the run is up already, or a namespace of such a name exists that is not in any ledger.
        """
        ROOM.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        try:
            self.room.mkdir()
        except FileExistsError:
            raise LinkError(f"run {self.run} is up already; take it down first (frogtorch down {self.run}), or "
                            "choose another name") from None
        foreign = [name for name in namespaces if (NAMED / name).exists()]
        if foreign:
            self.room.rmdir()
            raise LinkError(f"network namespace {foreign[0]} exists, and was not made by FrogTorch; remove it "
                            f"(ip netns del {foreign[0]}) or name the run otherwise")
        self._maker = os.open(self.room / "maker", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._maker, fcntl.LOCK_EX)
        self.gate.touch()
        # Renamed into place: a ledger is whole or absent, and absent means that nothing was made.
        draft = self.room / "ledger.draft"
        draft.write_text(json.dumps({"runtime": runtime, "namespaces": list(namespaces)}))
        draft.rename(self._file)

    def clear(self, others: Callable[[], list[str]] = list) -> list[str]:
        """Take away all that the run owns, in the order that leaves nothing behind; says what was removed.

        `others` takes away what is not in the ledger, when nothing more can be made, and says what it was.

        Safe to call at any time, by anybody, twice. Raises LinkError if a process survives being killed.
        """
        if self._maker is not None:
            os.close(self._maker)
            self._maker = None
        if not self.room.exists():
            return []
        with _alone(), self._closed():
            if not self.room.exists():      # another has just cleared it
                return []
            removed = others()
            here = [name for name in self.namespaces if (NAMED / name).exists()]
            removed += [f"process {pid} in {name}" for name in here for pid in _kill(name)]
            if here:
                run(["ip", "-batch", "-"], "".join(f"netns del {name}\n" for name in here))
            removed += [f"namespace {name}" for name in here]
            shutil.rmtree(self.room)
        return removed

    @property
    def namespaces(self) -> list[str]:
        """What was written down."""
        return list(json.loads(self._file.read_text())["namespaces"]) if self._file.exists() else []

    @property
    def runtime(self) -> str | None:
        """What the run was claimed for; None if there is no such run, or it was ended while it was being claimed."""
        try:
            return str(json.loads(self._file.read_text())["runtime"])
        except FileNotFoundError:
            return None

    def in_use(self) -> bool:
        """Whether the process that made the run still lives. A kill, of whatever kind, ends its lock."""
        try:
            maker = os.open(self.room / "maker", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(maker, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(maker)
        return False

    @contextmanager
    def _closed(self) -> Iterator[None]:
        # A command of a killed maker may still be at work: the exclusive lock is ours when it has ended. From the
        # removal of the gate on nothing more can be made, even by a maker who lives.
        try:
            lock = os.open(self.gate, os.O_RDONLY)
        except FileNotFoundError:      # its maker was killed before there was a gate, or who cleared it after that
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.gate.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)


@contextmanager
def _alone() -> Iterator[None]:
    """One at a time may clear: a maker on its way down and a user's ``frogtorch down`` often come together."""
    room = os.open(ROOM, os.O_RDONLY)
    try:
        fcntl.flock(room, fcntl.LOCK_EX)
        yield
    finally:
        os.close(room)


def runs() -> list[str]:
    """Names of the runs that are up, or whose remains are still to be taken down."""
    return sorted(entry.name for entry in ROOM.iterdir()) if ROOM.exists() else []


def members(namespace: str) -> list[int]:
    """Processes with a thread in the network namespace of that name, without the calling process."""
    try:
        wanted = (NAMED / namespace).stat()
    except FileNotFoundError:
        return []
    return [pid for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
            if pid != os.getpid() and _lives_in(pid, wanted)]


def _lives_in(pid: int, wanted: os.stat_result) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:      # gone meanwhile
        return False
    for thread in threads:
        try:
            here = os.stat(f"/proc/{pid}/task/{thread}/ns/net")
        except OSError:
            continue
        if (here.st_ino, here.st_dev) == (wanted.st_ino, wanted.st_dev):
            return True
    return False


def _kill(namespace: str) -> list[int]:
    """Kill the processes of a namespace and wait for their end; again, as long as they leave children."""
    killed: list[int] = []
    wanted = (NAMED / namespace).stat()
    while pids := members(namespace):
        for pid in pids:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                # The number may have passed to another process before we held the handle; not afterwards.
                if not _lives_in(pid, wanted):
                    continue
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                if not select.select([handle], [], [], _PATIENCE)[0]:
                    raise LinkError(f"process {pid} in {namespace} does not end, though killed; look at it, then take "
                                    "the run down again")
                killed.append(pid)
            except ProcessLookupError:
                continue
            finally:
                os.close(handle)
    return killed
