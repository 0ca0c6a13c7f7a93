"""TCP connections between ranks, over the links of a topology.

Two ranks share one full-duplex connection, as in both backends. Each direction of it is a :class:`Channel`: messages
leave one after the other, each a fluid flow; a message's first byte arrives one one-way delay after it has left, and
its last byte one delay after *that* has left.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from simpy import Environment, Event

from emulator.ethernet import FRAME, HEADERS, SEGMENT, burst
from emulator.sim.network import Flow, Link, Network, packet
from emulator.topology import Topology

KERNEL_BUFFER = 128 * 1024
"""Bytes of a bulk message that an urgent one cannot overtake: what the backend lets the kernel keep unsent."""

INITIAL_WINDOW = 10 * SEGMENT
"""Payload bytes that a new connection may have in flight: 10 segments (RFC 6928)."""

_ROUNDING = 1e-12  # seconds


def wire_bytes(payload: float) -> float:
    """Bytes on an Ethernet device of a message: its payload, and headers for each segment."""
    return payload + HEADERS * math.ceil(payload / SEGMENT)


def head_start(rate: float) -> float:
    """Bytes that an idle HTB class lets through at once.

    That is its ``burst``, and the last packet of a message: while it owes nothing it lets a whole packet go. The last
    one may be anything up to a full packet; half of one here.
    """
    return burst(rate) + packet(rate) / 2 * FRAME


class What(NamedTuple):
    """What a message is, for those who look at the wire."""

    kind: str
    """In the words of the wire's own format."""
    number: int
    """The round that it belongs to."""
    payload: int
    """Bytes, without any header."""
    name: tuple[str | int, ...] = ()
    """Of the cell that it carries, or asks for."""


class Sent(NamedTuple):
    """A message, as one sees it who watches the wire: when its first byte left, and on which way."""

    seconds: float
    source: int
    target: int
    what: What


class Message:
    """Some bytes on their way through a channel, and when they get anywhere."""

    __slots__ = ("arrived", "begun", "first", "left", "unsent", "what")

    def __init__(self, env: Environment, nbytes: int, what: What | None = None) -> None:
        self.what = what
        self.unsent = wire_bytes(nbytes)
        self.begun = False
        self.first: Event = env.event()
        """Its first byte has arrived."""
        self.left: Event = env.event()
        """Its last byte has left, so its memory may be reused."""
        self.arrived: Event = env.event()
        """Its last byte has arrived."""


class Channel:
    """One direction of a connection: a queue of messages, `delay` seconds from end to end.

    Urgent messages go ahead of those that are not, and of the rest of one that is leaving, but for what the kernel
    has of it. At most `window` bytes of payload may be in flight: what leaves together is acknowledged together, a
    `round_trip` after it began to leave. A `cold` connection has slow start (RFC 5681) too: a window of ten segments,
    which grows by what is acknowledged. Nothing is ever lost, so that it ends only by no longer being the limit.
    """

    def __init__(self, network: Network, flow: Flow, delay: float, round_trip: float, window: int | None = None,
                 cold: bool = False) -> None:
        self.env = network.env
        self.delay = delay
        self.round_trip = round_trip
        self.messages = 0
        """How many were sent."""
        self.watch: Callable[[Message], None] | None = None
        """Called with every message when its first byte leaves."""
        self._network = network
        self._flow = flow
        self._urgent: deque[Message] = deque()
        self._bulk: deque[Message] = deque()
        self._leaving: Message | None = None
        self._moved = 0.0
        """Wire bytes of the message that is leaving which the flow has been given."""
        self._wake: Event | None = None
        self._window = math.inf if window is None else wire_bytes(window)
        self._congestion = wire_bytes(INITIAL_WINDOW) if cold else math.inf
        self._flying: deque[tuple[float, float]] = deque()
        """When what is not acknowledged began to leave, and its wire bytes."""
        self.env.process(self._run())

    def send(self, nbytes: int, urgent: bool = False, what: What | None = None) -> Message:
        """Queue a message of `nbytes` bytes of TCP payload."""
        message = Message(self.env, nbytes, what)
        self.messages += 1
        (self._urgent if urgent else self._bulk).append(message)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        elif urgent and self._leaving is not None:
            self._moved -= self._network.shorten(self._flow, KERNEL_BUFFER)
        return message

    def _run(self) -> Generator[Event, Any, None]:
        while True:
            if not (self._urgent or self._bulk):
                self._wake = self.env.event()
                yield self._wake
            allowed = yield from self._allowed()
            queue = self._urgent or self._bulk  # after waiting: an urgent message may have come
            message = queue[0]
            if not message.begun:
                message.begun = True
                if self.watch is not None:
                    self.watch(message)
                self._announce(message.first)
            if queue is self._bulk:
                self._leaving = message
            self._moved = min(message.unsent, allowed)
            began = self.env.now
            yield self._network.move(self._flow, self._moved)
            self._leaving = None
            if allowed < math.inf:
                self._flying.append((began, self._moved))
            message.unsent -= self._moved
            if message.unsent <= 0:
                queue.popleft()
                message.left.succeed()
                self._announce(message.arrived)

    def _allowed(self) -> Generator[Event, Any, float]:
        """Wait until the windows let a whole segment leave, or a message's end; returns how many wire bytes."""
        least = min(FRAME, (self._urgent or self._bulk)[0].unsent)
        while True:
            while self._flying and self._flying[0][0] + self.round_trip <= self.env.now + _ROUNDING:
                self._congestion += self._flying.popleft()[1]
            allowed = min(self._congestion, self._window) - sum(nbytes for _, nbytes in self._flying)
            if allowed >= least or not self._flying:
                return allowed
            yield self.env.timeout(self._flying[0][0] + self.round_trip - self.env.now)

    def _announce(self, event: Event) -> None:
        """Let `event` happen when what leaves now arrives."""
        self.env.timeout(self.delay).callbacks.append(event.trigger)


class Connections:
    """The connections of ranks on hosts: rank i runs on ``hosts[i]``; ranks on one host do without a network.

    A path's delay is taken as constant, jitter left out, and queues never overflow. Raises ValueError for a path that
    loses packets.
    """

    def __init__(self, env: Environment, topology: Topology, hosts: Sequence[str], cold: bool = False) -> None:
        for source, target in {(a, b): None for a in hosts for b in hosts if a != b}:
            path = topology.path(source, target)
            if path.loss:
                raise ValueError(f"{topology.file}:{path.line}: path {source} -> {target} loses {path.loss:%} of its "
                                 "packets, which the simulator does not know yet; predict without loss")
        self.env = env
        self.network = Network(env)
        self._topology = topology
        self._hosts = tuple(hosts)
        self._cold = cold
        self.log: list[Sent] | None = None
        """Made a list before the first message, it gets every one of them, in the order in which they leave."""
        self._links: dict[tuple[str, ...], Link] = {}
        self._channels: dict[tuple[int, int], Channel] = {}

    def channel(self, source: int, target: int) -> Channel:
        """Return the direction from one rank to another of their connection."""
        if (source, target) not in self._channels:
            self._connect(source, target)
        return self._channels[source, target]

    def messages(self, source: int) -> int:
        """How many messages a rank has sent."""
        return sum(channel.messages for (rank, _), channel in self._channels.items() if rank == source)

    def _connect(self, a: int, b: int) -> None:
        round_trip = self._delay(a, b) + self._delay(b, a)
        for source, target in ((a, b), (b, a)):
            flow = Flow(self._limits(source, target), self._limits(target, source))
            self._channels[source, target] = Channel(self.network, flow, self._delay(source, target), round_trip,
                                                     self._window(source, target), self._cold)
            if self.log is not None:
                self._channels[source, target].watch = partial(self._note, source, target)

    def _note(self, source: int, target: int, message: Message) -> None:
        if self.log is not None and message.what is not None:
            self.log.append(Sent(self.env.now, source, target, message.what))

    def _delay(self, a: int, b: int) -> float:
        source, target = self._hosts[a], self._hosts[b]
        return 0.0 if source == target else self._topology.path(source, target).delay

    def _limits(self, a: int, b: int) -> list[Link]:
        """The links that limit the way from rank a to rank b."""
        source, target = self._hosts[a], self._hosts[b]
        if source == target:
            return []
        path = self._topology.path(source, target)
        rates = {("path", source, target): path.rate, ("up", source): self._topology.host(source).up,
                 ("down", target): self._topology.host(target).down}
        rates |= {("group", group.name): group.rate for group in self._topology.groups
                  if (source, target) in group.paths}
        return [self._link(name, rate) for name, rate in rates.items() if rate is not None]

    def _window(self, a: int, b: int) -> int | None:
        source, target = self._hosts[a], self._hosts[b]
        return None if source == target else self._topology.path(source, target).window

    def _link(self, name: tuple[str, ...], rate: float) -> Link:
        if name not in self._links:
            self._links[name] = Link(" ".join(name), rate, head_start(rate))
        return self._links[name]
