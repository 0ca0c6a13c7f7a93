"""A network namespace as links see it: commands run in it, sockets opened in it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as File
from typing import IO, Protocol

CLONE_NEWNET = 0x40000000
NAMED = File("/run/netns")
"""Where ``ip netns`` keeps the names (ip-netns(8))."""

ROOT = File(__file__).parents[2]
"""Of this checkout."""
PLAIN = ("-S", "-s", "-P")
"""Options of a Python that has the standard library and its PYTHONPATH alone."""

_libc = ctypes.CDLL(None, use_errno=True)


class LinkError(RuntimeError):
    """The kernel or a tool refused to make a link as described; the message says which, where and why."""


def move_into(descriptor: int) -> None:
    """Move the calling thread into the network namespace that `descriptor` refers to (setns(2)).

    Raises OSError.
    """
    if _libc.setns(descriptor, CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


@contextmanager
def _away() -> Iterator[None]:
    """Come back to the present namespace at the end, whatever happens."""
    home = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        move_into(home)
        os.close(home)


@contextmanager
def scratch() -> Iterator[Namespace]:
    """Be in a network namespace that nobody else has, and that is gone afterwards: the place to try things."""
    with _away():
        if _libc.unshare(CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"unshare: {os.strerror(code)}")
        yield _Here()


def run(command: Sequence[str], text: str = "", lock: int | None = None) -> str:
    """Run `command` with `text` on its standard input, in the namespace of the calling thread; returns its output.

    `lock` is a descriptor that the command keeps open until it ends. Raises LinkError with the command's own words,
    and the line of a batch that they are about.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False,
                          pass_fds=() if lock is None else (lock,))
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        at = said.rpartition("Command failed -:")[2]
        line = f" ({text.splitlines()[int(at) - 1]})" if at.isdigit() else ""
        raise LinkError(f"{' '.join(command)}: {said}{line}")
    return done.stdout


class Program(Protocol):
    """A program on a host, joined by pipes outside the shaped links; :class:`subprocess.Popen` is one."""

    pid: int

    @property
    def stdin(self) -> IO[bytes] | None:
        """What the program reads."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """What it writes."""

    def poll(self) -> int | None:
        """Its exit code, negative if a signal ended it; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """End it at once; nothing happens if it has ended."""


class Namespace:
    """A named network namespace (``ip netns``), and what links need of one: :meth:`run`, :meth:`socket`, :meth:`start`.

    Hosts that are not a namespace of this process's to enter, as a container, offer these three as well: so links
    should ask for no more.

    `gate` is a file that exists while the namespace may be changed. Every command holds a shared lock on it until it
    ends, also when its starter was killed: who takes the exclusive lock knows that nothing is being made any more.
    """

    def __init__(self, name: str, gate: File) -> None:
        self.name = name
        self.gate = gate

    @property
    def file(self) -> File:
        """The file that names the namespace."""
        return NAMED / self.name

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be in the namespace: sockets opened and programs started here stay in it. Raises LinkError if it is gone."""
        with _away():
            self.enter()
            yield

    def enter(self) -> None:
        """Move the calling thread in for good. Raises LinkError if the namespace is gone, or without privilege."""
        try:
            descriptor = os.open(self.file, os.O_RDONLY)
        except FileNotFoundError:
            raise LinkError(f"network namespace {self.name} does not exist; is its network up?") from None
        try:
            move_into(descriptor)
        except OSError as error:
            hint = " (needs root)" if error.errno == errno.EPERM else ""
            raise LinkError(f"cannot enter network namespace {self.name}: {error.strerror}{hint}") from error
        finally:
            os.close(descriptor)

    def run(self, command: Sequence[str], text: str = "") -> str:
        """Run a command in the namespace; see :func:`run`."""
        with self.inside(), shared(self.gate) as lock:
            return run(command, text, lock)

    def socket(self, kind: socket.SocketKind) -> socket.socket:
        """A new IPv4 socket; it stays in the namespace, whoever binds, connects or uses it."""
        with self.inside():
            return socket.socket(socket.AF_INET, kind)

    def start(self, module: str, *arguments: str, errors: IO[bytes] | int | None = None) -> Program:
        """Start a module that needs the standard library alone (``emulator.links.delayd``), joined by pipes.

        After `arguments` it is told its parent's process number, as os.getppid has it. It starts in some 30 ms: no
        site-packages and no environment. `errors` takes its standard error.
        """
        command = [sys.executable, *PLAIN, "-m", module, *arguments, str(os.getpid())]
        with self.inside():
            return subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, stderr=errors)

    def ip(self, batch: Sequence[str]) -> None:
        """Do the lines of `batch` with one ``ip -batch``."""
        self.run(["ip", "-batch", "-"], "\n".join(batch) + "\n")

    def tc(self, batch: Sequence[str]) -> None:
        """Do the lines of `batch` with one ``tc -batch``."""
        if batch:
            self.run(["tc", "-batch", "-"], "\n".join(batch) + "\n")

    def sysctl(self, settings: dict[str, str]) -> None:
        """Write kernel settings, such as ``{"net.ipv4.tcp_sack": "1"}``; one that this kernel lacks is an error."""
        with self.inside(), shared(self.gate):
            for key, value in settings.items():
                try:
                    File("/proc/sys", *key.split(".")).write_text(value)
                except OSError as error:
                    raise LinkError(f"{self.name}: cannot set {key}={value}: {error.strerror}") from error


def here() -> Namespace:
    """The namespace that the calling thread is in, to try things where that is one that nobody else needs."""
    return _Here()


class _Here(Namespace):
    """The one that the calling thread is in."""

    def __init__(self) -> None:
        super().__init__("a trial", File(os.devnull))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be where one is."""
        yield


@contextmanager
def shared(gate: File) -> Iterator[int]:
    """Hold a shared lock on `gate`; raises LinkError if it is gone, which means that the run was taken down."""
    try:
        lock = os.open(gate, os.O_RDONLY)
    except FileNotFoundError:
        raise LinkError(f"{gate.parent.name}: this network has been taken down") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink == 0:      # removed while we waited for the lock
            raise LinkError(f"{gate.parent.name}: this network has been taken down")
        yield lock
    finally:
        os.close(lock)
