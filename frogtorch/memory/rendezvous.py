"""Rendezvous: the group's members find each other through the c10d store, which is used here and never again.

A store may be older than the group: another group of the same name, or a run that died, has left its keys in it. So
every group that begins on a store is a *generation* of its own, which its rank 0 begins::

    frogtorch/generation            how many there were; rank 0 adds one, and what it gets is the number of its own, g
    frogtorch/<g>/incarnation       the secret of this run of the group, from rank 0: random, new for every generation
    frogtorch/<g>/came/<rank>       how many have come as this rank: the second is of another generation
    frogtorch/<g>/endpoint/<rank>   the addresses at which a rank takes connections, the likeliest first
    frogtorch/<g>/failed            what went wrong on the first rank that gave up: the others need not wait for it

A rank that finds its place in the newest generation taken waits for the next one. One that took a place that a dead run
had left open learns from the generation's number that a newer one has begun, and starts again in that.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from frogtorch.collectives.interest import Interest
from frogtorch.memory.endpoint import Door, Endpoint, parse_endpoints
from frogtorch.memory.faults import MemoryFault, RendezvousError
from frogtorch.memory.meeting import Directory, Link, Meeting

__all__ = ["Link", "rendezvous"]

GENERATION = "frogtorch/generation"

SLICE = 5.0
"""Seconds of the first wait at the store; each one after it is twice as long, up to SLICE_MAX.

Between them this rank looks whether what it waits for can still come, and Python answers Ctrl-C. They are no shorter
since torch's TCPStore writes two lines of warning to stderr for each wait that ends without its key."""

SLICE_MAX = 40.0

SUCCESSOR = 5.0
"""Seconds that a rank which can reach nobody gives a new run, if what it found was left by a dead one."""


class _Superseded(Exception):  # noqa: N818 - what it is, and no error of the user's
    """A newer generation of the group has begun."""


def rendezvous(store: Any, group: str, rank: int, size: int, interests: Iterable[Interest], timeout: float,
               address: str | None = None, advertise: Endpoint | None = None,
               ports: tuple[int, int] = (0, 0)) -> tuple[bytes, Endpoint, dict[int, Link]]:
    """Meet the other members of `group` through the c10d `store`.

    `address`, `advertise` and `ports` are the options of these names (:class:`frogtorch.options.Options`); where this
    rank listens is told at :class:`~frogtorch.memory.endpoint.Door`. The ports are free again on return.

    Return the group's incarnation, the endpoint that the others were told first, and the link to each other rank.
    Raises RendezvousError if that takes more than `timeout` seconds, whatever the store's own timeout is, or cannot be:
    it names the ranks that did not come, or the pairs that could not connect. Raises ValueError for an `address` that
    this host has not.
    """
    deadline = time.monotonic() + timeout
    interests = list(interests)
    host = _store_host(store)
    door = Door(address, advertise, ports, host, backlog=max(size, 16))
    try:
        visit = _Visit(_own_connection(store, host), group, rank, size, deadline, timeout)
        while True:
            with contextlib.suppress(_Superseded):
                token, links = visit.meet(door, interests)
                return token, door.endpoints[0], links
    except MemoryFault:
        raise
    except RuntimeError as error:
        raise RendezvousError(f"group {group!r}: the c10d store failed at the rendezvous of rank {rank}: "
                              f"{error}") from error
    finally:
        door.close()


def _store_host(store: Any) -> str | None:
    """The host of the TCPStore under `store`; None for another kind of store."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    return str(host) if host else None


def _own_connection(store: Any, host: str | None) -> Any:
    """`store` over a connection of our own, if it is one that has connections.

    All groups of a process share one connection to a TCPStore, and a lock: who waits there for a late rank holds up
    every other group and thread that needs the store, among them perhaps those that the late rank is waiting for.
    """
    if host is not None:
        with contextlib.suppress(AttributeError, RuntimeError):  # a wrapper in Python, or too old a torch
            return store.clone()
    return store


class _Visit:
    """One rank at the store, for one rendezvous."""

    def __init__(self, store: Any, group: str, rank: int, size: int, deadline: float, timeout: float) -> None:
        self.store = store
        self.group = group
        self.rank = rank
        self.size = size
        self.deadline = deadline
        self.timeout = timeout
        self.generation = 0
        self._other_gave_up = False
        self._passed = ""  # why we are not in an earlier generation, if there was one

    def meet(self, door: Door, interests: list[Interest]) -> tuple[bytes, dict[int, Link]]:
        """Find the generation that is ours, and meet the others in it. Raises _Superseded if a dead run left it."""
        token = self._begin() if self.rank == 0 else self._join()
        links: dict[int, Link] = {}
        try:
            self.store.set(self._key("endpoint", self.rank), " ".join(map(str, door.endpoints)))
            meeting = Meeting(door, token, self.group, self.rank, self.size, interests, self._directory())
            links = meeting.links
            meeting.run(self.deadline, self.timeout, lambda: self._look(alive=0 in links))
        except RendezvousError as error:
            if self._other_gave_up:
                raise
            with contextlib.suppress(RuntimeError):  # the store may be what failed
                self.store.set(self._key("failed"), f"rank {self.rank}: {error}")
            if self.rank and 0 not in links and self._successor():
                raise _Superseded from None
            raise
        return token, links

    def _key(self, what: str, rank: int | None = None) -> str:
        return f"frogtorch/{self.generation}/{what}" + ("" if rank is None else f"/{rank}")

    # Generations ----------------------------------------------------------------------------------------------

    def _begin(self) -> bytes:
        if self.generation:
            raise RendezvousError(f"group {self.group!r}: another rank 0 has come to the same store while this one "
                                  f"waited there; of two runs at a time, each needs a store of its own")
        self.generation = self.store.add(GENERATION, 1)
        token = secrets.token_hex(16)
        self.store.set(self._key("incarnation"), token)
        return bytes.fromhex(token)

    def _join(self) -> bytes:
        newest = self.store.add(GENERATION, 0)
        self.generation = max(newest, 1)
        while True:
            with contextlib.suppress(_Superseded):
                self._await([self._key("incarnation")], [0])
                if self._take_place():
                    return bytes.fromhex(self.store.get(self._key("incarnation")).decode())
            self.generation = max(self.generation + 1, self.store.add(GENERATION, 0))

    def _take_place(self) -> bool:
        failed = self._key("failed")
        if self.store.check([failed]):
            self._passed = f"; an earlier one failed: {self.store.get(failed).decode()}"
            return False
        if self.store.add(self._key("came", self.rank), 1) > 1:
            self._passed = (f"; an earlier one on this store had its rank {self.rank}, either of another group or run, "
                            f"or another process that was told to be the same rank")
            return False
        return True

    def _successor(self) -> bool:
        """Whether a newer generation begins within a moment."""
        key = f"frogtorch/{self.generation + 1}/incarnation"
        try:
            self.store.wait([key], timedelta(seconds=max(0.001, min(SUCCESSOR, self.deadline - time.monotonic()))))
        except RuntimeError:
            return False
        return True

    def _look(self, alive: bool = False) -> None:
        """Raise what ends the wait for the others, if something has happened that does.

        While rank 0 is not known to be `alive`, a newer generation means that it is not. (Once it is, one that begins
        is only the next: rank 0 may be done with this group before two others have met.)
        """
        try:
            if not alive and self.store.add(GENERATION, 0) > self.generation:
                raise _Superseded
            failed = self._key("failed")
            said = self.store.get(failed).decode() if self.store.check([failed]) else None
        except RuntimeError:
            if alive:  # then it may have ended already, and the store with it, which is not needed any more
                return
            raise
        if said is not None:
            self._other_gave_up = True
            raise RendezvousError(f"group {self.group!r}: rank {self.rank} waits no longer, as another rank gave up. "
                                  f"{said}")

    # The others -----------------------------------------------------------------------------------------------

    def _directory(self) -> Directory:
        """Every other rank's endpoints, also of those that connect to us: so who did not come is told by its rank."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        if not others:
            return {}
        keys = [self._key("endpoint", rank) for rank in others]
        self._await(keys, others)
        return {rank: parse_endpoints(text.decode())
                for rank, text in zip(others, self.store.multi_get(keys), strict=True)}

    def _await(self, keys: list[str], ranks: Sequence[int]) -> None:
        """Wait until the store has all `keys`, one of each of `ranks`."""
        pause = SLICE
        while True:
            begun = time.monotonic()
            slice_ = max(0.001, min(pause, self.deadline - begun))
            try:
                self.store.wait(keys, timedelta(seconds=slice_))
                return
            except RuntimeError:
                now = time.monotonic()
                if now < begun + 0.9 * slice_:  # that was no timeout
                    raise
                absent = [(rank, key) for rank, key in zip(ranks, keys, strict=True) if not self.store.check([key])]
                if not absent:
                    return
                if now >= self.deadline:
                    raise self._absent(absent) from None
            self._look()
            pause = min(2 * pause, SLICE_MAX)

    def _absent(self, absent: list[tuple[int, str]]) -> RendezvousError:
        who = ", ".join(f"rank {rank}" for rank, _ in absent[:8])
        if absent[8:]:
            who += f" and {len(absent) - 8} more"
        rank, key = absent[0]
        return RendezvousError(
            f"group {self.group!r}: {who} {'have' if absent[1:] else 'has'} not come to the rendezvous: "
            f"rank {self.rank} waited {self.timeout:g} s, the group's timeout, for rank {rank}'s key {key!r} in the "
            f"c10d store{self._passed}")
