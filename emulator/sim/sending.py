"""How a Send and the Receive that it meets become messages: plainly, or with Gloo's handshake.

The n-th Send of a kind from a to b meets the n-th Receive of that kind of b from a in the same round.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

from simpy import Environment, Event

from emulator.sim.channel import Message, What
from emulator.sim.rank import FRAME_HEADER, Rank
from frogtorch.collectives.interest import FRAME_BYTES
from frogtorch.effects import Receive, Send

PREAMBLE = 48
"""Bytes in front of each of Gloo's messages."""


class Meeting:
    """One Send and its Receive."""

    __slots__ = ("data", "welcome")

    def __init__(self, env: Environment) -> None:
        self.welcome = env.event()
        """The sender knows that the receiver is ready."""
        self.data = env.event()
        """The payload is on its way; the value is its message."""


class Plain:
    """A Send is one message, at once: the payload in frames, each with its header. As the backend does it."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._meetings: defaultdict[tuple[object, ...], Meeting] = defaultdict(lambda: Meeting(env))
        self._counts: Counter[tuple[object, ...]] = Counter()

    def send(self, sender: Rank, number: int, effect: Send) -> Generator[Event, Any, None]:
        """Send in round `number`; returns when the last byte has left."""
        index, meeting = self._meet("send", number, sender.rank, effect.to, effect.kind)
        nbytes = effect.region.nbytes
        frames = max(1, -(-nbytes // FRAME_BYTES))
        message = sender.send(effect.to, frames * FRAME_HEADER + nbytes,
                              what=What("DATA", number, nbytes, (effect.kind, index)))
        meeting.data.succeed(message)
        yield message.left

    def receive(self, receiver: Rank, number: int, effect: Receive) -> Generator[Event, Any, Message]:
        """Receive in round `number`; returns the message when it is on its way."""
        _, meeting = self._meet("receive", number, effect.source, receiver.rank, effect.kind)
        message: Message = yield meeting.data
        return message

    def _meet(self, side: str, number: int, source: int, to: int, kind: str) -> tuple[int, Meeting]:
        """The next meeting of a kind and direction in a round, and which it is, counted for each side apart."""
        counter = (side, number, source, to, kind)
        index = self._counts[counter]
        self._counts[counter] += 1
        return index, self._meetings[number, source, to, kind, index]


class Handshake(Plain):
    """Gloo's TCP transport: a receiver's notice must have come before the payload leaves.

    A posted Send says so in 48 bytes, a posted Receive in 48 bytes the other way; the payload follows behind 48 bytes
    of header once the Send is posted and the Receive's notice is there. All wait their turn on the connection.
    """

    def send(self, sender: Rank, number: int, effect: Send) -> Generator[Event, Any, None]:
        """Send in round `number`, when the receiver is ready; returns when the last byte has left.

        Gloo returns as soon as the kernel has taken that byte. In its ring this makes no difference: a step waits for
        its Receive as well, and the link is kept busy by the step that was posted behind it.
        """
        _, meeting = self._meet("send", number, sender.rank, effect.to, effect.kind)
        channel, nbytes = sender.channel(effect.to), effect.region.nbytes
        channel.send(PREAMBLE, what=What("SEND_READY", number, 0, (nbytes,)))
        yield meeting.welcome
        message = sender.send(effect.to, PREAMBLE + nbytes, what=What("DATA", number, nbytes))
        meeting.data.succeed(message)
        yield message.left

    def receive(self, receiver: Rank, number: int, effect: Receive) -> Generator[Event, Any, Message]:
        """Receive in round `number`; returns the message when it is on its way."""
        _, meeting = self._meet("receive", number, effect.source, receiver.rank, effect.kind)
        notice = receiver.channel(effect.source).send(PREAMBLE, what=What("RECEIVE_READY", number, 0,
                                                                          (effect.into.nbytes,)))
        notice.arrived.callbacks.append(meeting.welcome.trigger)
        message: Message = yield meeting.data
        return message
