"""What a and b are made of, b beside what no algorithm can beat and a as delays, bytes and the rest; how sure they are.

busbw is what an ideal algorithm would put on each rank's link in the time: algbw · 2(W−1)/W for an all-reduce
(nccl-tests, doc/PERFORMANCE.md); of b, algbw is 1/b.

a is split by the simulator: *delays* is what the small tensor takes with no costs on links without limits, so the
one-way delays that the exchange waits for, one after another; *bytes* is what the links' limits add to that; *the rest*
is what was measured beyond both: the implementation and the machine, mostly. It is not measured apart: that would take
a collective without the links, and what is predicted may know of none. (`frogtorch bench` has it, on loopback.)
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from emulator import sim
from emulator.topology import Topology
from emulator.units import format_size
from scenarios import fit, limit
from scenarios.arms import ARMS
from scenarios.results import Results
from scenarios.tables import MEGA, NONE, sheet, time, titled
from scenarios.theory import theory

NO_COSTS = sim.Costs()


def bounds(results: Results) -> Group:
    """Show b and busbw of every arm, beside the ring's and shard's by bytes alone, and the linear programme's limit."""
    table = sheet("W", "arm", "b", "busbw MB/s", "ring", "shard", "limit", "b ÷ limit")
    for world_size, hosts in results.scenario.worlds.items():
        ring, shard = (found.slope if (found := theory(results.scenario.topology, hosts, arm)) else None
                       for arm in ("gloo", "shard"))
        least = limit.slope(results.scenario.network, hosts)
        for f in results.fits:
            if f.world_size == world_size:
                b = f.line.slope.value
                table.add_row(str(world_size), f.arm, time(b * MEGA), f"{busbw(b, world_size) / MEGA:.3f}",
                              *(NONE if of is None else time(of * MEGA) for of in (ring, shard, least)),
                              NONE if least is None else f"{b / least:.3f}")
    return titled("b beside its bounds, seconds per MB: ring and shard by bytes alone, and the least of any all-reduce",
                  table)


def busbw(slope: float, world_size: int) -> float:
    """Bytes per second, of b in seconds per byte."""
    return 2 * (world_size - 1) / world_size / slope


@dataclasses.dataclass(frozen=True)
class Split:
    """Of the time of one small tensor: seconds that add up to what was measured."""

    delays: float
    bytes: float
    rest: float


def split(topology: Topology, hosts: Sequence[str], simulated: str, nbytes: int, measured: float) -> Split:
    """Take a measured time apart, at life size; `simulated` is the arm as the simulator calls it."""
    delays = sim.all_reduce(unlimited(topology), hosts, simulated, nbytes, costs=NO_COSTS).seconds
    links = sim.all_reduce(topology, hosts, simulated, nbytes, costs=NO_COSTS).seconds
    return Split(delays, links - delays, measured - links)


def unlimited(topology: Topology) -> Topology:
    """The topology with nothing of it but its delays."""
    return dataclasses.replace(
        topology, groups=(), hosts=tuple(dataclasses.replace(host, up=None, down=None) for host in topology.hosts),
        paths=tuple(dataclasses.replace(path, rate=None, window=None, loss=0.0, jitter=0.0)
                    for path in topology.paths))


def delays(results: Results) -> Group:
    """Show a of every arm, as delays, bytes and the rest."""
    assert results.scenario.all_reduce is not None
    table = sheet("W", "arm", "a", "delays", "bytes", "the rest")
    for f in results.fits:
        simulated = ARMS[f.arm].simulated
        assert simulated is not None
        of = split(results.scenario.topology, results.scenario.worlds[f.world_size], simulated,
                   results.scenario.all_reduce.intercept, f.a.value)
        table.add_row(str(f.world_size), f.arm, time(f.a.value), *(time(part) for part in (of.delays, of.bytes)),
                      f"{of.rest:+.4f}")
    return titled("a, seconds, as the simulator splits it: delays waited for, bytes, and what is left (implementation, "
                  "machine)", table)


def sureness(results: Results) -> Text:
    """Of a scenario that repeats until its medians are sure: how that ended, a line a world and speed-up."""
    until = results.scenario.until
    assert until is not None
    seconds: defaultdict[tuple[int, float], dict[tuple[str, int], list[float]]] = defaultdict(dict)
    for row in results.rows:
        for m in (*row.measurements, *row.scaled) if row.workload == "all_reduce" else ():
            seconds[m.world_size, m.speedup].setdefault((m.arm, m.nbytes), []).append(m.seconds)
    lines = []
    for (world, speedup), points in sorted(seconds.items()):
        reach, (arm, nbytes) = max((fit.median(of).reach, point) for point, of in points.items())
        ended = (f"the 95 % interval of every median is within {until.within:.0%}" if reach <= until.within else
                 f"the time was over, with the interval of {arm} at {format_size(nbytes)} reaching {reach:.1%}")
        lines.append(f"W = {world}, speed-up {speedup:g}: {max(map(len, points.values()))} blocks; {ended}.")
    return Text("\n".join(lines))
