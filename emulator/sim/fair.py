"""Max–min fair sharing: what TCP connections that meet at a bottleneck get, taken as a fluid.

A division is max–min fair if no flow can be given more without taking from one that has no more than it. There is
exactly one, and progressive filling finds it (Bertsekas and Gallager, *Data Networks*, 2nd ed., section 6.5.2): raise
all flows together until a link is full; what crosses that link stays at this rate; go on with the rest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

F = TypeVar("F", bound=Hashable)
L = TypeVar("L", bound=Hashable)


def share(flows: Mapping[F, Sequence[L]], capacity: Mapping[L, float]) -> dict[F, float]:
    """Return the max–min fair rate of every flow, given the links it crosses and what each link carries.

    A flow that crosses no link gets ``math.inf``. The result does not depend on the order of the flows but for
    rounding. Raises KeyError for a link without a capacity. Takes F + L log L steps for F crossings of L links.
    """
    return {flow: rate for flow, (rate, _) in fill(flows, capacity).items()}


def fill(flows: Mapping[F, Sequence[L]], capacity: Mapping[L, float]) -> dict[F, tuple[float, L | None]]:
    """As :func:`share`, with each flow's bottleneck (None: it crosses no link)."""
    result: dict[F, tuple[float, L | None]] = {}
    crossing: dict[L, list[F]] = {}
    for flow, links in flows.items():
        if not links:
            result[flow] = math.inf, None
        for link in links:
            crossing.setdefault(link, []).append(flow)
    left = {link: capacity[link] for link in crossing}
    count = {link: len(over) for link, over in crossing.items()}
    # A link's level only rises while others fill up, so what the heap has is a lower bound, put right when it is met.
    heap = [(left[link] / n, i, link) for i, (link, n) in enumerate(count.items())]
    heapify(heap)
    level = 0.0
    while heap:
        known, i, link = heappop(heap)
        if not count[link]:
            continue
        now = left[link] / count[link]
        if now > known and heap and now > heap[0][0]:
            heappush(heap, (now, i, link))
            continue
        level = max(level, now)
        for flow in crossing[link]:
            if flow not in result:
                result[flow] = level, link
                for other in flows[flow]:
                    left[other] -= level
                    count[other] -= 1
    return result
