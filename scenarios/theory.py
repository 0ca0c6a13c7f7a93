"""What bytes alone say about b, the slope of T(n) = a + b·n, on a topology.

B is the payload a TCP connection gets through what binds it. Per rank, an all-reduce of S bytes over W ranks sends and
receives 2(W-1)/W·S, by the ring as by shard. Where the limit sits decides what that costs:

- **per path** (or per connection: a window). The ring moves everything over one path out of each rank, the slowest
  of which sets the pace: b = 2(W-1)/(W·B). shard spreads it over W-1 paths, each with 2/W·S: b = 2/(W·B). Ratio W-1.
- **at each host's access**, equal for all hosts: all paths share it, so both take b = 2(W-1)/(W·B). Ratio 1.

On unequal accesses the same bytes bound shard, but it reaches the bound only if its flows share the slow access as
max-min fairness says, and TCP's, which meet different queues at their other ends, need not: nothing is stated, None.
So it is for lossy paths, shared groups, and several ranks on a host. The simulator answers there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

from emulator.ethernet import PAYLOAD
from emulator.topology import Topology, round_trip

Limit = Literal["path", "window", "access"]


@dataclass(frozen=True)
class Theory:
    """b of one arm, in seconds per byte, and what binds it."""

    slope: float
    limit: Limit
    goodput: float
    """B: payload bytes per second through what binds."""


def theory(topology: Topology, hosts: Sequence[str], arm: str) -> Theory | None:
    """Return what theory says of `arm` with rank i on hosts[i]; None where there is no closed statement."""
    size = len(hosts)
    if size < 2 or len(set(hosts)) < size or _irregular(topology, hosts):
        return None
    if arm == "gloo":
        return _ring(topology, hosts)
    return _spread(topology, hosts) if arm in ("shard", "pipelined", "direct") else None


def ratio(topology: Topology, hosts: Sequence[str]) -> float | None:
    """Return b_gloo / b_shard: W-1 with the limit per path, 1 with it at equal accesses, None where none is stated."""
    ring, shard = theory(topology, hosts, "gloo"), theory(topology, hosts, "shard")
    return ring.slope / shard.slope if ring and shard else None


def _irregular(topology: Topology, hosts: Sequence[str]) -> bool:
    pairs = set(permutations(hosts, 2))
    return (any(topology.path(*pair).loss for pair in pairs)
            or any(pairs & group.paths for group in topology.groups))


def _ring(topology: Topology, hosts: Sequence[str]) -> Theory | None:
    """Every rank sends to the one before it, all at once, so each access carries one flow each way."""
    size = len(hosts)
    edges = [(hosts[rank], hosts[rank - 1]) for rank in range(size)]
    path, limit = min(_connection(topology, *edge) for edge in edges)
    ups, downs = _accesses(topology, hosts)
    access = min(ups + downs)
    share = 2 * (size - 1) / size
    return _theory(share, access, "access") if access < path else _theory(share, path, limit)


def _spread(topology: Topology, hosts: Sequence[str]) -> Theory | None:
    """Every path carries 2/W·S, all at the same time, so each access carries W-1 flows each way."""
    share, flows = 2 / len(hosts), len(hosts) - 1
    path, limit = min(_connection(topology, *pair) for pair in permutations(hosts, 2))
    ups, downs = _accesses(topology, hosts)
    access = min(ups + downs)
    if path <= access / flows:
        return _theory(share, path, limit)  # max-min sharing grants the slowest path its whole rate everywhere
    if flows == 1 or set(ups) == {access} or set(downs) == {access}:
        return _theory(share * flows, access, "access")
    return None


def _connection(topology: Topology, source: str, target: str) -> tuple[float, Literal["path", "window"]]:
    """Return the payload rate of one connection on a path, access apart: the rate's, or window per round trip."""
    path = topology.path(source, target)
    rate = math.inf if path.rate is None else path.rate * PAYLOAD
    trip = round_trip(topology, path)
    window = math.inf if path.window is None or trip == 0 else path.window / trip
    return (window, "window") if window < rate else (rate, "path")


def _accesses(topology: Topology, hosts: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return the payload rates of the hosts' up and down limits."""
    members = [topology.host(name) for name in hosts]
    return ([math.inf if host.up is None else host.up * PAYLOAD for host in members],
            [math.inf if host.down is None else host.down * PAYLOAD for host in members])


def _theory(share: float, goodput: float, limit: Limit) -> Theory | None:
    """Return the line for `share` of S over `goodput`; an unlimited network has none."""
    return None if math.isinf(goodput) else Theory(share / goodput, limit, goodput)
