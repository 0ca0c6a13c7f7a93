"""The connections of one rendezvous: of each pair the higher rank connects, and both prove that they are members.

A rank may be told to be at several addresses, of which some lead nowhere from here. They are tried in order, the next
one when the last has failed or has not connected for a while, side by side with those under way (the idea of RFC 8305,
"Happy Eyeballs"). The first to complete the greeting is the one that is used. A greeting has three parts:

1. the higher rank says who it is, with a proof that it knows the group's incarnation;
2. the lower rank answers the same, its proof tied to what it answers;
3. the higher rank confirms one connection of all that were answered, which ties the third proof to the second.

So both sides use the same connection, and what somebody has recorded opens none. Nothing here waits for one peer: a
stranger, or a slow member, holds up nobody.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from frogtorch.collectives.interest import Interest
from frogtorch.memory import wire
from frogtorch.memory.endpoint import Door, Endpoint, nearest_first
from frogtorch.memory.faults import ProtocolError, RendezvousError

__all__ = ["LOOK", "Directory", "Link", "Meeting"]

HEAD_START = 0.25
"""Seconds that an attempt to connect has before the next address is tried beside it (RFC 8305, section 8)."""

PATIENCE = 5.0
"""The same once it has connected, and the greeting is due: the other rank may be busy, and the address is good."""

LOOK = 1.0
"""Seconds between looks at what the store says of the others' failures, while there is somebody to wait for."""

STRANGERS = 64
"""Callers that may be open and have not proven anything, beside two for each rank; the eldest goes for another."""

_ENDS = {
    errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "timed out", errno.EHOSTUNREACH: "no route to it",
    errno.ENETUNREACH: "no route to it", errno.EADDRNOTAVAIL: "no route to it from there",
    errno.ECONNRESET: "reset",
}


class Link(NamedTuple):
    """A connection to another member, ready for frames. `early` is what already came behind the greeting."""

    sock: socket.socket
    endpoint: Endpoint
    interests: frozenset[Interest]
    early: bytes


Directory = dict[int, list[Endpoint]]
"""Where each other rank says that it can be reached."""


class _Open:
    """A connection that is not yet one of the group's."""

    __slots__ = ("connected", "data", "dial", "endpoint", "ours", "since", "sock", "source", "theirs", "unsent")

    def __init__(self, sock: socket.socket, endpoint: Endpoint, dial: _Dial | None, greeting: bytes = b"") -> None:
        self.sock = sock
        self.endpoint = endpoint  # where we connect to, or where the caller comes from
        self.dial = dial  # None: it came to us
        self.ours = self.unsent = greeting
        self.data = b""
        self.theirs: wire.Greeting | None = None
        self.connected = dial is None
        self.since = time.monotonic()
        self.source = ""

    def how(self, end: str) -> str:
        """The attempt and its end, for texts."""
        return f"{self.endpoint}{f' from {self.source}' if self.source else ''}: {end}"


class _Dial:
    """Our attempts to connect to one peer."""

    def __init__(self, peer: int, endpoints: Sequence[Endpoint]) -> None:
        self.peer = peer
        self.untried = deque(endpoints)
        self.open: list[_Open] = []
        self.ended: list[str] = []
        self.next = 0.0  # when another address may be tried, by the monotonic clock

    @property
    def hopeless(self) -> bool:
        """Whether every address was tried, in vain."""
        return not (self.untried or self.open)

    def attempts(self) -> str:
        """What became of every attempt, for texts."""
        now = time.monotonic()
        pending = [one.how(f"{'connected, but no greeting' if one.connected else 'timed out, no answer'} for "
                           f"{now - one.since:.1f} s") for one in self.open]
        return "; ".join([*self.ended, *pending, *(f"{endpoint}: not tried yet" for endpoint in self.untried)])


class Meeting:
    """All connections of one rendezvous, brought up side by side."""

    def __init__(self, door: Door, token: bytes, group: str, rank: int, size: int, interests: Iterable[Interest],
                 directory: Directory) -> None:
        self.door = door
        self.token = token
        self.group = group
        self.rank = rank
        self.size = size
        self.interests = list(interests)
        self.directory = directory
        self.links: dict[int, Link] = {}
        self._dials = {peer: _Dial(peer, nearest_first(directory[peer], door.source)) for peer in range(rank)}
        self._open: dict[_Open, None] = {}  # the eldest first
        self._turned_away: deque[str] = deque(maxlen=4)
        self._selector = selectors.DefaultSelector()

    def run(self, deadline: float, timeout: float, look: Callable[[], None]) -> None:
        """Fill `links` by the `deadline` (monotonic), which is the end of `timeout` seconds.

        Calls ``look()`` now and then, which may raise. Raises RendezvousError, which names for each pair that did not
        meet the addresses on both sides, what became of every attempt, and the settings that matter.
        """
        try:
            for listener in self.door.listeners:
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ, listener)
            looked = time.monotonic()
            while len(self.links) < self.size - 1:
                now = time.monotonic()
                if now >= deadline:
                    raise self._late(timeout)
                if now >= looked + LOOK:
                    looked = now
                    look()
                due = min(deadline, looked + LOOK, self._try_next(now))
                for key, mask in self._selector.select(max(0.0, due - time.monotonic())):
                    if isinstance(key.data, _Open):
                        self._ready(key.data, mask)
                    else:
                        self._accept(key.data)
        except BaseException:
            for link in self.links.values():
                link.sock.close()
            raise
        finally:
            for one in list(self._open):
                self._close(one)
            self._selector.close()

    # Out ------------------------------------------------------------------------------------------------------

    def _try_next(self, now: float) -> float:
        """Begin the attempts that are due by `now`; return when the next one is."""
        due = float("inf")
        for dial in self._dials.values():
            while dial.untried and dial.next <= now:
                self._connect(dial, dial.untried.popleft(), now)
            if dial.hopeless:
                raise self._unreachable(dial)
            if dial.untried:
                due = min(due, dial.next)
        return due

    def _connect(self, dial: _Dial, endpoint: Endpoint, now: float) -> None:
        sock = socket.socket(endpoint.family)
        sock.setblocking(False)
        one = _Open(sock, endpoint, dial, wire.greet(self.token, self.rank, self.size, dial.peer, self.interests))
        dial.open.append(one)
        self._open[one] = None
        dial.next = now + HEAD_START
        try:
            if self.door.source is not None and Endpoint(self.door.source, 0).family == endpoint.family:
                # From the address that the others know us by; a host with several may be shaped or filtered by it.
                one.source = self.door.source
                sock.bind((self.door.source, 0))
            with contextlib.suppress(BlockingIOError):  # as it should: it is under way
                sock.connect(tuple(endpoint))
            one.source = str(sock.getsockname()[0])
        except OSError as error:
            self._failed(one, error)
            return
        self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, one)

    def _failed(self, one: _Open, error: Exception) -> None:
        """It leads nowhere. A caller was a stranger, or a member of another run; of ours, the next address is due."""
        self._close(one)
        end = str(error)
        if isinstance(error, OSError):
            end = _ENDS.get(error.errno or 0) or error.strerror or end
        if one.dial is None:
            if one.theirs is None:  # else a member that has chosen another connection
                self._turned_away.append(one.how(end))
        else:
            one.dial.ended.append(one.how(end))
            one.dial.next = 0.0

    # In -------------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, caller = listener.accept()
        except OSError:  # it is gone again
            return
        unproven = [one for one in self._open if one.dial is None and one.theirs is None]
        if len(unproven) >= STRANGERS + 2 * self.size:
            self._failed(unproven[0], ProtocolError("it said nothing, and others wanted in"))
        sock.setblocking(False)
        # At a listener for all addresses, IPv4 comes dressed as IPv6.
        one = _Open(sock, Endpoint(caller[0].removeprefix("::ffff:"), caller[1]), None)
        self._open[one] = None
        self._selector.register(sock, selectors.EVENT_READ, one)

    def _ready(self, one: _Open, mask: int) -> None:
        if one not in self._open:  # closed by an event of the same batch
            return
        try:
            if mask & selectors.EVENT_WRITE and one.unsent:
                one.unsent = one.unsent[one.sock.send(one.unsent):]
                if not one.connected and one.dial is not None:
                    one.connected = True
                    one.dial.next = max(one.dial.next, time.monotonic() + PATIENCE)
            if mask & selectors.EVENT_READ:
                data = one.sock.recv(wire.GREETING_MAX)
                if not data:
                    raise ProtocolError("it closed the connection during the greeting")
                one.data += data
                if one.dial is None:
                    self._greeted(one)
                else:
                    self._answered(one, one.dial)
            if not one.unsent and one in self._open:
                self._selector.modify(one.sock, selectors.EVENT_READ, one)
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            self._failed(one, error)

    def _greeted(self, one: _Open) -> None:
        """A caller said more: its greeting, which is answered, or its choice of this connection."""
        if one.theirs is None:
            length = wire.greeting_length(one.data)
            if length is None or len(one.data) < length:
                return
            greeting, one.data = one.data[:length], one.data[length:]
            theirs = wire.admit(greeting, self.token, self.rank, self.size)
            if theirs.rank < self.rank or theirs.rank in self.links:
                raise ProtocolError(f"rank {theirs.rank} has no reason to connect to rank {self.rank}")
            one.theirs = theirs
            one.ours = wire.greet(self.token, self.rank, self.size, theirs.rank, self.interests, answers=greeting)
            one.sock.sendall(one.ours)  # into an empty send buffer: it goes in one piece
        if len(one.data) < wire.PROOF_BYTES:
            return
        wire.check_choice(one.data[:wire.PROOF_BYTES], self.token, one.ours)
        if one.theirs.rank in self.links:
            raise ProtocolError(f"rank {one.theirs.rank} is connected already")
        self._meet(one, one.theirs, one.data[wire.PROOF_BYTES:])

    def _answered(self, one: _Open, dial: _Dial) -> None:
        length = wire.greeting_length(one.data)
        if length is None or len(one.data) < length:
            return
        answer = one.data[:length]
        theirs = wire.admit(answer, self.token, self.rank, self.size, answers=one.ours)
        if theirs.rank != dial.peer:
            raise ProtocolError(f"it says it is rank {theirs.rank}")
        one.sock.sendall(wire.choice(self.token, answer))
        dial.open.remove(one)
        del self._dials[dial.peer]
        for other in list(dial.open):
            self._close(other)
        self._meet(one, theirs, one.data[length:])

    def _meet(self, one: _Open, theirs: wire.Greeting, early: bytes) -> None:
        del self._open[one]
        self._selector.unregister(one.sock)
        endpoint = one.endpoint
        if one.dial is None:  # it came from a port of no meaning
            endpoint = next((e for e in self.directory[theirs.rank] if e.address == endpoint.address), endpoint)
        self.links[theirs.rank] = Link(one.sock, endpoint, theirs.interests, early)

    def _close(self, one: _Open) -> None:
        self._open.pop(one, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one.sock)
        one.sock.close()
        if one.dial is not None and one in one.dial.open:
            one.dial.open.remove(one)

    # Texts ----------------------------------------------------------------------------------------------------

    def _unreachable(self, dial: _Dial) -> RendezvousError:
        return RendezvousError(f"group {self.group!r}: rank {self.rank} cannot connect to rank {dial.peer}. "
                               f"{self._tried(dial)}. {self._advice(dial.peer)}")

    def _late(self, timeout: float) -> RendezvousError:
        absent = [peer for peer in self.directory if peer not in self.links]
        said = [self._tried(self._dials[peer]) if peer < self.rank else self._awaited(peer) for peer in absent[:4]]
        if len(absent) > 4:
            said.append(f"and so with {len(absent) - 4} more")
        if self._turned_away:
            said.append(f"turned away: {'; '.join(self._turned_away)}")
        who = ", ".join(f"rank {peer}" for peer in absent)
        return RendezvousError(f"group {self.group!r}: rank {self.rank} waited {timeout:g} s for a connection with "
                               f"{who}. {'. '.join(said)}. {self._advice(min(absent[0], self.rank))}")

    def _tried(self, dial: _Dial) -> str:
        return (f"Rank {dial.peer} says it is at {_listed(self.directory[dial.peer])}; rank {self.rank}, at "
                f"{_listed(self.door.endpoints)}, tried {dial.attempts()}")

    def _awaited(self, peer: int) -> str:
        return (f"Rank {peer}, at {_listed(self.directory[peer])}, was to connect to rank {self.rank} and was told "
                f"{_listed(self.door.endpoints)}")

    def _advice(self, lower: int) -> str:
        return (f"The lower rank is connected to: if its host has an address that the other reaches, set "
                f"FROGTORCH_ADDRESS to it on rank {lower}, or FROGTORCH_ADVERTISE if the host itself does not have it; "
                f"with a firewall between, set FROGTORCH_PORTS to ports that it lets through")


def _listed(endpoints: Sequence[Endpoint]) -> str:
    return " and ".join(map(str, endpoints))
