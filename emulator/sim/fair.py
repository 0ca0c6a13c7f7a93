"""Max–min fair sharing: what TCP connections that meet at a bottleneck get, taken as a fluid.

A division is max–min fair if no flow can be given more without taking from one that has no more than it. There is
exactly one, and progressive filling finds it (Bertsekas and Gallager, *Data Networks*, 2nd ed., section 6.5.2): raise
all flows together until a link is full; what crosses that link stays at this rate; go on with the rest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

F = TypeVar("F", bound=Hashable)
L = TypeVar("L", bound=Hashable)


def share(flows: Mapping[F, Sequence[L]], capacity: Mapping[L, float]) -> dict[F, float]:
    """Return the max–min fair rate of every flow, given the links it crosses and what each link carries.

    A flow that crosses no link gets ``math.inf``. The result does not depend on the order of the flows but for
    rounding. Raises KeyError for a link without a capacity.
    """
    left = {link: capacity[link] for links in flows.values() for link in links}
    crossing: dict[L, dict[F, None]] = {link: {} for link in left}  # dicts, not sets: the same order in every run
    for flow, links in flows.items():
        for link in links:
            crossing[link][flow] = None
    rates = {flow: math.inf for flow, links in flows.items() if not links}
    while crossing:
        fullest = min(crossing, key=lambda link: left[link] / len(crossing[link]))
        level = max(0.0, left[fullest] / len(crossing[fullest]))
        for flow in list(crossing[fullest]):
            rates[flow] = level
            for link in flows[flow]:
                left[link] -= level
                del crossing[link][flow]
                if not crossing[link]:
                    del crossing[link]
    return rates
