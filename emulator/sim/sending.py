"""How a Send and the Receive that it meets become messages: plainly, or with Gloo's handshake.

The n-th Send from a to b meets the n-th Receive of b from a in the same round.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

from simpy import Environment, Event

from emulator.sim.connection import Message
from emulator.sim.rank import FRAME_HEADER, Rank


class Meeting:
    """One Send and its Receive."""

    __slots__ = ("data", "welcome")

    def __init__(self, env: Environment) -> None:
        self.welcome = env.event()
        """The sender knows that the receiver is ready."""
        self.data = env.event()
        """The payload is on its way; the value is its message."""


class Plain:
    """A Send is one message, at once: a frame's header and the payload."""

    header = FRAME_HEADER

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._meetings: defaultdict[tuple[int, ...], Meeting] = defaultdict(lambda: Meeting(env))
        self._counts: Counter[tuple[str, int, int, int]] = Counter()

    def send(self, sender: Rank, to: int, number: int, nbytes: int) -> Generator[Event, Any, None]:
        """Send in round `number`; returns when the last byte has left."""
        meeting = self._meet("send", number, sender.rank, to)
        message = sender.channel(to).send(self.header + nbytes)
        meeting.data.succeed(message)
        yield message.left

    def receive(self, receiver: Rank, source: int, number: int) -> Generator[Event, Any, Message]:
        """Receive in round `number`; returns the message when it is on its way."""
        message: Message = yield self._meet("receive", number, source, receiver.rank).data
        return message

    def _meet(self, side: str, number: int, source: int, to: int) -> Meeting:
        """The next meeting of a direction in a round, counted for each side apart."""
        counter = (side, number, source, to)
        self._counts[counter] += 1
        return self._meetings[number, source, to, self._counts[counter]]


class Handshake(Plain):
    """Gloo's TCP transport: a receiver's notice must have come before the payload leaves.

    A posted Send says so in 48 bytes, a posted Receive in 48 bytes the other way; the payload follows behind 48 bytes
    of header once the Send is posted and the Receive's notice is there. All wait their turn on the connection.
    """

    header = 48

    def send(self, sender: Rank, to: int, number: int, nbytes: int) -> Generator[Event, Any, None]:
        """Send in round `number`, when the receiver is ready; returns when the last byte has left.

        Gloo returns as soon as the kernel has taken that byte. In its ring this makes no difference: a step waits for
        its Receive as well, and the link is kept busy by the step that was posted behind it.
        """
        meeting = self._meet("send", number, sender.rank, to)
        sender.channel(to).send(self.header)
        yield meeting.welcome
        message = sender.channel(to).send(self.header + nbytes)
        meeting.data.succeed(message)
        yield message.left

    def receive(self, receiver: Rank, source: int, number: int) -> Generator[Event, Any, Message]:
        """Receive in round `number`; returns the message when it is on its way."""
        meeting = self._meet("receive", number, source, receiver.rank)
        notice = receiver.channel(source).send(self.header)
        notice.arrived.callbacks.append(meeting.welcome.trigger)
        message: Message = yield meeting.data
        return message
