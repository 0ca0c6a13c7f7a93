"""Traffic of others: the two programs at the ends of one TCP connection. They need the standard library alone.

``python -m scenarios.traffic receive ADDRESS`` prints the port it listens at, takes one connection, and prints
``{"received": bytes}`` when that, or its own input, has ended.

``python -m scenarios.traffic send ADDRESS PORT PACE`` waits for a line with two times on the monotonic clock, connects
at the first, sends until the second or until its input is closed, and prints ``{"began": ..., "ended": ...}``; both are
None if it never got through. PACE is bytes of payload per second, 0: as much as TCP gets.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time

_SO_MAX_PACING_RATE = 47
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: what is still to be sent at the end is not sent
_CHUNK = bytes(1 << 16)


def receive(address: str) -> int:
    """Listen, say where, and count the payload of one connection."""
    with socket.create_server((address, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        if not _readable(listener):
            return 0
        connection, _ = listener.accept()
    received = 0
    with connection:
        try:
            while _readable(connection) and (count := len(connection.recv(1 << 20))):
                received += count
        except ConnectionResetError:
            pass  # so a sender ends
    return received


def send(address: str, port: int, pace: int) -> dict[str, float | None]:
    """Send from one time to another; says when it began and ended."""
    began = None
    start, end = map(float, sys.stdin.readline().split())
    if not _closed(start - time.monotonic()):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            if pace:
                # TCP paces it by itself, packet by packet; it counts payload.
                connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, pace)
            connection.settimeout(max(1e-3, end - time.monotonic()))
            try:
                connection.connect((address, port))
            except TimeoutError:
                return {"began": None, "ended": None}
            connection.setblocking(False)
            began = time.monotonic()
            while (left := end - time.monotonic()) > 0:
                ready, writable, _ = select.select([sys.stdin], [connection], [], left)
                if ready:
                    break
                if writable:
                    connection.send(_CHUNK)
    return {"began": began, "ended": began and time.monotonic()}


def _readable(of: socket.socket) -> bool:
    """Wait for something to read there, or for standard input to be closed; True says the former."""
    ready, _, _ = select.select([of, sys.stdin], [], [])
    return of in ready


def _closed(seconds: float) -> bool:
    """Wait that long, or for standard input to be closed; True says the latter."""
    ready, _, _ = select.select([sys.stdin], [], [], max(0.0, seconds))
    return bool(ready)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        print(json.dumps({"received": receive(sys.argv[2])}), flush=True)
    else:
        print(json.dumps(send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))), flush=True)
