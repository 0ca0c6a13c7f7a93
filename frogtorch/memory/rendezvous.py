"""Rendezvous: the group's members find each other, prove that they are members, and connect, each pair once.

The c10d store is used here and never again: rank 0 leaves the incarnation (a random secret, new for every run of the
group), every rank leaves its endpoint. Of each pair the higher rank connects. Then both send a greeting with a proof
that they know the incarnation, and a connection without one is closed before anything is read from it.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from frogtorch.collectives.interest import Interest
from frogtorch.memory import wire
from frogtorch.memory.endpoint import Endpoint, own_address
from frogtorch.memory.faults import ProtocolError, RendezvousError

STRANGERS = 64
"""Connections that may be open and have not yet proven anything; more are turned away."""


class Link(NamedTuple):
    """A connection to another member, ready for frames. `early` is what already came behind the greeting."""

    sock: socket.socket
    endpoint: Endpoint
    interests: frozenset[Interest]
    early: bytes


def rendezvous(store: Any, group: str, rank: int, size: int, interests: Iterable[Interest], timeout: float,
               address: str | None = None) -> tuple[bytes, Endpoint, dict[int, Link]]:
    """Meet the other members of `group` through the c10d `store`.

    Return the group's incarnation, our own endpoint, and the link to each other rank. Raises RendezvousError if that
    takes more than `timeout` seconds: it names the ranks that did not come; ValueError for a bad `address`.
    """
    deadline = time.monotonic() + timeout
    here = own_address(address, _store_host(store))
    listener = socket.create_server((here, 0), backlog=max(size, 16),
                                    family=socket.AF_INET6 if ":" in here else socket.AF_INET)
    with listener:
        endpoint = Endpoint(here, listener.getsockname()[1])
        if rank == 0:
            store.set("frogtorch/incarnation", secrets.token_hex(16))
        store.set(f"frogtorch/endpoint/{rank}", f"{endpoint.address} {endpoint.port}")
        token = bytes.fromhex(_fetch(store, "frogtorch/incarnation", group, 0, deadline))
        # Every rank's, also of those that will connect to us: who did not come can then be told by its rank.
        directory = {}
        for peer in range(size):
            if peer != rank:
                text, port = _fetch(store, f"frogtorch/endpoint/{peer}", group, peer, deadline).split()
                directory[peer] = Endpoint(text, int(port))
        meeting = _Meeting(listener, token, group, rank, size, list(interests), directory)
        try:
            links = meeting.run(deadline, timeout)
        except BaseException:
            meeting.close()
            raise
    return token, endpoint, links


def _store_host(store: Any) -> str | None:
    """The host of the TCPStore under `store`; None for another kind of store."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    return str(host) if host else None


def _fetch(store: Any, key: str, group: str, peer: int, deadline: float) -> str:
    left = deadline - time.monotonic()
    try:
        store.wait([key], timedelta(seconds=max(left, 0.001)))
    except RuntimeError as error:
        raise RendezvousError(f"group {group!r}: rank {peer} has not come to the rendezvous within the group's "
                              f"timeout ({error})") from None
    return str(store.get(key).decode())


class _Greeted:
    """A connection that is not yet one of the group's."""

    __slots__ = ("data", "peer", "sock", "unsent")

    def __init__(self, sock: socket.socket, peer: int | None, unsent: bytes) -> None:
        self.sock = sock
        self.peer = peer  # None: it came to us, and has yet to say who it is
        self.unsent = unsent
        self.data = b""


class _Meeting:
    """All connections of one rendezvous, brought up side by side: a stranger, or a slow peer, holds up nobody."""

    def __init__(self, listener: socket.socket, token: bytes, group: str, rank: int, size: int,
                 interests: list[Interest], directory: dict[int, Endpoint]) -> None:
        self.listener = listener
        self.token = token
        self.group = group
        self.rank = rank
        self.size = size
        self.interests = interests
        self.directory = directory
        self.links: dict[int, Link] = {}
        self.pending: set[_Greeted] = set()
        self.turned_away: list[str] = []
        self.selector = selectors.DefaultSelector()

    def run(self, deadline: float, timeout: float) -> dict[int, Link]:
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        for peer in range(self.rank):
            self._connect(peer)
        while len(self.links) < self.size - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                absent = ", ".join(f"rank {p} at {e}" for p, e in self.directory.items() if p not in self.links)
                strangers = f"; turned away: {'; '.join(self.turned_away[:4])}" if self.turned_away else ""
                raise RendezvousError(f"group {self.group!r}: rank {self.rank} waited {timeout:g} s for a connection "
                                      f"with {absent}{strangers}")
            for key, mask in self.selector.select(left):
                if key.data is None:
                    self._accept()
                else:
                    self._ready(key.data, mask)
        for one in list(self.pending):
            self._drop(one)
        self.selector.close()
        return self.links

    def close(self) -> None:
        for one in list(self.pending):
            self._drop(one)
        for link in self.links.values():
            link.sock.close()
        self.selector.close()

    def _connect(self, peer: int) -> None:
        endpoint = self.directory[peer]
        sock = socket.socket(socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET)
        sock.setblocking(False)
        one = _Greeted(sock, peer, wire.greet(self.token, self.rank, self.size, peer, self.interests))
        self.pending.add(one)
        self.selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
        if sock.getsockname()[0] != self.listener.getsockname()[0]:
            # From the address that the others know us by; a host with several may be shaped or filtered by it.
            with contextlib.suppress(OSError):
                sock.bind((self.listener.getsockname()[0], 0))
        try:
            sock.connect(tuple(endpoint))
        except BlockingIOError:
            pass  # as it should: it is under way
        except OSError as error:
            raise RendezvousError(f"group {self.group!r}: rank {self.rank} cannot connect to rank {peer} at "
                                  f"{endpoint}: {error}") from error

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:  # it is gone again
            return
        if sum(one.peer is None for one in self.pending) >= STRANGERS:
            sock.close()
            return
        sock.setblocking(False)
        one = _Greeted(sock, None, b"")
        self.pending.add(one)
        self.selector.register(sock, selectors.EVENT_READ, one)

    def _ready(self, one: _Greeted, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE and one.unsent:
                one.unsent = one.unsent[one.sock.send(one.unsent):]
            if mask & selectors.EVENT_READ:
                data = one.sock.recv(wire.GREETING_MAX)
                if not data:
                    raise ProtocolError("it closed the connection during the greeting")
                one.data += data
                self._greeting(one)
            if not one.unsent and one in self.pending:
                self.selector.modify(one.sock, selectors.EVENT_READ, one)
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            who = f"rank {one.peer} at {self.directory[one.peer]}" if one.peer is not None else "a caller"
            self._drop(one)
            if one.peer is None:  # a stranger, or a member of another run: the meeting goes on without it
                self.turned_away.append(f"{who}: {error}")
                return
            raise RendezvousError(f"group {self.group!r}: rank {self.rank} cannot connect to {who}: {error} (is the "
                                  f"store left over from an earlier run?)") from error

    def _greeting(self, one: _Greeted) -> None:
        length = wire.greeting_length(one.data)
        if length is None or len(one.data) < length:
            return
        theirs = wire.admit(one.data[:length], self.token, self.rank, self.size)
        if one.peer is None:
            if theirs.rank < self.rank or theirs.rank in self.links:
                raise ProtocolError(f"rank {theirs.rank} has no reason to connect to rank {self.rank}")
            # Into an empty send buffer: it goes in one piece.
            one.sock.sendall(wire.greet(self.token, self.rank, self.size, theirs.rank, self.interests))
        elif theirs.rank != one.peer:
            raise ProtocolError(f"it says it is rank {theirs.rank}")
        self.pending.discard(one)
        self.selector.unregister(one.sock)
        self.links[theirs.rank] = Link(one.sock, self.directory[theirs.rank], theirs.interests, one.data[length:])

    def _drop(self, one: _Greeted) -> None:
        self.pending.discard(one)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(one.sock)
        one.sock.close()
