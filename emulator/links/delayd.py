"""The process that holds packets back, for the paths that end at the host in whose namespace it was started.

It runs with the standard library alone: what is in the packets' way should start at once and hold nothing of its
parent's. Where the packets come from and wait is :mod:`emulator.links.queues` or :mod:`emulator.links.tunnel`; how long
they wait is :mod:`emulator.links.holding`.

Each line on standard input is a JSON object, path: [seconds to hold, jitter, loss, seed]; the seed counts when the path
is new. A path is the number of a queue, or the sender's address. Each line is answered on standard output by one with
what was done, ``{"paths": 5, "scheduling": "fifo"}``. It ends on SIGTERM, at the end of its input, or with its parent.

Usage: ``python -m emulator.links.delayd nfqueue|tun PARENT-PID``
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

from emulator.links.holding import Holding
from emulator.links.queues import Queues
from emulator.links.tunnel import Tunnel

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29


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
    kind, parent = sys.argv[1:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):      # it died before we asked to be told
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # Ctrl-C is the parent's, who then ends us
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    scheduling = _schedule()
    packets: Queues | Tunnel = Queues() if kind == "nfqueue" else Tunnel()
    laws: dict[str, Holding] = {}
    lines = sys.stdin.buffer
    os.set_blocking(lines.fileno(), False)
    unread = b""
    due: float | None = None
    while True:
        patience = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select([packets, lines], [], [], patience)
        if lines in ready:
            got = os.read(lines.fileno(), 65536)
            if not got:
                return
            unread += got
            while b"\n" in unread:
                line, _, unread = unread.partition(b"\n")
                for path, (delay, jitter, loss, seed) in json.loads(line).items():
                    law = laws.setdefault(path, Holding(seed))
                    law.delay, law.jitter, law.loss = delay, jitter, loss
                    packets.follow(path, law)
                print(json.dumps({"paths": len(laws), "scheduling": scheduling}), flush=True)
        if packets in ready:
            packets.drain()
        due = packets.release(time.monotonic())


if __name__ == "__main__":
    main()
