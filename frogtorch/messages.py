"""Point to point: sends and receives as operations of the engine, each one message.

A send is done once the message is published, as a copy: unlike Gloo's, which waits for its receiver, unless this rank
keeps so many unread copies that it has to wait as well. A receive of a known source reads from its start on; one of
any source once the mailbox has told it which message it gets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from frogtorch.collectives import messages
from frogtorch.effects import Collective, Group, Region
from frogtorch.engine import Engine, Operation
from frogtorch.lanes import WAITING, Lane
from frogtorch.memory.faults import MemoryFault
from frogtorch.memory.space import Memory
from frogtorch.memory.wire import Message, message_round
from frogtorch.telemetry import Record
from frogtorch.work import Work

__all__ = ["Receive", "Received", "Send", "checked"]

Done = Callable[[BaseException | None], None]

_unmatched = itertools.count(1)


def checked(what: str, peer: int | None, tag: int, group: Group) -> None:
    """Raise ValueError unless a message may go between this rank of `group` and `peer` (None: any) with `tag`."""
    if peer == group.rank:
        raise ValueError(f"there is no {what} between rank {peer} of the group, which is this rank, and itself")
    if peer is not None and not 0 <= peer < group.size:
        raise ValueError(f"there is no {what} with rank {peer}: the group has ranks 0 to {group.size - 1}")
    if not 0 <= tag < 1 << 63:
        raise ValueError(f"the tag of a {what} is a whole number from 0 to 2**63 - 1, not {tag}")


class _Message(Operation):
    """One end of a message. If it fails, the other end does too."""

    _way: str

    def __init__(self, engine: Engine, collective: Collective, record: Record, dtype: torch.dtype, timeout: float,
                 done: Done) -> None:
        """As an operation; `record` has the message's tag and, if it is known, the rank at its other end."""
        super().__init__(engine, collective, record, dtype, "", timeout, done)
        self.what = f"message/{record.dtype}".encode()  # one text at both ends
        self.deadline = self.until  # a sender may take its time, and a message that was asked for cannot be given back
        self._message: Message

    def _leave(self, error: BaseException | None) -> None:
        assert self._record.peer is not None
        self._memory.end_message(self.number, self._record.peer, self._message, error)

    def _explained(self, error: BaseException) -> BaseException:
        """A memory's fault, with what every one of them has to say: which message, group and rank."""
        if not isinstance(error, MemoryFault):
            return error
        record = self._record
        return type(error)(f"{record.collective} ({record.dtype}), tag {record.tag}, {self._other()} of "
                           f"{self._memory.space}, on rank {record.rank}: {error}")

    def _other(self) -> str:
        """Which way the message goes, and who is at its other end."""
        peer = self._record.peer
        return f"{self._way} {'any rank' if peer is None else f'rank {peer}'}"


class Send(_Message):
    """A message to one rank: done when it is published."""

    _way = "to"

    def __init__(self, engine: Engine, group: Group, region: Region, record: Record, dtype: torch.dtype,
                 timeout: float, done: Done) -> None:
        """As the base; `region` is sent to ``record.peer`` with ``record.tag``."""
        super().__init__(engine, self._run(group, region), record, dtype, timeout, done)

    def start(self, memory: Memory) -> None:
        """Run to the end: the loop's lock is held."""
        assert self._record.peer is not None
        assert self._record.tag is not None
        self._memory = memory
        self._message = memory.mailbox.send(self._record.peer, self._record.tag)
        self._record.number = self._message.number
        self.number = memory.begin(self, message_round(self._record.rank, self._message))
        self._lanes.run()

    def _run(self, group: Group, region: Region) -> Collective:
        yield from messages.send(group, region, self._message.to, self._message.tag, self._message.number)


class _Match:
    """The effect of a receive that is told which message it gets: the result is its source."""


class Receive(_Message):
    """A message from one rank, or from any: then ``record.peer`` is None, and is filled in when it has come."""

    _way = "from"

    def __init__(self, engine: Engine, group: Group, into: Region, record: Record, dtype: torch.dtype, timeout: float,
                 done: Done) -> None:
        """As the base; `into` is filled with a message that has ``record.tag``."""
        super().__init__(engine, self._run(group, into), record, dtype, timeout, done)
        assert record.tag is not None
        self.source = record.peer
        self.tag = record.tag
        self._lane: Lane | None = None  # while it is not known which message it gets
        self._untouched = False  # it was called off before anything of its message was asked for, or came

    def start(self, memory: Memory) -> None:
        """Run to the first wait; the loop's lock is held."""
        self._memory = memory
        self.number = memory.begin(self, -next(_unmatched))
        self._lanes.run()

    def matched(self, source: int, number: int) -> None:
        """The mailbox says which message it is."""
        assert self._lane is not None
        lane, self._lane = self._lane, None
        self._take(source, number)
        self._lanes.go_on(lane, source)

    def _take(self, source: int, number: int) -> None:
        self._record.peer, self._record.number = source, number
        self._message = Message(self.tag, number, self._record.rank)
        self._memory.renumber(self.number, message_round(source, self._message))
        self.number = message_round(source, self._message)

    def _run(self, group: Group, into: Region) -> Collective:
        source = yield _Match()  # type: ignore[misc]  # an effect that only this operation knows
        yield from messages.receive(group, into, source, self.tag, self._message.number)

    def _perform(self, lane: Lane, effect: Any) -> Any:
        if type(effect) is not _Match:
            return super()._perform(lane, effect)
        mailbox = self._memory.mailbox
        source = mailbox.receive(self)
        if source is not None:
            self._take(source, mailbox.claim(source, self.tag))
            return source
        fault = self._memory.alone() if self.source is None else self._memory.peers[self.source].gone
        if fault is not None:
            mailbox.withdraw(self)
            raise fault
        self._lane = lane
        lane.waits_for = self
        return WAITING

    def _cancel(self, lane: Lane) -> None:
        if lane.waits_for is self:
            self._memory.mailbox.withdraw(self)
            return
        self._untouched = not (lane.waits_for.asked or lane.waits_for.got)
        super()._cancel(lane)

    def _leave(self, error: BaseException | None) -> None:
        if self.number < 0:
            self._memory.end_unmatched(self.number)
            return
        assert self._record.peer is not None
        # What was not asked for may come yet: it is for the next receive, if none has been given a later one.
        back = self._untouched and self._memory.mailbox.give_back(self._record.peer, self._message)
        self._memory.end_message(self.number, self._record.peer, self._message, None if back else error)

    def _waited(self) -> list[str]:
        if self.number >= 0:
            return super()._waited()
        here = [str(peer) for peer in self._memory.peers.values() if peer.gone is None and
                self.source in (None, peer.rank)]
        return [f"a message with tag {self.tag} from {' or '.join(here)}"]


class Received(Work):
    """The Work of a receive, which knows the source."""

    def __init__(self, tensors: list[torch.Tensor], submit: Callable[[Callable[[], Any]], None],
                 record: Record) -> None:
        """As a Work; `record` is the receive's."""
        super().__init__(tensors, submit, "recv")
        self._record = record

    def source_rank(self) -> int:
        """The rank of the group that the message is from; wait for it first. Raises RuntimeError if it is not known."""
        self.wait(timedelta(0))
        if self._record.peer is None:
            raise RuntimeError("it is not known from whom: the receive has failed")
        return self._record.peer

    _source_rank = source_rank
