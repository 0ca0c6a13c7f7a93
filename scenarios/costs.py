"""What a rank's own work costs on this machine: bytes copied and added, messages handled. No collective is run.

Measured with as many ranks at work together as will exchange later: they share the cores and the memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_LARGE = 4 << 20
"""Elements (16 MiB in fp32): larger than the caches, as gradients are."""
_SMALL = 1024
"""Elements of a message (4 KiB): one that goes in one piece."""
_TAKES = 15


def work() -> dict[str, float]:
    """CPU seconds a byte to copy a tensor and to add another to it: medians, after a first that touches the pages.

    Of the core, not of the clock: that ranks wait for a core of the few that they share is the simulator's to say.
    """
    into, part = torch.zeros(_LARGE), torch.ones(_LARGE)
    nbytes = into.nbytes
    return {"copy": _median(lambda: into.copy_(part)) / nbytes, "combine": _median(lambda: into.add_(part)) / nbytes}


def _median(act: Callable[[], object]) -> float:
    act()
    taken = []
    for _ in range(_TAKES):
        start = time.thread_time()
        act()
        taken.append(time.thread_time() - start)
    return statistics.median(taken)


def messages(group: dist.ProcessGroup, count: int = 40) -> float:
    """CPU seconds a message, both its ends: `count` rounds in which every rank sends 4 KiB to every other.

    All of the process's threads count. The first rounds, which connect, do not.
    """
    own, size = dist.get_rank(group), dist.get_world_size(group)
    peers = [peer for peer in range(size) if peer != own]
    out = torch.zeros(_SMALL)
    into = {peer: torch.zeros(_SMALL) for peer in peers}

    def turn() -> None:
        works = [dist.irecv(into[peer], group=group, group_src=peer) for peer in peers]
        works += [dist.isend(out, group=group, group_dst=peer) for peer in peers]
        for work in works:
            assert work is not None
            work.wait()

    for _ in range(5):
        turn()
    began = time.process_time()
    for _ in range(count):
        turn()
    return (time.process_time() - began) / (count * len(peers))
