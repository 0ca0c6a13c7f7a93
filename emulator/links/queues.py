"""Netfilter queues as :mod:`emulator.links.delayd` sees them: packets are held in the kernel, and known by their ids.

Only ids come up (NFQNL_COPY_META in linux/netfilter/nfnetlink_queue.h), never bytes; the kernel keeps those, joined as
they came (NFQA_CFG_F_GSO). A packet is let go some time after the kernel received it, and with it all that came before
it on its queue (NFQNL_MSG_VERDICT_BATCH): order is kept. One that is lost is dropped at once, by a verdict of its own.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import deque

from emulator.links.holding import Holding

SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5
NETLINK_NETFILTER = 12
SO_TIMESTAMP, SO_RCVBUFFORCE = 29, 33
NLM_F_REQUEST, NLM_F_ACK = 1, 4
NLMSG_ERROR = 2
NFNL_SUBSYS_QUEUE = 3 << 8
PACKET, VERDICT, CONFIG, VERDICT_BATCH = (NFNL_SUBSYS_QUEUE | kind for kind in range(4))
NFQA_VERDICT_HDR, NFQA_TIMESTAMP = 2, 4
NFQA_CFG_CMD, NFQA_CFG_PARAMS, NFQA_CFG_QUEUE_MAXLEN, NFQA_CFG_MASK, NFQA_CFG_FLAGS = 1, 2, 3, 4, 5
NFQNL_CFG_CMD_BIND, NFQNL_COPY_META, NFQA_CFG_F_GSO = 1, 1, 4
NF_DROP, NF_ACCEPT = 0, 1
BACKLOG = 1_000_000        # packets a queue may hold; a long fast path keeps some 10,000
OLDEST = 0.25              # seconds that a packet can have waited for us
BUFFER = 64 << 20          # bytes of ids that may wait for us


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _message(kind: int, queue: int, *attributes: bytes, flags: int = NLM_F_REQUEST) -> bytes:
    body = struct.pack("!BBH", 0, 0, queue) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


class Queues:
    """The netlink socket, and for each queue, by number, its law and the packets that wait: (when to let go, id)."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        except PermissionError:      # root of a user namespace alone: as much as net.core.rmem_max allows
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
        # While a socket anywhere asks for times of arrival, the kernel stamps what devices receive, and the stamps come
        # up with the ids. Else a packet would be late by as long as we take to wake up: more when idle than when busy.
        self._stamping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stamping.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
        self._law: dict[int, Holding] = {}
        self._waiting: dict[int, deque[tuple[float, int]]] = {}

    def fileno(self) -> int:
        """What to wait on for packets."""
        return self._socket.fileno()

    def follow(self, path: str, law: Holding) -> None:
        """Hold the packets of the queue of number `path` by `law`, from now on.

        Raises OSError if the kernel cannot, or another process already decides over it.
        """
        queue = int(path)
        self._law[queue] = law
        if queue not in self._waiting:
            self._bind(queue)

    def _bind(self, queue: int) -> None:
        for attribute in (
            _attribute(NFQA_CFG_CMD, struct.pack("!BBH", NFQNL_CFG_CMD_BIND, 0, 0)),
            _attribute(NFQA_CFG_PARAMS, struct.pack("!IB", 0, NFQNL_COPY_META)),
            _attribute(NFQA_CFG_QUEUE_MAXLEN, struct.pack("!I", BACKLOG)),
            _attribute(NFQA_CFG_MASK, struct.pack("!I", NFQA_CFG_F_GSO))
            + _attribute(NFQA_CFG_FLAGS, struct.pack("!I", NFQA_CFG_F_GSO)),
        ):
            self._socket.send(_message(CONFIG, queue, attribute, flags=NLM_F_REQUEST | NLM_F_ACK))
            while True:          # packets of queues bound before may come first
                answer = self._socket.recv(65536)
                if struct.unpack_from("=H", answer, 4)[0] == NLMSG_ERROR:
                    break
                self._take(answer)
            code = struct.unpack_from("=i", answer, 16)[0]
            if code:
                raise OSError(-code, f"netfilter queue {queue}: {os.strerror(-code)}")
        self._waiting[queue] = deque()

    def release(self, now: float) -> float | None:
        """Let go what is due; returns when the next packet is due, or None if none waits."""
        soonest = None
        for queue, waiting in self._waiting.items():
            last = None
            while waiting and waiting[0][0] <= now:
                last = waiting.popleft()[1]
            if last is not None:
                self._decide(VERDICT_BATCH, queue, NF_ACCEPT, last)
            if waiting and (soonest is None or waiting[0][0] < soonest):
                soonest = waiting[0][0]
        return soonest

    def _decide(self, kind: int, queue: int, verdict: int, packet: int) -> None:
        self._socket.send(_message(kind, queue, _attribute(NFQA_VERDICT_HDR, struct.pack("!II", verdict, packet))))

    def drain(self) -> None:
        """Note all packets that have come."""
        try:
            for _ in range(256):     # then look what is due: a flood of arrivals must not hold up departures
                self._take(self._socket.recv(65536, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return

    def _take(self, data: bytes) -> None:
        """Note the packets that `data` announces. Raises OSError if it carries an error of the kernel's."""
        at = 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == PACKET:       # netlink header 16, nfgenmsg 4 (queue in its last two), NFQA_PACKET_HDR first
                queue, = struct.unpack_from("!H", data, at + 18)
                packet, = struct.unpack_from("!I", data, at + 24)
                due = self._law[queue].due(time.monotonic() - _age(data, at + 20, at + length))
                if due is None:
                    self._decide(VERDICT, queue, NF_DROP, packet)
                else:
                    self._waiting[queue].append((due, packet))
            elif kind == NLMSG_ERROR:
                code, = struct.unpack_from("=i", data, at + 16)
                if code:
                    raise OSError(-code, f"a verdict was refused: {os.strerror(-code)}")
            at += (length + 3) & ~3


def _age(data: bytes, at: int, end: int) -> float:
    """Seconds since the kernel received the packet whose attributes are ``data[at:end]``; 0 if that is not known."""
    while at < end:
        length, kind = struct.unpack_from("=HH", data, at)
        if kind == NFQA_TIMESTAMP:
            seconds, microseconds = struct.unpack_from("!QQ", data, at + 4)
            age = time.time() - seconds - microseconds * 1e-6
            return age if 0 <= age < OLDEST else 0.0      # the clock of the day may have been set meanwhile
        at += (length + 3) & ~3
    return 0.0
