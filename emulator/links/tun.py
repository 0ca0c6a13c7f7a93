"""Delay, jitter and loss by a TUN device, for kernels with neither netem nor netfilter queues.

Packets that come in are redirected to the device ``delay0``, from which a process reads them, and into which it writes
them back when it is time (:mod:`~emulator.links.tunnel`). The rate stays with HTB at the sender, where a frame still
has its Ethernet header, so a rate means the same as with the other engines.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

from emulator.links.namespace import LinkError, Namespace, scratch
from emulator.links.tunnel import NAME
from emulator.links.userspace import Daemon, Pair, UserSpace

_WAITING = 10_000      # packets that may wait for the process to read them


def why_not(place: Namespace | None = None) -> str | None:
    """Try it in `place`, or in a namespace of its own: None if this machine can, else the reason."""
    try:
        with scratch() if place is None else nullcontext(place) as trial:
            daemon = Daemon(trial, Tun.name, "a trial", None)
            try:
                daemon.configure({"10.0.0.1": (0.001, 0, 0, 0)})
                trial.ip(_up())
                trial.tc([*_ingress("lo"), *_redirect("lo", ["10.0.0.1"])])
            finally:
                daemon.end()
    except (LinkError, OSError) as error:
        return str(error)
    return None


class Tun(UserSpace):
    """A device a receiver, for all the paths that end there."""

    name = "tun"
    FLOOR = 150e-6

    def _key(self, pair: Pair) -> str:
        return self._addresses[pair[0]]

    def _ready(self, namespace: Namespace) -> None:
        namespace.ip(_up())
        namespace.tc(_ingress(self._device))

    def _lead(self, namespace: Namespace, pairs: Iterable[Pair]) -> None:
        namespace.tc(_redirect(self._device, [self._addresses[source] for source, _ in pairs]))

    def _lost(self, namespace: Namespace) -> int:
        # Columns after the name: 8 of what was received, then bytes, packets, errors and drops of what was sent
        rows = (row.split() for row in namespace.run(["cat", "/proc/net/dev"]).splitlines())
        return sum(int(row[12]) for row in rows if row[0] == f"{NAME}:")


def _up() -> list[str]:
    return [f"link set {NAME} txqueuelen {_WAITING} up"]


def _ingress(device: str) -> list[str]:
    return [f"qdisc add dev {device} handle ffff: ingress"]


def _redirect(device: str, addresses: Iterable[str]) -> list[str]:
    return [f"filter add dev {device} parent ffff: protocol ip prio 1 u32 match ip src {address}/32 "
            f"action mirred egress redirect dev {NAME}" for address in addresses]
