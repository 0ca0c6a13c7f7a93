"""Traffic of others: the two programs at its ends. They need the standard library alone.

``python -m scenarios.traffic receive ADDRESS CONNECTIONS`` prints the port it listens at, takes so many connections,
and prints ``{"received": bytes}`` when all of them, or its own input, have ended.

``python -m scenarios.traffic send ADDRESS PORT PACE CONNECTIONS`` waits for a line with two times on the monotonic
clock, connects at the first, sends until the second or until its input is closed, and prints ``{"began": ..., "ended":
...}``; both are None if it never got through. PACE is bytes of payload per second of all connections, 0: as much as TCP
gets.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from contextlib import ExitStack
from typing import Any

_SO_MAX_PACING_RATE = 47
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: what is still to be sent at the end is not sent
_CHUNK = bytes(1 << 16)


def receive(address: str, connections: int) -> int:
    """Listen, say where, and count the payload of so many connections."""
    received = 0
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((address, 0)))
        print(listener.getsockname()[1], flush=True)
        taken = 0
        reading: list[Any] = [listener]
        while reading:
            ready, _, _ = select.select([*reading, sys.stdin], [], [])
            if ready == [sys.stdin]:
                break
            for one in ready:
                if one is listener:
                    reading.append(stack.enter_context(listener.accept()[0]))
                    taken += 1
                    if taken == connections:
                        reading.remove(listener)
                elif one is not sys.stdin:
                    received += (count := _take(one))
                    if not count:
                        reading.remove(one)
    return received


def _take(connection: socket.socket) -> int:
    """Take what came, and say how many bytes; 0: it has ended."""
    try:
        return len(connection.recv(1 << 20))
    except ConnectionResetError:
        return 0  # so a sender ends


def send(address: str, port: int, pace: int, connections: int) -> dict[str, float | None]:
    """Send from one time to another; says when it began and ended."""
    began = None
    start, end = map(float, sys.stdin.readline().split())
    if not _closed(start - time.monotonic()):
        with ExitStack() as stack:
            sending = [stack.enter_context(socket.socket()) for _ in range(connections)]
            for one in sending:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
                if pace:
                    # TCP paces it by itself, packet by packet; it counts payload.
                    one.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, max(1, pace // connections))
                one.settimeout(max(1e-3, end - time.monotonic()))
                try:
                    one.connect((address, port))
                except TimeoutError:
                    return {"began": None, "ended": None}
                one.setblocking(False)
            began = time.monotonic()
            while (left := end - time.monotonic()) > 0:
                ready, writable, _ = select.select([sys.stdin], sending, [], left)
                if ready:
                    break
                for one in writable:
                    one.send(_CHUNK)
    return {"began": began, "ended": began and time.monotonic()}


def _closed(seconds: float) -> bool:
    """Wait that long, or for standard input to be closed; True says the latter."""
    ready, _, _ = select.select([sys.stdin], [], [], max(0.0, seconds))
    return bool(ready)


if __name__ == "__main__":
    what, address, *numbers = sys.argv[1:]
    if what == "receive":
        print(json.dumps({"received": receive(address, *map(int, numbers))}), flush=True)
    else:
        print(json.dumps(send(address, *map(int, numbers))), flush=True)
