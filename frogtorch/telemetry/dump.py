"""The ring on disk: when a collective has failed, on SIGUSR1, and at exit if asked.

A dump is three files of the settings' directory, each replaced as a whole by the next dump: ``rank<r>.jsonl`` (a line
that says whose it is, a line a group, then one a collective), ``rank<r>.trace.json`` and ``flight_<r>``, where r is the
global rank. It is written by a thread of its own, which neither the loop nor a caller ever waits for, and takes no lock
of theirs: what hangs can still be dumped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import pickle
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frogtorch.telemetry import chrome, flight
from frogtorch.telemetry.ring import RING

__all__ = ["Dumper", "after_failure", "configure"]

FAILURE = 0
"""What stands in the pipe for a failed collective; a signal is there by its number."""

STOP = 255

SETTLE = 0.05
"""Seconds from a failure to its dump: what one cause brings down has come down by then, and is in it."""

QUIET = 1.0
REST = 10
"""Least seconds between two dumps, and least multiple of what the last one took (a thousand collectives of four ranks:
0.2 to 0.5 s): a script that tries again and again is not slowed down by them."""

_log = logging.getLogger("frogtorch")


class Dumper:
    """Writes the ring to a directory, for the process with the global rank `rank`."""

    def __init__(self, directory: Path, rank: int, at_exit: bool) -> None:
        """Start the thread, and take over SIGUSR1 if that can be."""
        self.directory = directory
        self.rank = rank
        self.at_exit = at_exit
        # A pipe and not a threading.Event: a signal handler, also C's, may write to it, whatever it interrupted.
        self._heard, self._bell = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._bell, False)
        self._listening = select.poll()
        self._listening.register(self._heard, select.POLLIN)
        self._stopping = threading.Event()
        self._before: Any = None  # the handler of SIGUSR1 that was there
        self._handles = False
        self._wakes = False
        self._thread = threading.Thread(target=self._run, name="frogtorch-dump", daemon=True)
        self._thread.start()
        self._take_signal()

    def request(self, reason: int) -> None:
        """Have a dump written soon; waits for nothing and takes no lock."""
        with contextlib.suppress(OSError):  # the pipe is full of requests already; or we are a child, and have none
            os.write(self._bell, bytes([reason]))

    def close(self) -> None:
        """Stop the thread, and write what was asked for but has not been written, or is to be at exit."""
        self._stopping.set()
        self.request(STOP)
        self._thread.join()
        self._give_signal_back()
        reasons = self._requests()
        if self.at_exit:
            self._write("exit")
        elif reasons:
            self._write(reasons)
        # The pipe stays open: the process is at its end, and some thread may be about to ring.

    def after_fork(self) -> None:
        """In a forked child: the signal, and the pipe, are the parent's."""
        self._give_signal_back()
        os.close(self._heard)
        os.close(self._bell)
        self._bell = -1

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._listening.poll()
            if self._stopping.is_set():
                return  # what else is in the pipe is for close()
            reasons = self._requests()
            if reasons:
                self._stopping.wait(SETTLE)
                self._requests()  # they are in it too
                begin = time.monotonic()
                self._write(reasons)
                self._stopping.wait(max(QUIET, REST * (time.monotonic() - begin)))

    def _requests(self) -> str:
        """What the pipe holds, in words; empty if nothing of it asks for a dump."""
        asked: set[int] = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                asked.update(os.read(self._heard, 4096))
        words = {FAILURE: "failure", int(signal.SIGUSR1): "SIGUSR1"}
        return ", ".join(word for byte, word in words.items() if byte in asked)

    # Files ----------------------------------------------------------------------------------------------------

    def _write(self, reason: str) -> None:
        now = time.monotonic()
        records = RING.records()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._replace(f"rank{self.rank}.jsonl", lambda: self._lines(records, reason))
            self._replace(f"rank{self.rank}.trace.json",
                          lambda: json.dumps(chrome.trace(records, self.rank, now)).encode())
            # Plain numbers, texts, lists and dicts: no class of anybody's. We never read one.
            self._replace(f"flight_{self.rank}", lambda: pickle.dumps(flight.trace(records), protocol=2))
        except Exception as error:  # nothing that goes wrong here is worth a collective
            _log.warning("rank %d could not dump its last collectives to %s: %s", self.rank, self.directory, error,
                         exc_info=not isinstance(error, OSError))

    def _replace(self, name: str, content: Callable[[], bytes]) -> None:
        """Write a file that is there as a whole or not at all."""
        part = self.directory / f".rank{self.rank}.part"  # no name that an analyzer would take for a dump
        try:
            part.write_bytes(content())
            part.replace(self.directory / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _lines(self, records: list[Any], reason: str) -> bytes:
        head = {"schema": 1, "dump": reason, "time_ns": time.time_ns(), "global_rank": self.rank,
                "host": socket.gethostname(), "pid": os.getpid()}
        groups = {record.info.space: record.info.as_dict() for record in records if record.info is not None}
        lines = [head, *groups.values(), *(record.as_dict() for record in records)]
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    # The signal -----------------------------------------------------------------------------------------------

    def _take_signal(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            _log.warning("SIGUSR1 will not dump collectives: Python takes signal handlers from the main thread alone, "
                         "and this process made its first group on the thread %s", threading.current_thread().name)
            return
        before = signal.getsignal(signal.SIGUSR1)
        if before is None or not _is_pythons(signal.SIGUSR1):
            _log.warning("SIGUSR1 will not dump collectives: it has a handler that is not Python's, and is left to it "
                         "(faulthandler.register with chain=True, after the first group is made, goes with ours)")
            return
        self._before = before
        signal.signal(signal.SIGUSR1, self._on_signal)
        self._handles = True
        # A Python handler waits until the main thread is back in Python, which it is not while DDP waits in C++ for
        # the very collective that hangs. C's own handler writes to this descriptor at once, if nobody else has it.
        other = signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        self._wakes = other == -1
        if not self._wakes:
            signal.set_wakeup_fd(other)

    def _on_signal(self, number: int, frame: Any) -> None:
        self.request(number)
        if callable(self._before):
            self._before(number, frame)

    def _give_signal_back(self) -> None:
        if not self._handles or threading.current_thread() is not threading.main_thread():
            return
        if self._wakes:
            now = signal.set_wakeup_fd(-1)
            if now not in (-1, self._bell):
                signal.set_wakeup_fd(now)
        if signal.getsignal(signal.SIGUSR1) == self._on_signal:
            signal.signal(signal.SIGUSR1, self._before)


def _is_pythons(number: int) -> bool:
    """Whether the handler of a signal is what Python thinks it is; faulthandler, for one, goes past it.

    Asked of sigaction(2): on Linux, the first word of its struct is the handler, 0 and 1 being SIG_DFL and SIG_IGN.
    """
    current = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).sigaction(int(number), None, current)
    handler = ctypes.c_void_p.from_buffer(current).value or 0
    return callable(signal.getsignal(number)) or handler in (0, 1)


_dumper: Dumper | None = None


def configure(directory: Path, rank: int, at_exit: bool) -> Callable[[], None]:
    """Dump the process's ring to `directory` from now on; return what has to be called at its end.

    Raises ValueError if it dumps to another directory already.
    """
    global _dumper
    if _dumper is None:
        _dumper = Dumper(directory, rank, at_exit)
    elif _dumper.directory != directory:
        raise ValueError(f"dump (FROGTORCH_DUMP) is {directory}, but this process dumps the collectives of all its "
                         f"groups to {_dumper.directory} already")
    _dumper.at_exit |= at_exit
    return _close


def after_failure() -> None:
    """A collective has failed: dump, if there is where to."""
    if _dumper is not None:
        _dumper.request(FAILURE)


def _close() -> None:
    global _dumper
    one, _dumper = _dumper, None
    if one is not None:
        one.close()


def _in_child() -> None:
    global _dumper
    RING.clear()
    one, _dumper = _dumper, None
    if one is not None:
        one.after_fork()


os.register_at_fork(after_in_child=_in_child)
