"""In a container: does for whoever may open its door, a Unix socket, what links need of a host.

The door is how a container becomes a host: the runner, outside, has commands run in the container's network namespace,
sockets opened and programs started there, and the container needs no more than NET_ADMIN for it. Nothing of this
crosses the shaped links. The standard library alone, as it should be there at once.

A message is 4 bytes of length and that much JSON; descriptors travel with the length (SCM_RIGHTS). What is asked:

=======================================================  ===========================================================
``{"do": "run", "command": [...], "text": "..."}``       run a command to its end: ``{"code", "out", "err"}``
``{"do": "socket", "kind": 1}``                          open an IPv4 socket: ``{}``, and the descriptor
``{"do": "start", "module": "...", "arguments": [...]}`` start a module, which needs the standard library alone, as root
``{"do": "spawn", "command": [...]}``                    start a program as :data:`RANK`, without capabilities
``{"do": "stay"}``                                       be here as long as the connection is, and no longer
=======================================================  ===========================================================

What is started has the three descriptors that came as its standard ones; ``{"pid"}`` says that it runs, ``{"code"}``
that it has ended. Whoever closes the connection ends it. What could not be done is answered by ``{"error": "..."}``.

Usage: ``python -m emulator.hosts.doorkeeper SOCKET [UID]``, UID being the user outside who may open the door.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path as File
from typing import Any

from emulator.links.namespace import PLAIN

RANK = 1000
"""The user, and the group, of a rank."""
MOST = 16 << 20
"""Bytes of the longest message."""
_AFTER = 3.0
"""Seconds that a container outlives who tied it, so that Compose sees the other's end, and exit code, first."""
_LENGTH = struct.Struct("!I")


def send(connection: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send a message. Raises OSError."""
    data = json.dumps(message).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(data))], descriptors)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors. Raises EOFError at the end, OSError, or ValueError for what is none."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    data = head + _exactly(connection, _LENGTH.size - len(head)) if head else b""
    if not data:
        raise EOFError
    length, = _LENGTH.unpack(data)
    if length > MOST:
        raise ValueError(f"a message of {length} bytes is too long")
    message = json.loads(_exactly(connection, length))
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return message, descriptors


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


class Doorkeeper:
    """Serves the door until told to end."""

    def __init__(self, door: File, owner: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.parent.mkdir(mode=0o700, exist_ok=True)
        door.unlink(missing_ok=True)
        before = os.umask(0o177)      # nobody else opens it, also not before it has its owner
        try:
            self._listener.bind(str(door))
        finally:
            os.umask(before)
        os.chown(door, owner, -1)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._programs: dict[socket.socket, subprocess.Popen[bytes]] = {}
        self._life: socket.socket | None = None

    def serve(self) -> None:
        """Do what is asked, for ever."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj)
                else:
                    self._ended(key.fd, key.data)

    def _hear(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        try:
            message, descriptors = receive(connection)
            try:
                self._do(connection, message, descriptors)
            except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                send(connection, {"error": f"{message.get('command', message)}: {error}"})
        except (EOFError, OSError, ValueError):
            self._close(connection)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _do(self, connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        match message["do"]:
            case "run":
                done = subprocess.run(message["command"], input=message["text"], capture_output=True, text=True,
                                      check=False)
                send(connection, {"code": done.returncode, "out": done.stdout, "err": done.stderr})
            case "socket":
                with socket.socket(socket.AF_INET, message["kind"]) as made:
                    send(connection, {}, (made.fileno(),))
            case "start":
                command = [sys.executable, *PLAIN, "-m", message["module"], *message["arguments"], str(os.getpid())]
                self._start(connection, subprocess.Popen(command, **_standard(descriptors)))
            case "spawn":
                self._start(connection, subprocess.Popen(
                    message["command"], **_standard(descriptors), user=RANK, group=RANK, extra_groups=[]))
            case "stay":
                self._life = connection
                send(connection, {})
            case other:
                raise ValueError(f"there is no {other!r}")

    def _start(self, connection: socket.socket, program: subprocess.Popen[bytes]) -> None:
        self._programs[connection] = program
        self._selector.register(os.pidfd_open(program.pid), selectors.EVENT_READ, connection)
        send(connection, {"pid": program.pid})

    def _ended(self, handle: int, connection: socket.socket) -> None:
        self._selector.unregister(handle)
        os.close(handle)
        program = self._programs.pop(connection, None)
        if program is not None:      # else it ended because its connection was closed
            try:
                send(connection, {"code": program.wait()})
            except OSError:
                self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        program = self._programs.pop(connection, None)
        if program is not None:
            program.kill()
            program.wait()
        connection.close()
        if connection is self._life:
            time.sleep(_AFTER)
            sys.exit()


def _standard(descriptors: list[int]) -> dict[str, Any]:
    stdin, stdout, stderr = descriptors
    return {"stdin": stdin, "stdout": stdout, "stderr": stderr}


def main() -> None:
    """Serve the door that the command line names."""
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, lambda *_: sys.exit())
    Doorkeeper(File(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0).serve()


if __name__ == "__main__":
    main()
