"""Which receive gets which message.

Messages from one rank with one tag are numbered by sender and receiver alike, in the order of the calls: so a
receive knows the name of its message before it was sent, and reads it as any cell. One that takes a message from any
source learns its name when one comes.

The order is that of MPI (MPI 4.1, section 3.5): messages from one source with one tag do not overtake each other, nor
do receives that would take the same message. So behind a receive from any source that still waits, every other
receive of its tag waits too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Protocol

from frogtorch.memory.wire import Message


class Receive(Protocol):
    """A receive that waits to be told which message it gets."""

    source: int | None
    tag: int

    def matched(self, source: int, number: int) -> None:
        """It gets message `number` of those from `source` with its tag."""

    def fail(self, error: BaseException) -> None:
        """It will get none."""


class Mailbox:
    """The messages of one rank in one group. For every pair of a rank and a tag it keeps a number, for good."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._sent: defaultdict[tuple[int, int], int] = defaultdict(int)  # by (to, tag): numbers given out
        self._claimed: defaultdict[tuple[int, int], int] = defaultdict(int)  # by (source, tag)
        # By tag. If receives wait then the first is one from any source, and no message does.
        self._waiting: dict[int, deque[Receive]] = {}
        self._unclaimed: dict[int, dict[tuple[int, int], None]] = {}  # (source, number), in the order they came

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) + sum(map(len, self._unclaimed.values()))

    def send(self, to: int, tag: int) -> Message:
        """The next message to rank `to` with `tag`."""
        number = self._sent[to, tag]
        self._sent[to, tag] += 1
        return Message(tag, number, to)

    def receive(self, receive: Receive) -> int | None:
        """The source of the message that a receive gets, for :meth:`claim`; None if the receive waits.

        Then it waits for its ``matched`` or ``fail``, or for :meth:`withdraw`.
        """
        waiting = self._waiting.get(receive.tag)
        if waiting is not None:
            waiting.append(receive)
            return None
        if receive.source is not None:
            return receive.source
        came = self._unclaimed.get(receive.tag)
        if came is None:
            self._waiting[receive.tag] = deque([receive])
            return None
        return next(iter(came))[0]

    def claim(self, source: int, tag: int) -> int:
        """The number of the next message from `source` with `tag`, which is a receive's from now on."""
        number = self._claimed[source, tag]
        self._claimed[source, tag] += 1
        self.forget(source, tag, number)
        return number

    def give_back(self, source: int, message: Message) -> bool:
        """Undo the claim of a message that has not come; False if it is not the last that was claimed."""
        last = self._claimed[source, message.tag] == message.number + 1
        if last:
            self._claimed[source, message.tag] -= 1
        return last

    def withdraw(self, receive: Receive) -> None:
        """A receive waits no more."""
        waiting = self._waiting.get(receive.tag)
        if waiting is not None and receive in waiting:
            waiting.remove(receive)
            self._match(receive.tag)

    def is_open(self, peer: int, message: Message) -> bool:
        """Whether a message between this rank and `peer` is one that nobody here has sent, or received, so far."""
        if message.to == self.rank:
            return message.number >= self._claimed.get((peer, message.tag), 0)
        return message.to == peer and message.number >= self._sent.get((peer, message.tag), 0)

    def came(self, source: int, message: Message) -> None:
        """A message, or the offer of one, has come that no receive has claimed."""
        self._unclaimed.setdefault(message.tag, {})[source, message.number] = None
        self._match(message.tag)

    def forget(self, source: int, tag: int, number: int) -> None:
        """A message that has come is claimed, or lost."""
        came = self._unclaimed.get(tag)
        if came is not None:
            came.pop((source, number), None)
            if not came:
                del self._unclaimed[tag]

    def hopeless(self, peer: int, alone: bool) -> list[Receive]:
        """Receives that can get nothing any more, now that `peer` is gone, or (`alone`) all peers are."""
        return [one for waiting in self._waiting.values() for one in waiting if alone or one.source == peer]

    def _match(self, tag: int) -> None:
        """Give receives that wait what has come, and let go on what is no longer behind one that waits."""
        waiting = self._waiting.get(tag)
        matched = []
        while waiting:
            source = waiting[0].source
            if source is None:
                came = self._unclaimed.get(tag)
                if came is None:
                    break
                source = next(iter(came))[0]
            matched.append((waiting.popleft(), source, self.claim(source, tag)))
        if waiting is not None and not waiting:
            del self._waiting[tag]
        for receive, source, number in matched:  # which may call into here again
            receive.matched(source, number)
