"""TCP connections that send all they can, with one thread that plays all their ends, and the kernel's times of arrival.

The times are the kernel's so that a late reader on a busy machine does not make a slow link.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from emulator.links.namespace import LinkError, Namespace
from emulator.links.ping import undisturbed
from emulator.topology import Path

_SO_SNDBUFFORCE, _SO_TIMESTAMPNS = 32, 35
_TIMESPEC = struct.Struct("@ll")
_SEND_BUFFER = 2 << 20
_TCP_CA_OPEN = 0
_PATIENCE = 10.0             # seconds without a byte on any path


class Hosts(Protocol):
    """What flows need of a network."""

    @property
    def namespaces(self) -> Mapping[str, Namespace]:
        """By host."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """By host."""


class Flow:
    """One connection along `path`: bytes `received` so far, the last of which `arrived` when the day's clock said so.

    It rests once it is `done`.
    """

    def __init__(self, path: Path, network: Hosts) -> None:
        self.path = path
        self.received = 0
        self.arrived = 0.0
        self.done = False
        with network.namespaces[path.target].socket(socket.SOCK_STREAM) as listener:
            listener.bind((network.addresses[path.target], 0))
            listener.listen()
            self.sender = network.namespaces[path.source].socket(socket.SOCK_STREAM)
            self.sender.settimeout(_PATIENCE)
            self.sender.connect(listener.getsockname())
            self.receiver, _ = listener.accept()
        # A buffer that starts small would be empty by the time this process comes to fill it. Root of a user namespace
        # alone may not force it, and has it grow: set to what net.core.wmem_max allows, it could not.
        with suppress(PermissionError):
            self.sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
        self.receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.sender.setblocking(False)
        self.receiver.setblocking(False)

    @property
    def repairing(self) -> bool:
        """Whether a lost packet is missing: what came after it waits in the kernel, up to a whole queue, uncounted."""
        # tcp_info's second byte is the state, 0 when all is well.
        return self.sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 2)[1] != _TCP_CA_OPEN

    def receive(self, into: memoryview) -> None:
        """Take what came, up to ``len(into)``."""
        count, ancillary, _, _ = self.receiver.recvmsg_into([into], socket.CMSG_SPACE(_TIMESPEC.size))
        self.received += count
        if not ancillary:      # the kernel takes a moment to stamp what comes, once somebody has asked for it
            self.arrived = time.time()
            return
        seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
        self.arrived = seconds + nanoseconds * 1e-9

    def close(self) -> None:
        """Close both ends."""
        self.sender.close()
        self.receiver.close()


def pump(flows: Sequence[Flow]) -> Iterator[Flow]:
    """Keep the flows going until all are done; yields each of them whenever something came.

    Raises LinkError if nothing comes any more.
    """
    data, into = memoryview(bytes(1 << 18)), memoryview(bytearray(1 << 20))
    with undisturbed(), selectors.DefaultSelector() as selector:
        for flow in flows:
            selector.register(flow.sender, selectors.EVENT_WRITE, flow)
            selector.register(flow.receiver, selectors.EVENT_READ, flow)
        while selector.get_map():
            events = selector.select(_PATIENCE)
            if not events:
                stuck = next(flow.path for flow in flows if not flow.done)
                raise LinkError(f"{stuck.source} -> {stuck.target} passed nothing for {_PATIENCE:.0f} s")
            for key, event in events:
                flow = key.data
                if flow.done:
                    continue      # it was still to be served when it ended
                if event & selectors.EVENT_WRITE:
                    flow.sender.send(data)
                    continue
                flow.receive(into)
                yield flow
                if flow.done:
                    selector.unregister(flow.sender)
                    selector.unregister(flow.receiver)


def together(network: Hosts, paths: Sequence[Path], settling: float, seconds: float) -> list[float]:
    """Bytes of payload per second of one flow on each of `paths`, in the same `seconds`, after `settling` of them.

    So one sees how they share what limits them. Raises LinkError if a path passes nothing.
    """
    flows: list[Flow] = []
    counted: dict[Flow, list[tuple[float, int]]] = {}      # of each flow the first and the last arrival that counts
    try:
        for path in paths:
            flows.append(Flow(path, network))
        begun: float | None = None
        for flow in pump(flows):
            begun = flow.arrived if begun is None else begun
            if flow.arrived >= begun + settling:
                now = flow.arrived, flow.received
                counted.setdefault(flow, [now, now])[1] = now
            if flow.arrived >= begun + settling + seconds:
                flow.done = True
    finally:
        for flow in flows:
            flow.close()
    return [(after - before) / (end - start) for (start, before), (end, after) in (counted[flow] for flow in flows)]
