"""The least time in which a network can all-reduce, whatever the algorithm, as long as hosts add up what they forward.

Every byte of the result is summed at one host, its root, along a tree towards it, and goes back along another; a share
x_v of the bytes has host v as root. Tree packings exist exactly where every cut has the capacity (Edmonds,
"Edge-disjoint branchings", 1973, in its fractional form). So it is a linear programme: split what each path carries
into a reducing part r and a broadcasting part s; for every proper subset U of the hosts, r over the paths that leave U
and s over those that enter it are each at least the sum of x_v over the hosts v outside; what crosses a limit (path,
access, shared group, window) is at most its payload rate times T; minimise T.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, permutations

import numpy as np
from scipy.optimize import linprog

from emulator.ethernet import PAYLOAD
from emulator.topology import Topology, round_trip

MOST = 10
"""Ranks: there are 2^W - 2 cuts."""

Pair = tuple[int, int]


def slope(topology: Topology, hosts: Sequence[str]) -> float | None:
    """Return the seconds a byte that no all-reduce can beat, with rank i on ``hosts[i]``; delays apart.

    None where nothing is stated: several ranks on a host, more than :data:`MOST` ranks, a network without limits.
    """
    size = len(hosts)
    if not 2 <= size <= MOST or len(set(hosts)) < size:
        return None
    limits = list(_limits(topology, hosts))
    if not limits:
        return None
    unit = min(rate for rate, _ in limits)      # or T would be smaller than what the solver takes for nothing
    paths = {pair: index for index, pair in enumerate(permutations(range(size), 2))}
    count = len(paths)
    time, columns = size + 2 * count, size + 2 * count + 1      # x, r, s, T
    entries: list[tuple[int, int, float]] = []
    row = 0
    for rate, crossing in limits:
        for pair in crossing:
            entries += [(row, size + paths[pair], 1.0), (row, size + count + paths[pair], 1.0)]
        entries.append((row, time, -rate / unit))
        row += 1
    for inside in chain.from_iterable(combinations(range(size), k) for k in range(1, size)):
        outside = [host for host in range(size) if host not in inside]
        for first, ends in ((size, [(a, b) for a in inside for b in outside]),
                            (size + count, [(b, a) for a in inside for b in outside])):
            entries += [(row, first + paths[pair], -1.0) for pair in ends]
            entries += [(row, host, 1.0) for host in outside]
            row += 1
    matrix = np.zeros((row, columns))
    for line, column, value in entries:
        matrix[line, column] = value
    goal = np.zeros(columns)
    goal[time] = 1
    shares = np.zeros((1, columns))
    shares[0, :size] = 1
    found = linprog(goal, matrix, np.zeros(row), shares, np.ones(1), method="highs")
    if found.fun is None:
        raise RuntimeError(f"the limit of {topology.name} for W = {size} was not found: {found.message}")
    return float(found.fun) / unit


def _limits(topology: Topology, hosts: Sequence[str]) -> Iterator[tuple[float, list[Pair]]]:
    """Payload rates, each with the paths that share it."""
    pairs = list(permutations(range(len(hosts)), 2))
    names = {pair: (hosts[pair[0]], hosts[pair[1]]) for pair in pairs}
    for pair in pairs:
        path = topology.path(*names[pair])
        if path.rate is not None:
            yield path.rate * PAYLOAD, [pair]
        if path.window is not None and (trip := round_trip(topology, path)):
            yield path.window / trip, [pair]      # of one connection, which is what two ranks have
    for rank, name in enumerate(hosts):
        host = topology.host(name)
        if host.up is not None:
            yield host.up * PAYLOAD, [pair for pair in pairs if pair[0] == rank]
        if host.down is not None:
            yield host.down * PAYLOAD, [pair for pair in pairs if pair[1] == rank]
    for group in topology.groups:
        if crossing := [pair for pair in pairs if names[pair] in group.paths]:
            yield group.rate * PAYLOAD, crossing
