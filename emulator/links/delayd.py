"""The process that holds packets back: a netfilter queue for each peer of the namespace it was started in.

It runs as a script of its own, with the standard library alone: what is in the packets' way should start at once and
hold nothing of its parent's. Only packets' ids come up to it (NFQNL_COPY_META in linux/netfilter/nfnetlink_queue.h),
never their bytes; the kernel keeps those, joined as they came (NFQA_CFG_F_GSO). A packet is let go `hold` seconds after
the kernel received it, and with it all that came before it on its queue (NFQNL_MSG_VERDICT_BATCH): order is kept.

Each line on standard input is a JSON object, queue number: seconds to hold. Queues not yet bound are bound. Each line
is answered on standard output by one with what was done, ``{"queues": 5, "scheduling": "fifo"}``. It ends on SIGTERM,
at the end of its input, or with its parent.

Usage: ``delayd.py PARENT-PID``
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5
NETLINK_NETFILTER = 12
SO_TIMESTAMP, SO_RCVBUFFORCE = 29, 33
NLM_F_REQUEST, NLM_F_ACK = 1, 4
NLMSG_ERROR = 2
NFNL_SUBSYS_QUEUE = 3 << 8
PACKET, CONFIG, VERDICT_BATCH = NFNL_SUBSYS_QUEUE, NFNL_SUBSYS_QUEUE | 2, NFNL_SUBSYS_QUEUE | 3
NFQA_VERDICT_HDR, NFQA_TIMESTAMP = 2, 4
NFQA_CFG_CMD, NFQA_CFG_PARAMS, NFQA_CFG_QUEUE_MAXLEN, NFQA_CFG_MASK, NFQA_CFG_FLAGS = 1, 2, 3, 4, 5
NFQNL_CFG_CMD_BIND, NFQNL_COPY_META, NFQA_CFG_F_GSO = 1, 1, 4
NF_ACCEPT = 1
BACKLOG = 1_000_000        # packets a queue may hold; a long fast path keeps some 10,000
OLDEST = 0.25              # seconds that a packet can have waited for us
BUFFER = 64 << 20          # bytes of ids that may wait for us


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _message(kind: int, queue: int, *attributes: bytes, flags: int = NLM_F_REQUEST) -> bytes:
    body = struct.pack("!BBH", 0, 0, queue) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


class Queues:
    """The netlink socket, and for each queue its hold and the packets that wait: (when to let go, id)."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self.socket.bind((0, 0))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        self.socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
        # While a socket anywhere asks for times of arrival, the kernel stamps what devices receive, and the stamps come
        # up with the ids. Else a packet would be late by as long as we take to wake up: more when idle than when busy.
        self.stamping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.stamping.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
        self.hold: dict[int, float] = {}
        self.waiting: dict[int, deque[tuple[float, int]]] = {}

    def bind(self, queue: int) -> None:
        """Become the one who decides over `queue`. Raises OSError if the kernel cannot, or another already does."""
        for attribute in (
            _attribute(NFQA_CFG_CMD, struct.pack("!BBH", NFQNL_CFG_CMD_BIND, 0, 0)),
            _attribute(NFQA_CFG_PARAMS, struct.pack("!IB", 0, NFQNL_COPY_META)),
            _attribute(NFQA_CFG_QUEUE_MAXLEN, struct.pack("!I", BACKLOG)),
            _attribute(NFQA_CFG_MASK, struct.pack("!I", NFQA_CFG_F_GSO))
            + _attribute(NFQA_CFG_FLAGS, struct.pack("!I", NFQA_CFG_F_GSO)),
        ):
            self.socket.send(_message(CONFIG, queue, attribute, flags=NLM_F_REQUEST | NLM_F_ACK))
            while True:          # packets of queues bound before may come first
                answer = self.socket.recv(65536)
                if struct.unpack_from("=H", answer, 4)[0] == NLMSG_ERROR:
                    break
                self.take(answer)
            code = struct.unpack_from("=i", answer, 16)[0]
            if code:
                raise OSError(-code, f"netfilter queue {queue}: {os.strerror(-code)}")
        self.waiting[queue] = deque()

    def configure(self, holds: dict[str, float]) -> None:
        """Set seconds to hold by queue number; new queues are bound. Raises OSError as `bind`."""
        for name, seconds in holds.items():
            queue = int(name)
            self.hold[queue] = seconds
            if queue not in self.waiting:
                self.bind(queue)

    def release(self, now: float) -> float | None:
        """Let go what is due; returns when the next packet is due, or None if none waits."""
        soonest = None
        for queue, waiting in self.waiting.items():
            last = None
            while waiting and waiting[0][0] <= now:
                last = waiting.popleft()[1]
            if last is not None:
                verdict = _attribute(NFQA_VERDICT_HDR, struct.pack("!II", NF_ACCEPT, last))
                self.socket.send(_message(VERDICT_BATCH, queue, verdict))
            if waiting and (soonest is None or waiting[0][0] < soonest):
                soonest = waiting[0][0]
        return soonest

    def take(self, data: bytes) -> None:
        """Note the packets that `data` announces. Raises OSError if it carries an error of the kernel's."""
        at = 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == PACKET:       # netlink header 16, nfgenmsg 4 (queue in its last two), NFQA_PACKET_HDR first
                queue, = struct.unpack_from("!H", data, at + 18)
                packet, = struct.unpack_from("!I", data, at + 24)
                due = time.monotonic() - _age(data, at + 20, at + length) + self.hold[queue]
                self.waiting[queue].append((due, packet))
            elif kind == NLMSG_ERROR:
                code, = struct.unpack_from("=i", data, at + 16)
                if code:
                    raise OSError(-code, f"a verdict was refused: {os.strerror(-code)}")
            at += (length + 3) & ~3

    def drain(self) -> None:
        """Note all packets that have come."""
        try:
            for _ in range(256):     # then look what is due: a flood of arrivals must not hold up departures
                self.take(self.socket.recv(65536, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return


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


def _schedule() -> str:
    """Be served before those who compute: a late release is a longer path. Returns what was granted."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        return "fifo"
    except PermissionError:          # a container's share of real time is often zero
        pass
    try:
        os.nice(-15)
        return "nice"
    except PermissionError:
        return "normal"


def main() -> None:
    """Serve until told to end."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):      # it died before we asked to be told
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # Ctrl-C is the parent's, who then ends us
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    scheduling = _schedule()
    queues = Queues()
    lines = sys.stdin.buffer
    os.set_blocking(lines.fileno(), False)
    unread = b""
    due: float | None = None
    while True:
        patience = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select([queues.socket, lines], [], [], patience)
        if lines in ready:
            got = os.read(lines.fileno(), 65536)
            if not got:
                return
            unread += got
            while b"\n" in unread:
                line, _, unread = unread.partition(b"\n")
                queues.configure(json.loads(line))
                print(json.dumps({"queues": len(queues.waiting), "scheduling": scheduling}), flush=True)
        if queues.socket in ready:
            queues.drain()
        due = queues.release(time.monotonic())


if __name__ == "__main__":
    main()
