"""Where a rank takes connections: the addresses it listens on, the ports, and what it tells the others.

By default a rank listens on, and advertises, every address of its host that another host might reach it at: first the
one on the route to the c10d store, then those of the other interfaces. Each has a listener of its own, so that nothing
is open at an address that was not chosen. What the host's name resolves to is never asked: on Debian that is
127.0.1.1, where nobody else can come.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from frogtorch.memory.faults import RendezvousError

__all__ = ["Door", "Endpoint", "Interface", "interfaces", "is_ours", "nearest_first", "parse_address",
           "parse_advertise", "parse_endpoints"]

SIOCGIFFLAGS, SIOCGIFADDR = 0x8913, 0x8915  # netdevice(7)
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40

# linux/if_addr.h: temporary, failed duplicate detection, deprecated, tentative. None of them lasts, or works.
IFA_PASSING = 0x01 | 0x08 | 0x20 | 0x40
IF_INET6 = Path("/proc/net/if_inet6")

WILDCARDS = ("0.0.0.0", "::")


class Endpoint(NamedTuple):
    """Where a member of a group takes connections, or one end of a connection."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def family(self) -> socket.AddressFamily:
        """The address family."""
        return family(self.address)


class Interface(NamedTuple):
    """A network interface that is up, and one address of it."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.address} ({self.name})"


def family(address: str) -> socket.AddressFamily:
    """The address family of an IP address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def parse_address(text: str, what: str = "address (FROGTORCH_ADDRESS)") -> str:
    """The IP address in `text`, in its usual form. Raises ValueError for what other hosts cannot make use of.

    `what` it is, the error says.
    """
    try:
        found = ipaddress.ip_address(str(text).strip())
    except ValueError:
        raise ValueError(f"{what}: {text!r} is no IP address, such as 10.0.0.5 or fd00::5") from None
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if found.is_link_local:
            raise ValueError(f"{what}: {text} is a link-local address, which means nothing to another host; it takes a "
                             f"global or a private one")
    return str(found)


def parse_advertise(text: str) -> Endpoint:
    """``10.0.0.5``, ``10.0.0.5:29600``, ``fd00::5`` or ``[fd00::5]:29600``; the port is 0 if there is none.

    Raises ValueError.
    """
    what = "advertise (FROGTORCH_ADVERTISE)"
    found = re.fullmatch(r"\[(?P<six>[^]]*)\](:(?P<of_six>[0-9]{1,5}))?|(?P<four>[^:]*):(?P<of_four>[0-9]{1,5})",
                         str(text).strip())
    address, port = (text, None) if found is None else (
        found["six"] or found["four"], found["of_six"] or found["of_four"])
    endpoint = Endpoint(parse_address(address, what), int(port or 0))
    if port is not None and not 1 <= endpoint.port <= 65535:
        raise ValueError(f"{what}: {text!r} has no port from 1 to 65535")
    if endpoint.address in WILDCARDS:
        raise ValueError(f"{what} is where the others connect to, which {text} is not")
    return endpoint


def parse_endpoints(text: str) -> list[Endpoint]:
    """Endpoints with blanks between them, as ``str`` writes each."""
    return [parse_advertise(one) for one in text.split()]


# What the host has ---------------------------------------------------------------------------------------------


def interfaces() -> list[Interface]:
    """The first IPv4 address, then the lasting global IPv6 addresses, of each interface that is up; no loopback."""
    found = []
    lasting = _global_ipv6()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        def ask(request: int, name: str) -> bytes:
            return fcntl.ioctl(probe, request, struct.pack("256s", name.encode()[:15]))

        for _, name in socket.if_nameindex():
            try:
                (flags,) = struct.unpack_from("H", ask(SIOCGIFFLAGS, name), 16)
            except OSError:  # it has just gone
                continue
            if flags & IFF_LOOPBACK or not (flags & IFF_UP and flags & IFF_RUNNING):
                continue
            with contextlib.suppress(OSError):  # it has no IPv4 address
                found.append(Interface(name, socket.inet_ntoa(ask(SIOCGIFADDR, name)[20:24])))
            found += [Interface(name, address) for address in lasting.get(name, ())]
    return found


def _global_ipv6() -> dict[str, list[str]]:
    """Addresses of global scope by interface; unique local ones (fc00::/7) are among them."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):  # there is no IPv6 here
        for line in IF_INET6.read_text(encoding="ascii").splitlines():
            digits, _, _, scope, flags, name = line.split()
            if scope == "00" and not int(flags, 16) & IFA_PASSING:
                found.setdefault(name, []).append(str(ipaddress.IPv6Address(bytes.fromhex(digits))))
    return found


def is_ours(address: str) -> bool:
    """Whether this host has the IP address `address`."""
    try:
        with socket.socket(family(address), socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def routes(host: str) -> list[str]:
    """Our addresses on the ways to `host`, in the order in which its name resolves.

    Loopback ones only if `host` itself is given as loopback: then all ranks are on this host. A host's own *name* may
    well resolve to a loopback address, here and nowhere else.
    """
    found: list[str] = []
    try:
        answers = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return found
    for kind, _, _, _, target in answers:
        with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # of a datagram socket: looks up the route, sends nothing
            with contextlib.suppress(ValueError):  # a link-local one
                found.append(parse_address(probe.getsockname()[0]))
    if not _is_loopback(host):
        found = [address for address in found if not ipaddress.ip_address(address).is_loopback]
    return list(dict.fromkeys(found))


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.startswith(("localhost.", "ip6-localhost")):
        return True
    try:
        # 127.0.1.1 is what Debian makes of a host's own name.
        return ipaddress.ip_address(host).is_loopback and host != "127.0.1.1"
    except ValueError:
        return False


def candidates(store_host: str | None) -> list[str]:
    """Addresses of this host that another might reach it at, the likeliest first; at least one.

    The route's to the store comes first. If that is loopback it is the only one: all ranks are on this host, and
    nothing has to be open to others.
    """
    first = routes(store_host) if store_host else []
    if first and ipaddress.ip_address(first[0]).is_loopback:
        return first
    return list(dict.fromkeys([*first, *(one.address for one in interfaces())])) or ["127.0.0.1"]


def nearest_first(endpoints: Sequence[Endpoint], own: str | None) -> list[Endpoint]:
    """`endpoints` with those first that share the most leading bits with our `own` address; None leaves them as told.

    Who pins an address means the network it is in (RFC 6724, rule 9, in its simplest form).
    """
    if own is None:
        return list(endpoints)
    mine = ipaddress.ip_address(own)

    def apart(endpoint: Endpoint) -> int:
        theirs = ipaddress.ip_address(endpoint.address)
        if theirs.version != mine.version:
            return 129
        return (int(theirs) ^ int(mine)).bit_length()

    return sorted(endpoints, key=apart)


# Doors ---------------------------------------------------------------------------------------------------------


class Door:
    """The listeners of a rank while its group comes together, and what it tells the others of them.

    What it listens on: `address` and nothing else, if given (``0.0.0.0`` and ``::`` mean every address); else
    `advertise`, if that is an address of this host; else all :func:`candidates`. What it advertises: `advertise` and
    nothing else, if given; else where it listens. The port is a free one of the range `ports`, (0, 0) for any, and the
    same for all listeners where it can be.

    Raises ValueError for an address that this host has not, RendezvousError if no port is free.
    """

    def __init__(self, address: str | None = None, advertise: Endpoint | None = None, ports: tuple[int, int] = (0, 0),
                 store_host: str | None = None, backlog: int = 16) -> None:
        given = None if address is None else parse_address(address)
        self.source = given if given not in WILDCARDS else None
        """The address that connections to others have to come from; None leaves it to the kernel."""
        here = [given] if given is not None else candidates(store_host)
        if given is None and advertise is not None and is_ours(advertise.address):
            here = [advertise.address]
        self.listeners: list[socket.socket] = []
        try:
            self._listen(here, ports, backlog)
        except BaseException:
            self.close()
            raise
        at = [Endpoint(*listener.getsockname()[:2]) for listener in self.listeners]
        if given in WILDCARDS:
            at = [Endpoint(one, at[0].port) for one in candidates(store_host) if given == "::" or "." in one]
        self.endpoints = at if advertise is None else [Endpoint(advertise.address, advertise.port or at[0].port)]
        """What the others are told, the likeliest first."""

    def close(self) -> None:
        """Take no more connections; those that were made go on, and leave the port to the next group."""
        for listener in self.listeners:
            listener.close()

    def _listen(self, here: list[str], ports: tuple[int, int], backlog: int) -> None:
        first, last = ports
        order = list(range(first, last + 1))
        refused: list[Exception] = []
        for address in here:
            try:
                self.listeners.append(_listener(address, order, backlog))
            except OSError as error:  # of one of several: the others may do
                refused.append(_refusal(address, ports, error))
                continue
            if len(self.listeners) == 1:
                order.insert(0, self.listeners[0].getsockname()[1])
        if not self.listeners:
            raise refused[0]


def _listener(address: str, order: Sequence[int], backlog: int) -> socket.socket:
    for port in order:
        try:
            return socket.create_server((address, port), family=family(address), backlog=backlog,
                                        dualstack_ipv6=address == "::" and socket.has_dualstack_ipv6())
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _refusal(address: str, ports: tuple[int, int], error: OSError) -> Exception:
    if error.errno == errno.EADDRNOTAVAIL:
        has = ", ".join(map(str, interfaces())) or "none but loopback"
        return ValueError(f"address (FROGTORCH_ADDRESS) {address} is none of this host's, which are: {has}. If the "
                          f"others reach this host at it, as behind a published port, it is FROGTORCH_ADVERTISE")
    if error.errno == errno.EADDRINUSE:
        count = ports[1] - ports[0] + 1
        return RendezvousError(
            f"no port of {_range(ports)} is free at {address}: every rank of a host needs one while a group of its "
            f"comes together. Set FROGTORCH_PORTS to more than {count} port{'s' if count > 1 else ''}, which the "
            f"firewall lets through, or to others on each rank of the host")
    return RendezvousError(f"cannot listen at {address}, port {_range(ports)}: {error.strerror}; FROGTORCH_ADDRESS and "
                           f"FROGTORCH_PORTS say where to")


def _range(ports: tuple[int, int]) -> str:
    return "any" if not ports[0] else str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"
