"""Where the ranks of a world meet: a file, or on machines that share none a store that a program of ours holds."""

from __future__ import annotations

import json
import signal
import sys
from datetime import timedelta

import torch.distributed as dist

__all__ = ["join"]

TCP = "tcp://"


def join(at: str, world_size: int, timeout: timedelta) -> dist.Store:
    """The store at a path, or at ``tcp://HOST:PORT/PART``."""
    if not at.startswith(TCP):
        return dist.FileStore(at, world_size)
    server, _, part = at.removeprefix(TCP).partition("/")
    host, _, port = server.rpartition(":")
    return dist.PrefixStore(part, dist.TCPStore(host, int(port), timeout=timeout))


def main() -> None:
    """Hold a store at the address given until standard input ends; prints its port."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    store = dist.TCPStore(sys.argv[1], 0, is_master=True, wait_for_workers=False)
    print(json.dumps(store.port), flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
