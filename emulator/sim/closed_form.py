"""What an exchange takes by arithmetic alone: the bytes that cross a limit over its rate, plus delays.

Per rank and tensor of S bytes, for W ranks:

- **gloo**, a ring: every rank sends 2(W-1)/W·S to the rank before it. A byte of the result passes 2(W-1) edges, one
  after the other.
- **shard**, **pipelined**, **direct**: every rank sends S/W to every other, twice; two delays, each that of the longest
  path.
- **whole**: every rank sends S to every other, once.

The time of the bytes is the longest, over all limits (paths, the access of hosts, shared groups, windows), of what
crosses a limit over the payload rate it has. So with a limit B per path the ring takes 2(W-1)/W·S/B and shard
2/W·S/B; with B at every access both take 2(W-1)/W·S/B.

Neither handshakes nor requests, acknowledgements nor frames are in it: it is the baseline that a simulator must beat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations

from emulator.ethernet import PAYLOAD
from emulator.topology import Topology, round_trip


def closed_form(topology: Topology, hosts: Sequence[str], arm: str, nbytes: int) -> float:
    """Return the seconds that `arm` takes to all-reduce `nbytes` with rank i on ``hosts[i]``.

    Raises ValueError for an arm that has no closed form.
    """
    size = len(hosts)
    pairs = list(permutations(range(size), 2))
    if arm == "gloo":
        edges = [(rank, (rank - 1) % size) for rank in range(size)] if size > 1 else []
        delays = [_delay(topology, hosts[a], hosts[b]) for a, b in edges]
        traffic = dict.fromkeys(edges, 2 * (size - 1) / size * nbytes)
        # 2(W-1) edges are two turns round the ring less two neighbouring edges.
        latency = 2 * sum(delays) - min((delays[i - 1] + delays[i] for i in range(len(delays))),
                                         default=0.0)
    elif arm in ("shard", "pipelined", "direct", "whole"):
        longest = max((_delay(topology, hosts[a], hosts[b]) for a, b in pairs), default=0.0)
        phases, part = (1, nbytes) if arm == "whole" else (2, nbytes / size)
        traffic = dict.fromkeys(pairs, phases * part)
        latency = phases * longest
    else:
        raise ValueError(f"no closed form for the arm {arm!r}: gloo, shard, pipelined, direct and whole have one")
    return latency + _transfer(topology, hosts, traffic)


def _delay(topology: Topology, source: str, target: str) -> float:
    return 0.0 if source == target else topology.path(source, target).delay


def _transfer(topology: Topology, hosts: Sequence[str], traffic: dict[tuple[int, int], float]) -> float:
    """Seconds that the limit takes whose payload takes longest; `traffic` is by pair of ranks."""
    crossing: Counter[tuple[str, float]] = Counter()  # a limit's name and its payload rate -> bytes
    for (a, b), nbytes in traffic.items():
        source, target = hosts[a], hosts[b]
        if source == target:
            continue
        path = topology.path(source, target)
        limits = {f"path {source} {target}": path.rate, f"up {source}": topology.host(source).up,
                  f"down {target}": topology.host(target).down}
        limits |= {f"group {group.name}": group.rate for group in topology.groups if (source, target) in group.paths}
        for name, rate in limits.items():
            if rate is not None:
                crossing[name, rate * PAYLOAD] += nbytes  # type: ignore[assignment]
        trip = round_trip(topology, path)
        if path.window is not None and trip:
            crossing[f"window {a} {b}", path.window / trip] += nbytes  # type: ignore[assignment]
    return max((nbytes / rate for (_, rate), nbytes in crossing.items()), default=0.0)
