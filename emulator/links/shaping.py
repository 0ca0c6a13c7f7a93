"""Rates and queues: HTB classes, one a path, as text for ``tc -batch``. Pure, but for :func:`why_not`.

At the sender a path is a class chosen by destination. A host's access is the class above them: up on the sender's
device, down on the hub's device towards the host, where the classes are chosen by source. HTB counts Ethernet frames
with their 14 bytes of header, also for segments still joined in one large packet (GSO).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from emulator.ethernet import FRAME, burst
from emulator.links.namespace import LinkError, run, scratch
from emulator.topology import Path, Topology, round_trip

LARGEST_PACKET = 70_000
"""Bytes that HTB counts for the largest GSO packet: 65,536 of data, and headers for each of its 46 segments."""
LEAST_QUEUE = 144 * 1024
"""Bytes: two of the largest packets, as a queue shorter than one would drop it for ever. Where flows of several hosts
meet, a longer one has them lose more at a time, and share less evenly."""


def queue_size(path: Path, round_trip: float, rate: float) -> int:
    """Bytes that may wait before `path` at `rate` bytes per second: its own, else twice the bandwidth-delay product.

    Twice, so that one CUBIC flow keeps the path full when it backs off to 0.7 of its window (RFC 9438, section 4.6),
    and a second one finds room. With HTB at the sender the flow is also held back by TCP's own limit on what waits in
    a queue, so an ample queue does not fill by itself.
    """
    if path.queue is not None:
        return path.queue
    return max(LEAST_QUEUE, math.ceil(2 * rate * round_trip))


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


def tree(device: str, access: float | None, leaves: Sequence[Leaf]) -> list[str]:
    """Lines for ``tc -batch`` that limit `device` to `access` and each leaf to its rate.

    Leaves borrow from the access in turns of equal length, after each had its even part of it: max-min sharing. What
    matches no leaf (ARP, unlimited paths) passes by untouched. Empty if nothing is limited.
    """
    limited = [leaf for leaf in leaves if access is not None or leaf.rate is not None]
    if not limited:
        return []
    lines = [f"qdisc add dev {device} root handle 1: htb"]
    parent = "1:"
    if access is not None:
        parent = "1:fff"
        lines.append(f"class add dev {device} parent 1: classid {parent} " + _limits(access, access))
    for number, leaf in enumerate(limited, start=1):
        if access is None:
            assert leaf.rate is not None
            ceiling = floor = leaf.rate
        else:
            ceiling = access if leaf.rate is None else min(access, leaf.rate)
            floor = min(ceiling, access / len(limited))
        lines += [
            f"class add dev {device} parent {parent} classid 1:{number:x} " + _limits(floor, ceiling),
            f"qdisc add dev {device} parent 1:{number:x} handle {number + 1:x}: bfifo limit {leaf.queue}",
            f"filter add dev {device} parent 1: protocol ip prio 1 u32 match {leaf.match} flowid 1:{number:x}",
        ]
    return lines


def _limits(rate: float, ceiling: float) -> str:
    # tc's "bps" is bytes per second. The quantum is a turn's length among borrowers: the same for all under one access.
    return (f"htb rate {round(rate)}bps ceil {round(ceiling)}bps burst {burst(rate)} cburst {burst(ceiling)} "
            f"quantum {min(burst(ceiling), 200_000)}")


def up(topology: Topology, host: str, device: str, address: dict[str, str]) -> list[str]:
    """The sender's part: `host`'s own paths and its access up, on its `device`."""
    access = topology.host(host).up
    leaves = []
    for path in topology.paths:
        if path.source == host:
            rate = _smallest(path.rate, access)
            leaves.append(Leaf(f"ip dst {address[path.target]}/32", path.rate,
                               queue_size(path, round_trip(topology, path), rate or 0)))
    return tree(device, access, leaves)


def down(topology: Topology, host: str, device: str, address: dict[str, str]) -> list[str]:
    """The access down of `host`, on the hub's `device` towards it; empty if it has no limit."""
    access = topology.host(host).down
    if access is None:
        return []
    leaves = [Leaf(f"ip src {address[path.source]}/32", None, queue_size(path, round_trip(topology, path), access))
              for path in topology.paths if path.target == host]
    return tree(device, access, leaves)


def largest_packet(topology: Topology) -> int | None:
    """Bytes of IP that one packet may have, or None if GSO may join as many segments as it likes.

    Four packets must fit the shortest queue; and where packets are lost, each segment must be lost on its own.
    """
    if any(path.loss for path in topology.paths):
        return FRAME - 14
    shortest = min((path.queue for path in topology.paths if path.queue is not None), default=LEAST_QUEUE)
    return None if shortest >= LEAST_QUEUE else max(FRAME - 14, shortest // 4)


def why_not() -> str | None:
    """Try it, in a namespace of its own: None if this machine can limit rates, else the reason."""
    lines = tree("lo", 1e6, [Leaf("ip dst 10.0.0.1/32", 1e6, LEAST_QUEUE)])
    try:
        with scratch():
            run(["tc", "-batch", "-"], "\n".join(lines) + "\n")
    except (LinkError, OSError) as error:
        return str(error)
    return None


def _smallest(*rates: float | None) -> float | None:
    return min((rate for rate in rates if rate is not None), default=None)
