"""What is in the memory: cells that wait for their readers, reads that wait for their cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from frogtorch.memory.credit import CELL_BYTES
from frogtorch.memory.faults import ProtocolError
from frogtorch.memory.questions import NEVER, Query
from frogtorch.memory.wire import Frame

OFFERS_MAX = 1 << 20
"""Most offers of one peer that wait for their reads. A sender that waits for its Works has long been held back by
:data:`frogtorch.memory.credit.UNREAD_BYTES` when it comes to as many."""


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

    __slots__ = ("copied", "left", "name", "nbytes", "retired", "round", "sent_to", "tally", "view", "waiting", "what")

    def __init__(self, number: int, name: bytes, what: bytes, view: memoryview, readers: int, tally: Tally,
                 retired: Callable[[], None] | None, copied: bool) -> None:
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
        self.copied = copied  # for its readers; otherwise they are served from where it was made


class Came(NamedTuple):
    """What came of a cell before its read: what it is part of, its size, and its bytes unless it is an offer."""

    what: bytes
    nbytes: int
    data: bytes | None
    head: int
    """Bytes on the socket before the payload."""


class Inbox:
    """Cells of one peer that came unasked, before their reads, and offers of cells."""

    __slots__ = ("_rounds", "cost", "offers")

    def __init__(self) -> None:
        self.cost = 0
        """Of the cells, as the peer's credit counts it."""
        self.offers = 0
        self._rounds: dict[int, dict[bytes, Came]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._rounds.values()))

    def put(self, frame: Frame, data: bytes | None, head: int) -> None:
        """Keep a cell, or an offer. Raises ProtocolError if it came before, or there are too many."""
        came = self._rounds.setdefault(frame.round, {})
        if frame.name in came:
            raise ProtocolError(f"cell {frame.name[:80]!r} of round {frame.round} came twice")
        came[frame.name] = Came(frame.what, frame.total, data, head)
        if data is not None:
            self.cost += frame.total + CELL_BYTES
        else:
            self.offers += 1
            if self.offers > OFFERS_MAX:
                raise ProtocolError(f"more than {OFFERS_MAX} offers of cells came that nobody has read")

    def pop(self, key: Key) -> Came | None:
        """What came of a cell, which the inbox no longer has; None if nothing has."""
        cells = self._rounds.get(key[0])
        came = None if cells is None else cells.pop(key[1], None)
        if came is not None:
            self._uncount(came)
            if not cells:
                del self._rounds[key[0]]
        return came

    def kinds(self, number: int) -> set[bytes]:
        """What the cells of a round are part of."""
        return {came.what for came in self._rounds.get(number, {}).values()}

    def forget(self, number: int) -> None:
        """Let the cells of a round go."""
        for came in self._rounds.pop(number, {}).values():
            self._uncount(came)

    def forget_offers(self) -> list[Key]:
        """Let all offers go: nobody is there any more who could be asked. Return which cells they were of."""
        gone = [(number, name) for number, cells in self._rounds.items() for name, came in cells.items()
                if came.data is None]
        for key in gone:
            self.pop(key)
        return gone

    def _uncount(self, came: Came) -> None:
        if came.data is not None:
            self.cost -= came.nbytes + CELL_BYTES
        else:
            self.offers -= 1


class Reading:
    """A read under way: stands at the owner until the cell is published, then is filled.

    `done` is called once: with None when the bytes are in place, with the error otherwise. Times are those of
    ``time.monotonic``; `first` is None until the first byte has come, `head` says how many came with it.
    """

    __slots__ = ("asked", "done", "first", "got", "head", "last", "name", "owner", "round", "tally", "view", "what")

    def __init__(self, number: int, name: bytes, owner: int, what: bytes, view: memoryview, tally: Tally,
                 done: Callable[[Reading, BaseException | None], None]) -> None:
        self.round = number
        self.name = name
        self.owner = owner
        self.what = what
        self.view = view
        self.tally = tally
        self.done = done
        self.asked = False  # the owner has our request
        self.got = 0
        self.head = 0
        self.first: float | None = None
        self.last = 0.0

    def place(self, frame: Frame) -> memoryview:
        """Where the frame's payload belongs: for one that goes on where we are, of the size that we expect."""
        return self.view[frame.offset:frame.offset + frame.length]


class Question(Reading):
    """A read of the newest cell of a name, if it is worth it: `step` says which came, or that none did (NEVER)."""

    __slots__ = ("query", "step")

    def __init__(self, number: int, name: bytes, owner: int, what: bytes, view: memoryview, tally: Tally,
                 done: Callable[[Reading, BaseException | None], None], query: Query) -> None:
        super().__init__(number, name, owner, what, view, tally, done)
        self.query = query
        self.step = NEVER
        self.asked = True
