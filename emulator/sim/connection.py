"""TCP connections between ranks, over the links of a topology.

Two ranks share one full-duplex connection, as in both backends. Each direction of it is a :class:`Channel`: messages
leave one after the other, each a fluid flow; a message's first byte arrives one one-way delay after it has left, and
its last byte one delay after *that* has left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from simpy import Environment, Event

from emulator.ethernet import FRAME, HEADERS, SEGMENT, burst
from emulator.sim.flow import Flow, Link, packet
from emulator.sim.network import Network
from emulator.topology import Group, Topology

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
    """Of the cell that it carries, or asks for; of a notice, how many bytes are ready to be sent or received."""


class Sent(NamedTuple):
    """A message, as one sees it who watches the wire: when its first byte left, and on which way."""

    seconds: float
    source: int
    target: int
    what: What


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
    which grows by what is acknowledged. Nothing is ever lost, so that it ends only by no longer being the limit.
    """

    __slots__ = ("_began", "_bulk", "_busy", "_congestion", "_flow", "_flying", "_leaving", "_moved", "_network",
                 "_urgent", "_window", "delay", "env", "messages", "round_trip", "watch")

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
        self._urgent: list[Message] = []  # lists: a deque takes 600 bytes, and there may be a million channels
        self._bulk: list[Message] = []
        self._busy = False
        self._leaving: Message | None = None
        self._moved = 0.0
        """Wire bytes of the message that is leaving which the flow has been given."""
        self._began = 0.0
        self._window = math.inf if window is None else wire_bytes(window)
        self._congestion = wire_bytes(INITIAL_WINDOW) if cold else math.inf
        self._flying: list[tuple[float, float]] = []
        """When what is not acknowledged began to leave, and its wire bytes."""

    def send(self, nbytes: int, urgent: bool = False, what: What | None = None) -> Message:
        """Queue a message of `nbytes` bytes of TCP payload."""
        message = Message(self.env, nbytes, what)
        self.messages += 1
        (self._urgent if urgent else self._bulk).append(message)
        if not self._busy:
            self._busy = True
            self._network.start(self._go_on)
        elif urgent and self._bulk and self._leaving is self._bulk[0]:
            self._moved -= self._network.shorten(self._flow, KERNEL_BUFFER)
        return message

    def _go_on(self) -> None:
        """Let the next bytes leave, or wait until the windows let them."""
        if not (self._urgent or self._bulk):
            self._busy = False
            return
        message = (self._urgent or self._bulk)[0]
        allowed = self._allowed(min(FRAME, message.unsent))
        if allowed is None:
            self.env.timeout(self._flying[0][0] + self.round_trip - self.env.now).callbacks.append(
                lambda _: self._network.start(self._go_on))
            return
        if message.first is None:
            message.first = self.env.now + self.delay
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
            self._network.fire(message.arrived, self.delay)
        self._network.start(self._go_on)


class Connections:
    """The connections of ranks on hosts: rank i runs on ``hosts[i]``; ranks on one host do without a network.

    A path's delay is taken as constant, jitter left out, and queues never overflow. Raises ValueError for a path that
    loses packets.
    """

    def __init__(self, env: Environment, topology: Topology, hosts: Sequence[str], cold: bool = False) -> None:
        taking_part = set(hosts)
        for path in topology.paths:
            if path.loss and path.source in taking_part and path.target in taking_part:
                raise ValueError(f"{topology.file}:{path.line}: path {path.source} -> {path.target} loses "
                                 f"{path.loss:%} of its packets, which the simulator does not know yet; predict "
                                 "without loss")
        self.env = env
        self.network = Network(env)
        self._hosts = tuple(hosts)
        self._cold = cold
        self.log: list[Sent] | None = None
        """Made a list before the first message, it gets every one of them, in the order in which they leave."""
        self._access = {host.name: (host.up, host.down) for host in topology.hosts}
        self._paths = {(path.source, path.target): path for path in topology.paths}
        self._groups: dict[tuple[str, str], list[Group]] = {}
        for group in topology.groups:
            for pair in group.paths:
                self._groups.setdefault(pair, []).append(group)
        self._links: dict[tuple[str, ...], Link] = {}
        self._channels: dict[tuple[int, int], Channel] = {}

    def channel(self, source: int, target: int) -> Channel:
        """Return the direction from one rank to another of their connection."""
        if (source, target) not in self._channels:
            self._connect(source, target)
        return self._channels[source, target]

    def messages(self) -> list[int]:
        """How many messages each rank has sent."""
        sent = [0] * len(self._hosts)
        for (source, _), channel in self._channels.items():
            sent[source] += channel.messages
        return sent

    def _note(self, source: int, target: int, message: Message) -> None:
        if self.log is not None and message.what is not None:
            self.log.append(Sent(self.env.now, source, target, message.what))

    def _connect(self, a: int, b: int) -> None:
        there, back = (self._hosts[a], self._hosts[b]), (self._hosts[b], self._hosts[a])
        if there == back:
            pair = [Channel(self.network, Flow([]), 0.0, 0.0, None, self._cold) for _ in range(2)]
        else:
            limits, path = [self._limits(*there), self._limits(*back)], [self._paths[there], self._paths[back]]
            round_trip = path[0].delay + path[1].delay
            pair = [Channel(self.network, Flow(limits[i], limits[1 - i]), path[i].delay, round_trip, path[i].window,
                            self._cold) for i in range(2)]
        self._channels[a, b], self._channels[b, a] = pair
        if self.log is not None:
            for source, target in ((a, b), (b, a)):
                self._channels[source, target].watch = partial(self._note, source, target)

    def _limits(self, source: str, target: str) -> list[Link]:
        """The links that limit the way from one host to another."""
        pair = source, target
        rates = [(("path", *pair), self._paths[pair].rate), (("up", source), self._access[source][0]),
                 (("down", target), self._access[target][1])]
        rates += [(("group", group.name), group.rate) for group in self._groups.get(pair, ())]
        return [self._link(name, rate) for name, rate in rates if rate is not None]

    def _link(self, name: tuple[str, ...], rate: float) -> Link:
        if name not in self._links:
            self._links[name] = Link(" ".join(name), rate, head_start(rate))
        return self._links[name]
