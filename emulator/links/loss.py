"""Which packets a path loses, counted on small datagrams that are sent more slowly than it could pass them."""

from __future__ import annotations

import selectors
import socket
import struct
import time

from emulator.ethernet import HEADERS
from emulator.links.flows import Hosts
from emulator.links.namespace import LinkError
from emulator.links.ping import undisturbed
from emulator.topology import Path

SIZE = 64                   # bytes of payload
_FASTEST = 15_000           # datagrams per second, so that no process on their way falls behind
_SHARE = 0.5                # of the path's rate
_LATE = 5e-3                # seconds of them that are sent at once, by one who was stopped: no queue is to overflow
_SO_RCVBUFFORCE = 33
_BUFFER = 64 << 20
_SILENCE = 1.0              # seconds beyond the path's delay, after which what is missing is lost


def lost(network: Hosts, path: Path, count: int) -> list[int]:
    """Numbers, from 0, of those of `count` datagrams that did not come through `path`, whose fields are as it is made.

    Raises LinkError if none came.
    """
    sender = network.namespaces[path.source].socket(socket.SOCK_DGRAM)
    receiver = network.namespaces[path.target].socket(socket.SOCK_DGRAM)
    missing = set(range(count))
    pace = _FASTEST if path.rate is None else min(_FASTEST, _SHARE * path.rate / (SIZE + HEADERS))
    with sender, receiver, undisturbed(), selectors.DefaultSelector() as selector:
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        receiver.bind((network.addresses[path.target], 0))
        receiver.setblocking(False)
        selector.register(receiver, selectors.EVENT_READ)
        begun = last = time.monotonic()
        sent = 0
        while missing and (now := time.monotonic()) < last + path.delay + _SILENCE:
            begun += max(0.0, now - begun - sent / pace - _LATE)
            for number in range(sent, min(count, int((now - begun) * pace) + 1)):
                sender.sendto(struct.pack("!I", number).ljust(SIZE), receiver.getsockname())
                sent, last = number + 1, now
            if selector.select(1 / pace if sent < count else path.delay + _SILENCE):
                try:
                    while True:
                        missing.discard(struct.unpack_from("!I", receiver.recv(SIZE))[0])
                except BlockingIOError:
                    pass
    if len(missing) == count:
        raise LinkError(f"{path.source} -> {path.target}: none of {count} datagrams came through")
    return sorted(missing)
