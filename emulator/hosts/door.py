"""A container as links see it, from outside: through the door that its doorkeeper serves."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as File
from socket import SocketKind
from socket import socket as Socket  # noqa: N812, as Door has a method of that name
from typing import IO, Any

from emulator.hosts import doorkeeper
from emulator.links.namespace import LinkError, Namespace, Program, shared

_PATIENCE = 60.0      # seconds for an answer


class Door(Namespace):
    """The host behind the Unix socket `door`. `gate` is as for a namespace: nothing is done without it."""

    def __init__(self, name: str, door: File, gate: File) -> None:
        super().__init__(name, gate)
        self.door = door
        self._connection: Socket | None = None
        self._alone = threading.Lock()

    def knock(self) -> bool:
        """Whether somebody serves the door."""
        try:
            self._connect().close()
        except OSError:
            return False
        return True

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Not possible: nobody enters a container, its doorkeeper does what is asked."""
        raise LinkError(f"{self.name} is a container, which this process cannot enter")
        yield

    def enter(self) -> None:
        """Not possible either."""
        with self.inside():
            pass

    def run(self, command: Sequence[str], text: str = "") -> str:
        """Run a command in the container, as root; returns its output. Raises LinkError with its own words."""
        with shared(self.gate):
            done, _ = self._ask({"do": "run", "command": list(command), "text": text})
        if done["code"]:
            said = (done["err"] or done["out"]).strip()
            at = said.rpartition("Command failed -:")[2]
            line = f" ({text.splitlines()[int(at) - 1]})" if at.isdigit() else ""
            raise LinkError(f"{self.name}: {' '.join(command)}: {said}{line}")
        return str(done["out"])

    def socket(self, kind: SocketKind) -> Socket:
        """A new IPv4 socket of the container's network. Raises LinkError."""
        _, (descriptor,) = self._ask({"do": "socket", "kind": kind})
        return Socket(socket.AF_INET, kind, fileno=descriptor)

    def start(self, module: str, *arguments: str, errors: IO[bytes] | int | None = None) -> Program:
        """Start a module that needs the standard library alone, as root, joined by pipes. Raises LinkError."""
        return self._start({"do": "start", "module": module, "arguments": arguments}, errors)

    def spawn(self, command: Sequence[str]) -> Program:
        """Start a program as a user without capabilities, joined by pipes; its errors are ours. Raises LinkError."""
        return self._start({"do": "spawn", "command": list(command)}, None)

    def stay(self) -> None:
        """Have the container end when this door is closed, or this process ends. Raises LinkError or OSError."""
        self._ask({"do": "stay"})

    def close(self) -> None:
        """Leave. Programs that were started go on; twice is fine."""
        with self._alone:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _start(self, message: dict[str, Any], errors: IO[bytes] | int | None) -> Program:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        stderr = errors if isinstance(errors, int) else (errors or sys.stderr).fileno()
        connection = self._connect()
        try:
            answer, _ = self._converse(connection, message, (theirs_in, theirs_out, stderr))
        except BaseException:
            connection.close()
            os.close(ours_in)
            os.close(ours_out)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return _Started(answer["pid"], connection, os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb"))

    def _ask(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        with self._alone:      # the links may change while they are probed
            if self._connection is None:
                self._connection = self._connect()
            return self._converse(self._connection, message)

    def _connect(self) -> Socket:
        connection = Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(str(self.door))
        except OSError:
            connection.close()
            raise
        return connection

    def _converse(self, connection: Socket, message: dict[str, Any],
                  descriptors: tuple[int, ...] = ()) -> tuple[dict[str, Any], list[int]]:
        try:
            doorkeeper.send(connection, message, descriptors)
            answer, received = doorkeeper.receive(connection)
        except (OSError, EOFError) as error:
            raise LinkError(f"{self.name}: the container does not answer ({error or 'it has closed its door'}); is its "
                            "network up?") from error
        if "error" in answer:
            raise LinkError(f"{self.name}: {answer['error']}")
        return answer, received


class _Started:
    """A program in a container; it is killed when its connection is closed, by whatever end of ours."""

    def __init__(self, pid: int, connection: Socket, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._connection = connection
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code. Raises subprocess.TimeoutExpired."""
        if self._code is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            try:
                self._code = int(doorkeeper.receive(self._connection)[0]["code"])
            except (OSError, EOFError):      # its container is gone
                self._code = -signal.SIGKILL
            self._connection.close()
        return self._code

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            self._connection.close()
            self._code = -signal.SIGKILL


def await_doors(doors: Sequence[Door], seconds: float) -> Door | None:
    """Wait until all doors are served; returns one that is not after so many seconds."""
    deadline = time.monotonic() + seconds
    for door in doors:
        while not door.knock():
            if time.monotonic() > deadline:
                return door
            time.sleep(0.02)
    return None
