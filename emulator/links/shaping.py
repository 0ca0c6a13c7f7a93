"""Rates and queues: HTB classes, one a path, as text for ``tc -batch``. Pure, but for :func:`why_not`.

At the sender a path is a class chosen by destination. A host's access is the class above them: up on the sender's
device, down on the hub's device towards the host, where the classes are chosen by source. Paths that share a bottleneck
are led through a device of their group in the hub. HTB counts Ethernet frames with their 14 bytes of header, also for
segments still joined in one large packet (GSO).

Everything can be changed in place: with a `state`, a later state of the topology that was made, the functions return
the lines that lead there. No queue is torn down for it and none is made shorter, so what waits goes on waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from emulator.ethernet import FRAME, burst
from emulator.links.namespace import LinkError, run, scratch
from emulator.topology import Path, Topology, TopologyError, round_trip
from emulator.topology_file import LARGEST_QUEUE

LEAST_QUEUE = 144 * 1024
"""Bytes: two of the largest packets, as a queue shorter than one would drop it for ever. Where flows of several hosts
meet, a longer one has them lose more at a time, and share less evenly."""
_ASSURED = 25               # bytes a second to each leaf under an access, as HTB wants some: a frame a minute
_MOST_PACKETS = 50_000      # a second on one path, for the sake of the processor
_MOST_GROUPS = 2      # a path's turns in the hub: where it comes in, and where it goes out


def queue_size(path: Path, round_trip: float, rate: float) -> int:
    """Bytes that may wait before `path` at `rate` bytes per second: its own, else twice the bandwidth-delay product.

    Twice, so that one CUBIC flow keeps the path full when it backs off to 0.7 of its window (RFC 9438, section 4.6),
    and a second one finds room. With HTB at the sender the flow is also held back by TCP's own limit on what waits in
    a queue, so an ample queue does not fill by itself.
    """
    if path.queue is not None:
        return path.queue
    return min(LARGEST_QUEUE, max(LEAST_QUEUE, math.ceil(2 * rate * round_trip)))


def window_clamp(window: int) -> int | None:
    """The ``window`` of a route by which a receiver lets a sender have `window` bytes in flight; None if there is none.

    Linux takes only the scale of the window from the route (tcp_select_initial_window); how much it then offers
    follows the receive buffer (tcp_measure_rcv_mss moves the clamp since Linux 6.6). What holds is the largest number
    that the window field has with that scale (RFC 7323, section 2.2): 65,535 times a power of two. `window` must be
    within 1 % of it.
    """
    nearest = min((0xffff << scale for scale in range(15)), key=lambda size: abs(size - window))
    return nearest if abs(nearest / window - 1) <= 0.01 else None


@dataclass(frozen=True)
class Leaf:
    """One path on a device: `match` is the u32 selector, `rate` its own limit (None: only the access limits it)."""

    match: str
    rate: float | None
    queue: int


def tree(device: str, access: float | None, leaves: Sequence[Leaf], live: bool = False) -> list[str]:
    """Lines for ``tc -batch`` that limit `device` to `access` and each leaf to its rate.

    Leaves borrow from the access in turns of equal length: max-min sharing. None is assured a part of it, as HTB lets
    a leaf send what it is assured whatever the access has already let through: leaves that were idle would send some
    frames each, all at once. What matches no leaf (ARP, unlimited paths) passes by untouched. Empty if nothing is
    limited. `live`: the tree is there, and its rates and queues become these.
    """
    limited = [leaf for leaf in leaves if access is not None or leaf.rate is not None]
    if not limited:
        return []
    verb = "change" if live else "add"
    lines = [] if live else [f"qdisc add dev {device} root handle 1: htb"]
    parent = "1:"
    if access is not None:
        parent = "1:fff"
        lines.append(f"class {verb} dev {device} parent 1: classid {parent} "
                     + _limits(access, access, access))
    for number, leaf in enumerate(limited, start=1):
        rate = access if leaf.rate is None or (access is not None and access < leaf.rate) else leaf.rate
        assert rate is not None
        lines += [
            f"class {verb} dev {device} parent {parent} classid 1:{number:x} "
            + _limits(rate if access is None else None, rate, access),
            f"qdisc {verb} dev {device} parent 1:{number:x} handle {number + 1:x}: bfifo limit {leaf.queue}",
        ]
        if not live:
            lines.append(f"filter add dev {device} parent 1: protocol ip prio 1 u32 match {leaf.match} "
                         f"flowid 1:{number:x}")
    return lines


def _limits(assured: float | None, ceiling: float, access: float | None) -> str:
    most = burst(ceiling, shared=ceiling == access)
    # tc's "bps" is bytes per second. The quantum is a turn's length among those who borrow: the same for all of them.
    return (f"htb rate {_ASSURED if assured is None else round(assured)}bps ceil {round(ceiling)}bps "
            f"burst {1 if assured is None else most} cburst {most} quantum {min(burst(access or ceiling), 200_000)}")


def up(topology: Topology, host: str, device: str, address: Mapping[str, str],
       state: Topology | None = None) -> list[str]:
    """The sender's part: `host`'s own paths and its access up, on its `device`."""
    now = state or topology
    leaves = [Leaf(f"ip dst {address[path.target]}/32", path.rate, _queue(topology, now, path, "up"))
              for path in now.paths if path.source == host]
    return tree(device, now.host(host).up, leaves, live=state is not None)


def down(topology: Topology, host: str, device: str, address: Mapping[str, str],
         state: Topology | None = None) -> list[str]:
    """The access down of `host`, on the hub's `device` towards it; empty if it has no limit."""
    now = state or topology
    if now.host(host).down is None:
        return []
    leaves = [Leaf(f"ip src {address[path.source]}/32", None, _queue(topology, now, path, "down"))
              for path in now.paths if path.target == host]
    return tree(device, now.host(host).down, leaves, live=state is not None)


def group(topology: Topology, name: str, device: str, address: Mapping[str, str],
          state: Topology | None = None) -> list[str]:
    """The bottleneck of a group, on the `device` in the hub that its paths are led through (:func:`detours`)."""
    now = state or topology
    shared = next(group for group in now.groups if group.name == name)
    leaves = [Leaf(f"ip src {address[path.source]}/32 match ip dst {address[path.target]}/32", None,
                   _queue(topology, now, path, name))
              for path in now.paths if (path.source, path.target) in shared.paths]
    return tree(device, shared.rate, leaves, live=state is not None)


def _queue(topology: Topology, now: Topology, path: Path, where: str) -> int:
    """Bytes that may wait at ``up``, ``down`` or the group `where`: as many as ever in the topology's timeline.

    A router's memory does not shrink with a line's rate, and what waits in it must not be lost when that changes.
    """
    return max(_longest(topology, where)[path.source, path.target], _needed(now, path, where))


@lru_cache(maxsize=64)      # as often as the links change, and a timeline may have thousands of states
def _longest(topology: Topology, where: str) -> dict[tuple[str, str], int]:
    return {(path.source, path.target): max(_needed(state, state.path(path.source, path.target), where)
                                            for state in states(topology))
            for path in topology.paths}


def _needed(state: Topology, path: Path, where: str) -> int:
    rates = {"up": [path.rate, state.host(path.source).up], "down": [state.host(path.target).down]}.get(
        where, [group.rate for group in state.groups if group.name == where])
    rate = min((rate for rate in rates if rate is not None), default=0.0)
    return queue_size(path, round_trip(state, path), rate)


def detours(topology: Topology, ports: Mapping[str, str], devices: Mapping[str, str],
            address: Mapping[str, str]) -> list[str]:
    """Lines that lead the paths of each group through its device in `devices`, an IFB that is up.

    `ports` are the hub's devices towards the hosts, which have no ingress or clsact qdisc yet. A path is led away where
    it comes in and goes on from there; one of two groups (a site's way out, and another's way in) a second time, where
    it goes out. There are no more turns than these: :func:`refuse` a path of more groups.
    """
    lines: list[str] = []
    for path in topology.paths:
        turns = (("ingress", ports[path.source], f"ip dst {address[path.target]}/32"),
                 ("egress", ports[path.target], f"ip src {address[path.source]}/32"))
        for (hook, port, match), name in zip(turns, groups_of(topology, path), strict=False):
            lines += [f"qdisc add dev {port} clsact",
                      f"filter add dev {port} {hook} protocol ip prio 1 u32 match {match} "
                      f"action mirred egress redirect dev {devices[name]}"]
    return list(dict.fromkeys(lines))      # a port's clsact once, before its first filter


def groups_of(topology: Topology, path: Path) -> list[str]:
    """Names of the groups that the path is in."""
    return [group.name for group in topology.groups if (path.source, path.target) in group.paths]


@lru_cache(maxsize=256)
def segments(topology: Topology, host: str) -> int | None:
    """How many TCP segments `host` may join in one packet (GSO); None: as many as it likes.

    One where packets are lost, at any time: each must be lost on its own (where all are, it does not matter). A fourth
    of the shortest queue. And two where several paths share a limit: HTB lets those who borrow take turns of a packet
    rather than of bytes as soon as a packet is longer than a turn, or a sender has no more than one waiting, so whoever
    joins more would get more. Only a host with a fast path joins more then, or its packets would be too many.
    """
    counts = [_even(state, host) for state in states(topology)]
    for path in topology.paths:
        if path.source == host:
            if any(0 < state.path(host, path.target).loss < 1 for state in states(topology)):
                return 1
            if path.queue is not None and path.queue < LEAST_QUEUE:
                counts.append(max(1, path.queue // 4 // FRAME))
    return min((count for count in counts if count is not None), default=None)


def _even(topology: Topology, host: str) -> int | None:
    """Segments in a packet of `host`, so that it gets an even share of each limit; None if it shares none."""
    paths = [path for path in topology.paths if path.source == host]
    shared = any(len(group.paths) > 1 and any(source == host for source, _ in group.paths) for group in topology.groups)
    if len(topology.hosts) > 2:
        shared = shared or topology.host(host).up is not None \
            or any(topology.host(path.target).down is not None for path in paths)
    if not shared:
        return None
    fastest = max((rate for path in paths if (rate := ceiling(topology, path)) is not None), default=0.0)
    return max(2, int(fastest / _MOST_PACKETS / FRAME))


def ceiling(topology: Topology, path: Path) -> float | None:
    """Bytes per second, frames included, that `path` passes at most; None if nothing limits it but windows."""
    rates = [path.rate, topology.host(path.source).up, topology.host(path.target).down,
             *(group.rate for group in topology.groups if (path.source, path.target) in group.paths)]
    return min((rate for rate in rates if rate is not None), default=None)


def states(topology: Topology) -> list[Topology]:
    """The topology as it is from second 0 on, and after each moment of its timeline."""
    return [topology.state(second) for second in (0.0, *topology.timeline.moments)]


def refuse(topology: Topology) -> None:
    """Raise TopologyError for what no runtime can make of rates, windows and groups."""
    for path in topology.paths:
        where = f"{topology.file}:{path.line}: "
        if path.window is not None and window_clamp(path.window) is None:
            raise TopologyError(f"{where}links cannot have a window of {path.window} bytes "
                                f"({path.source} -> {path.target}): TCP's window field and its scale allow "
                                "64 KiB, 128 KiB, 256 KiB and so on, doubling; choose one of these")
        names = groups_of(topology, path)
        if len(names) > _MOST_GROUPS:
            raise TopologyError(f"{where}path {path.source} -> {path.target} is in {len(names)} groups "
                                f"({', '.join(names)}); links can lead it through {_MOST_GROUPS}: take it out of the "
                                "widest one")


def refuse_change(topology: Topology, state: Topology) -> None:
    """Raise TopologyError if links made for `topology` and its timeline cannot become `state` while they are up.

    What can change: rates, delays, jitter and loss of paths, accesses, rates of groups.
    """
    def fixed(of: Topology) -> list[tuple[str, object]]:
        return [("hosts", [host.name for host in of.hosts]), ("congestion control", of.congestion),
                ("groups", [(group.name, group.paths) for group in of.groups]),
                *((f"window of {path.source} -> {path.target}", path.window) for path in of.paths),
                *((f"queue of {path.source} -> {path.target}", path.queue) for path in of.paths)]

    def limited(of: Topology) -> list[tuple[str, bool]]:
        return [*((f"path {path.source} -> {path.target}", path.rate is not None) for path in of.paths),
                *((f"the access up of {host.name}", host.up is not None) for host in of.hosts),
                *((f"the access down of {host.name}", host.down is not None) for host in of.hosts)]

    for (what, before), (_, after) in zip(fixed(topology), fixed(state), strict=False):
        if before != after:
            raise TopologyError(f"{state.file}: the {what} cannot change while the links are up; take the network "
                                "down, and up again with the other topology")
    for (what, before), (_, after) in zip(limited(topology), limited(state), strict=True):
        if before != after:
            raise TopologyError(f"{state.file}: {what} is {'limited' if before else 'unlimited'}, and cannot become "
                                f"{'unlimited' if before else 'limited'} while the links are up; write another rate, "
                                "or bring the network up again")
    for path in state.paths:
        if 0 < path.loss < 1 and segments(topology, path.source) != 1:
            raise TopologyError(f"{state.file}:{path.line}: path {path.source} -> {path.target} cannot begin to lose "
                                "packets while the links are up: its host was made to join segments, which would be "
                                "lost together; give it the loss at some second of the topology's timeline")


def why_not() -> str | None:
    """Try it, in a namespace of its own: None if this machine can limit rates, else the reason."""
    lines = tree("lo", 1e6, [Leaf("ip dst 10.0.0.1/32", 1e6, LEAST_QUEUE)])
    try:
        with scratch():
            run(["tc", "-batch", "-"], "\n".join(lines) + "\n")
    except (LinkError, OSError) as error:
        return str(error)
    return None
