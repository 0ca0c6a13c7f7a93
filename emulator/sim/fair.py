"""Weighted max–min fair sharing: what TCP connections that meet at a bottleneck get, taken as a fluid.

A flow's *level* is its rate over its weight: flows of weights 1 and 2 on one link get a third and two thirds of it. A
division is max–min fair if no flow can be given more without taking from one whose level is no higher. There is exactly
one, and progressive filling finds it (Bertsekas and Gallager, *Data Networks*, 2nd ed., section 6.5.2): raise all flows
together, each in proportion to its weight, until a link is full; what crosses that link stays at this level; go on with
the rest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

F = TypeVar("F", bound=Hashable)
L = TypeVar("L", bound=Hashable)


def share(flows: Mapping[F, Sequence[L]], capacity: Mapping[L, float],
          weights: Mapping[F, float] | None = None) -> dict[F, float]:
    """Return the max–min fair rate of every flow, given the links it crosses and what each link carries.

    The weight of a flow that `weights` does not name is 1. A flow that crosses no link gets ``math.inf``. The result
    does not depend on the order of the flows but for rounding. Raises KeyError for a link without a capacity. Takes
    F + L log L steps for F crossings of L links.
    """
    return {flow: rate for flow, (rate, _) in fill(flows, capacity, weights).items()}


def fill(flows: Mapping[F, Sequence[L]], capacity: Mapping[L, float],
         weights: Mapping[F, float] | None = None) -> dict[F, tuple[float, L | None]]:
    """As :func:`share`, with each flow's bottleneck (None: it crosses no link)."""
    heavy = weights or {}
    result: dict[F, tuple[float, L | None]] = {}
    crossing: dict[L, list[F]] = {}
    for flow, links in flows.items():
        if not links:
            result[flow] = math.inf, None
        for link in links:
            crossing.setdefault(link, []).append(flow)
    left = {link: capacity[link] for link in crossing}
    count = {link: len(over) for link, over in crossing.items()}
    weight: dict[L, float] = dict(count)
    for flow, own in heavy.items():
        for link in flows.get(flow, ()):
            weight[link] += own - 1
    # A link's level only rises while others fill up, so what the heap has is a lower bound, put right when it is met.
    heap = [(left[link] / of, i, link) for i, (link, of) in enumerate(weight.items())]
    heapify(heap)
    level = 0.0
    while heap:
        known, i, link = heappop(heap)
        if not count[link]:
            continue
        now = left[link] / weight[link]
        if now > known and heap and now > heap[0][0]:
            heappush(heap, (now, i, link))
            continue
        level = max(level, now)
        for flow in crossing[link]:
            if flow not in result:
                own = heavy.get(flow, 1.0)
                rate = own * level
                result[flow] = rate, link
                for other in flows[flow]:
                    left[other] -= rate
                    weight[other] -= own
                    count[other] -= 1
    return result
