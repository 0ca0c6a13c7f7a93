"""One direction of a TCP connection: messages leave one after the other, each a fluid flow.

A message's first byte arrives one one-way delay after it has left, and its last byte one delay after *that* has left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from simpy import Environment, Event

from emulator.ethernet import FRAME, HEADERS, SEGMENT
from emulator.sim.flow import Flow, packet
from emulator.sim.law import held
from emulator.sim.network import Network

KERNEL_BUFFER = 128 * 1024
"""Bytes of a bulk message that an urgent one cannot overtake: what the backend lets the kernel keep unsent."""

INITIAL_WINDOW = 10 * SEGMENT
"""Payload bytes that a new connection may have in flight: 10 segments (RFC 6928)."""

_ROUNDING = 1e-12  # seconds


def wire_bytes(payload: float) -> float:
    """Bytes on an Ethernet device of a message: its payload, and headers for each segment."""
    return payload + HEADERS * math.ceil(payload / SEGMENT)


class What(NamedTuple):
    """What a message is, for those who look at the wire."""

    kind: str
    """In the words of the wire's own format."""
    number: int
    """The round that it belongs to."""
    payload: int
    """Bytes, without any header."""
    name: tuple[str | int, ...] = ()
    """Of the cell that it carries, or asks for; of a notice, how many bytes are ready to be sent or received."""


class Message:
    """Some bytes on their way through a channel, and when they get anywhere."""

    __slots__ = ("_left", "arrived", "env", "first", "gone", "unsent", "what")

    def __init__(self, env: Environment, nbytes: int, what: What | None = None) -> None:
        self.env = env
        self.what = what
        self.unsent = wire_bytes(nbytes)
        self.first: float | None = None
        """When its first byte arrives, once that has left."""
        self.gone = False
        """Its last byte has left, so its memory may be reused."""
        self._left: Event | None = None
        self.arrived: Event = env.event()
        """Its last byte has arrived."""

    @property
    def left(self) -> Event:
        """The event that its last byte leaves."""
        if self._left is None:
            self._left = self.env.event()
            if self.gone:
                self._left.succeed()
        return self._left

    def leave(self) -> None:
        """Its last byte leaves."""
        self.gone = True
        if self._left is not None:
            self._left.succeed()


class Channel:
    """One direction of a connection: a queue of messages, `delay` seconds from end to end.

    Urgent messages go ahead of those that are not, and of the rest of one that is leaving, but for what the kernel
    has of it. At most `window` bytes of payload may be in flight: what leaves together is acknowledged together, a
    `round_trip` after it began to leave. A `cold` connection has slow start (RFC 5681) too: a window of ten segments,
    which grows by what is acknowledged. Without loss it ends only by no longer being the limit.

    `jitter` is drawn from `random`, which it needs (:func:`emulator.sim.law.held`). Delay, round trip and jitter may be
    changed; what has left is not touched by that, but nothing overtakes it.
    """

    __slots__ = ("_arriving", "_began", "_bulk", "_busy", "_congestion", "_dark", "_flow", "_flying", "_leaving",
                 "_lost", "_moved", "_network", "_random", "_urgent", "_window", "delay", "env", "jitter", "messages",
                 "round_trip", "watch")

    def __init__(self, network: Network, flow: Flow, delay: float, round_trip: float, window: int | None = None,
                 cold: bool = False, jitter: float = 0.0, random: Random | None = None) -> None:
        self.env = network.env
        self.delay = delay
        self.round_trip = round_trip
        self.jitter = jitter
        self.messages = 0
        """How many were sent."""
        self.watch: Callable[[Message], None] | None = None
        """Called with every message when its first byte leaves."""
        self._network = network
        self._flow = flow
        self._random = random
        self._urgent: list[Message] = []  # lists: a deque takes 600 bytes, and there may be a million channels
        self._bulk: list[Message] = []
        self._busy = False
        self._leaving: Message | None = None
        self._moved = 0.0
        """Wire bytes of the message that is leaving which the flow has been given."""
        self._began = 0.0
        self._arriving = 0.0
        """When the latest of what has left arrives."""
        self._window = math.inf if window is None else wire_bytes(window)
        self._congestion = wire_bytes(INITIAL_WINDOW) if cold else math.inf
        self._flying: list[tuple[float, float]] = []
        """When what is not acknowledged began to leave, and its wire bytes."""
        self._dark = False
        """Everything that leaves is lost."""
        self._lost: float | None = None
        """When the first was."""

    def send(self, nbytes: int, urgent: bool = False, what: What | None = None, after: Event | None = None) -> Message:
        """Queue a message of `nbytes` bytes of TCP payload, at once or when `after` happens."""
        message = Message(self.env, nbytes, what)
        self.messages += 1
        if after is None:
            self._queue(message, urgent)
        else:
            after.callbacks.append(lambda _: self._queue(message, urgent))
        return message

    def _queue(self, message: Message, urgent: bool) -> None:
        (self._urgent if urgent else self._bulk).append(message)
        if not self._busy:
            self._busy = True
            self._network.start(self._go_on)
        elif urgent and self._bulk and self._leaving is self._bulk[0]:
            self._moved -= self._network.shorten(self._flow, KERNEL_BUFFER)

    def cut(self) -> None:
        """Lose everything from now on."""
        self._dark = True
        if self._leaving is not None:
            self._moved -= self._network.shorten(self._flow, 0.0)

    def join(self, least_timeout: float) -> None:
        """Lose nothing any more.

        If something was lost, it leaves again when TCP next tries: after its retransmission timeout since it was lost,
        twice that since then, and so on (RFC 6298, section 5). The timeout is a round trip and `least_timeout`, as
        Linux has it on a path whose round trips do not spread; the window begins with a segment (RFC 5681, 3.1).
        """
        self._dark = False
        if self._lost is None:
            return
        lost, self._lost = self._lost, None
        wait = self.round_trip + least_timeout
        again = lost + wait
        while again < self.env.now:
            wait *= 2
            again += wait
        self._flying.clear()
        self._congestion = FRAME
        self.env.timeout(again - self.env.now).callbacks.append(lambda _: self._network.start(self._go_on))

    def _go_on(self) -> None:
        """Let the next bytes leave, or wait until they may."""
        if not (self._urgent or self._bulk):
            self._busy = False
            return
        if self._dark:
            if self._lost is None:
                self._lost = self.env.now
            return
        message = (self._urgent or self._bulk)[0]
        allowed = self._allowed(min(FRAME, message.unsent))
        if allowed is None:
            self.env.timeout(self._flying[0][0] + self.round_trip - self.env.now).callbacks.append(
                lambda _: self._network.start(self._go_on))
            return
        if message.first is None:
            message.first = max(self._arriving, self.env.now + self._held(1, 0.0))
            if self.watch is not None:
                self.watch(message)
        self._leaving = message
        self._moved = min(message.unsent, allowed)
        self._began = self.env.now
        self._network.move(self._flow, self._moved, self._have_left)

    def _allowed(self, least: float) -> float | None:
        """How many wire bytes the windows let leave; None if fewer than a whole segment, or a message's end."""
        if self._congestion == self._window == math.inf:
            return math.inf
        while self._flying and self._flying[0][0] + self.round_trip <= self.env.now + _ROUNDING:
            self._congestion += self._flying.pop(0)[1]
        allowed = min(self._congestion, self._window) - sum(nbytes for _, nbytes in self._flying)
        return allowed if allowed >= least or not self._flying else None

    def _have_left(self) -> None:
        message = self._leaving
        assert message is not None
        self._leaving = None
        if not self._congestion == self._window == math.inf:
            self._flying.append((self._began, self._moved))
        message.unsent -= self._moved
        if message.unsent <= 0:
            queue = self._urgent if self._urgent and self._urgent[0] is message else self._bulk
            queue.pop(0)
            message.leave()
            self._announce(message)
        self._network.start(self._go_on)

    def _announce(self, message: Message) -> None:
        """Let the last byte of a message, which leaves now, arrive."""
        held = self.delay
        if self.jitter:
            took = self.env.now - self._began
            packets = math.ceil(self._moved / FRAME / packet(self._moved / took if took else math.inf))
            held = self._held(packets, took / packets)
        self._arriving = max(self._arriving, self.env.now + held)
        self._network.fire(message.arrived, self._arriving - self.env.now)

    def _held(self, packets: int, apart: float) -> float:
        if not self.jitter:
            return self.delay
        assert self._random is not None
        return held(self.delay, self.jitter, packets, apart, self._random)
