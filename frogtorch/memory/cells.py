"""What is in the memory: cells that wait for their readers, reads that wait for their cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from frogtorch.memory.wire import Frame


class Address(NamedTuple):
    """Where a cell is found: what every rank can work out by itself, before the cell exists."""

    space: str
    name: str
    owner: int

    def __str__(self) -> str:
        return f"({self.space}, {self.name}, rank {self.owner})"


Key = tuple[int, bytes]
"""A cell inside one space and one owner: the round, and the name in its wire form."""


class Span:
    """Bytes that came or went: when the first and the last of them did, how many, and how many with the first.

    Times are those of ``time.monotonic``.
    """

    __slots__ = ("bytes", "first", "head", "last")

    def __init__(self, first: float, last: float, count: int, head: int) -> None:
        self.first = first
        self.last = last
        self.bytes = count
        self.head = head

    def add(self, first: float, last: float, count: int, head: int) -> None:
        """Make it the span of these bytes too."""
        if first < self.first:
            self.first = first
            self.head = head
        if last > self.last:
            self.last = last
        self.bytes += count


class Tally:
    """Bytes of one round: of cells, and of everything on the group's sockets (headers and requests included)."""

    __slots__ = ("payload_offered", "payload_received", "payload_sent", "sent", "socket_received", "socket_sent")

    def __init__(self) -> None:
        self.payload_offered = 0  # sizes of cells, once for every rank that asked for one or got it unasked
        self.payload_received = 0
        self.payload_sent = 0
        self.socket_received = 0
        self.socket_sent = 0
        self.sent: dict[int, Span] = {}  # by the rank that the bytes were for

    def sends(self, peer: int, count: int, now: float) -> None:
        """The kernel has accepted `count` more bytes of cells for rank `peer`."""
        self.payload_sent += count
        span = self.sent.get(peer)
        if span is None:
            self.sent[peer] = Span(now, now, count, count)
        else:
            if now == span.first:
                span.head += count
            span.last = now
            span.bytes += count


class Cell:
    """A published value. It goes when `readers` distinct ranks have it, or nobody is left who might read it."""

    __slots__ = ("left", "name", "nbytes", "retired", "round", "sent_to", "tally", "view", "waiting", "what")

    def __init__(self, number: int, name: bytes, what: bytes, view: memoryview, readers: int, tally: Tally,
                 retired: Callable[[], None] | None) -> None:
        self.round = number
        self.name = name
        self.what = what
        self.view = view
        self.nbytes = len(view)
        self.left = readers
        self.waiting: set[int] = set()  # ranks that may come to read it
        self.sent_to: set[int] = set()  # ranks to which it is being, or has been, served
        self.tally = tally
        self.retired = retired  # called once, when the cell goes; it may own the bytes of `view`


class Inbox:
    """Cells of one peer that came unasked, before their reads: what each is part of, and its bytes."""

    __slots__ = ("_rounds", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        """Bytes of all of them."""
        self._rounds: dict[int, dict[bytes, tuple[bytes, bytes]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._rounds.values()))

    def put(self, frame: Frame, payload: memoryview) -> None:
        """Keep a cell."""
        self.nbytes += len(payload)
        self._rounds.setdefault(frame.round, {})[frame.name] = frame.what, bytes(payload)

    def pop(self, key: Key) -> tuple[bytes, bytes] | None:
        """What a cell is part of, and its bytes, which the inbox no longer has; None if it has not come."""
        came = self._rounds.get(key[0], {}).pop(key[1], None)
        if came is not None:
            self.nbytes -= len(came[1])
        return came

    def kinds(self, number: int) -> set[bytes]:
        """What the cells of a round are part of."""
        return {what for what, _ in self._rounds.get(number, {}).values()}

    def forget(self, number: int) -> None:
        """Let the cells of a round go."""
        self.nbytes -= sum(len(data) for _, data in self._rounds.pop(number, {}).values())


class Reading:
    """A read under way: stands at the owner until the cell is published, then is filled.

    `done` is called once: with None when the bytes are in place, with the error otherwise. Times are those of
    ``time.monotonic``; `first` is None until the first byte has come, `head` says how many came with it.
    """

    __slots__ = ("done", "first", "got", "head", "last", "name", "owner", "round", "tally", "view", "what")

    def __init__(self, number: int, name: bytes, owner: int, what: bytes, view: memoryview, tally: Tally,
                 done: Callable[[Reading, BaseException | None], None]) -> None:
        self.round = number
        self.name = name
        self.owner = owner
        self.what = what
        self.view = view
        self.tally = tally
        self.done = done
        self.got = 0
        self.head = 0
        self.first: float | None = None
        self.last = 0.0

    def place(self, frame: Frame) -> memoryview:
        """Where the frame's payload belongs."""
        return self.view[frame.offset:frame.offset + frame.length]
