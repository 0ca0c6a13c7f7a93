"""Which address a rank listens on and tells the others."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from typing import NamedTuple

SIOCGIFADDR = 0x8915  # netdevice(7)


class Endpoint(NamedTuple):
    """Where a member of a group takes connections."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def own_address(given: str | None, rendezvous: str | None) -> str:
    """The address to listen on: the one `given`, or that of the route to the `rendezvous` host, or a guess.

    The guess is the first address of an interface that is up and no loopback, else 127.0.0.1. What the host's own
    name resolves to is never asked: on Debian that is 127.0.1.1, where no other host can come. Raises ValueError if
    `given` is no IP address.
    """
    if given is not None:
        try:
            return str(ipaddress.ip_address(given))
        except ValueError:
            raise ValueError(f"{given!r} is no IP address; FROGTORCH_ADDRESS and Options.address take one of this "
                             f"host's, such as 10.0.0.5") from None
    if rendezvous is not None:
        towards = _route(rendezvous)
        if towards is not None:
            return towards
    return _first_interface() or "127.0.0.1"


def _route(host: str) -> str | None:
    """Our address on the way to `host`; None where it names ourselves by a loopback address others cannot reach."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # of a datagram socket: looks up the route, sends nothing
            own = str(probe.getsockname()[0])
    except OSError:
        return None
    if ipaddress.ip_address(own).is_loopback and host not in ("localhost", "127.0.0.1", "::1"):
        return None
    return own


def _first_interface() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # this interface has no IPv4 address
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                return address
    return None
