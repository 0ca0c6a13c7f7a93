"""TCP connections between ranks, over the links of a topology.

Two ranks share one full-duplex connection, as in both backends. Each direction of it is a :class:`Channel`: messages
leave one after the other, each a fluid flow; a message's first byte arrives one one-way delay after it has left, and
its last byte one delay after *that* has left.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from simpy import Environment, Event

from emulator.sim.network import FRAME, HEADERS, SEGMENT, Flow, Link, Network, packet
from emulator.topology import Topology

BURST_SECONDS, BURST_FRAMES = 1e-3, 2
"""The ``burst`` that the link engines give their HTB classes: a millisecond of the rate, at least two frames."""

KERNEL_BUFFER = 128 * 1024
"""Bytes of a bulk message that an urgent one cannot overtake: what the backend lets the kernel keep unsent."""

INITIAL_WINDOW = 10 * SEGMENT
"""Payload bytes that a new connection may have in flight: 10 segments (RFC 6928)."""


def wire_bytes(payload: float) -> float:
    """Bytes on an Ethernet device of a message: its payload, and headers for each segment."""
    return payload + HEADERS * math.ceil(payload / SEGMENT)


def burst(rate: float) -> float:
    """Bytes that an idle HTB class lets through at once.

    That is its ``burst``, and the last packet of a message: while it owes nothing it lets a whole packet go. The last
    one may be anything up to a full packet; half of one here.
    """
    return max(BURST_FRAMES * FRAME, BURST_SECONDS * rate) + packet(rate) / 2 * FRAME


class Message:
    """Some bytes on their way through a channel, and when they get anywhere."""

    __slots__ = ("arrived", "begun", "first", "left", "unsent")

    def __init__(self, env: Environment, nbytes: int) -> None:
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
    has of it. `round_trip` seconds long rounds of slow start come first if the connection is `cold`: ten segments,
    then twice as many each round, until a round's bytes take longer than the round.
    """

    def __init__(self, network: Network, flow: Flow, delay: float, round_trip: float, cold: bool = False) -> None:
        self.env = network.env
        self.delay = delay
        self.round_trip = round_trip
        self.messages = 0
        """How many were sent."""
        self._network = network
        self._flow = flow
        self._urgent: deque[Message] = deque()
        self._bulk: deque[Message] = deque()
        self._leaving: Message | None = None
        self._moved = 0.0
        """Wire bytes of the message that is leaving which the flow has been given."""
        self._wake: Event | None = None
        self._window = wire_bytes(INITIAL_WINDOW) if cold else math.inf
        self.env.process(self._run())

    def send(self, nbytes: int, urgent: bool = False) -> Message:
        """Queue a message of `nbytes` bytes of TCP payload."""
        message = Message(self.env, nbytes)
        self.messages += 1
        (self._urgent if urgent else self._bulk).append(message)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        elif urgent and self._leaving is not None:
            self._moved -= self._network.shorten(self._flow, KERNEL_BUFFER)
        return message

    def _run(self) -> Generator[Event, Any, None]:
        budget, began = self._window, self.env.now
        while True:
            if not (self._urgent or self._bulk):
                self._wake = self.env.event()
                yield self._wake
            if budget <= 0:
                # The window is used up. If its first acknowledgement is back already, it never was the limit.
                if self.env.now >= began + self.round_trip:
                    self._window = math.inf
                else:
                    yield self.env.timeout(began + self.round_trip - self.env.now)
                    self._window *= 2
                budget, began = self._window, self.env.now
            queue = self._urgent or self._bulk
            message = queue[0]
            if not message.begun:
                message.begun = True
                self._announce(message.first)
            if queue is self._bulk:
                self._leaving = message
            self._moved = min(message.unsent, budget)
            yield self._network.move(self._flow, self._moved)
            self._leaving = None
            budget -= self._moved
            message.unsent -= self._moved
            if message.unsent <= 0:
                queue.popleft()
                message.left.succeed()
                self._announce(message.arrived)

    def _announce(self, event: Event) -> None:
        """Let `event` happen when what leaves now arrives."""
        self.env.timeout(self.delay).callbacks.append(event.trigger)


class Connections:
    """The connections of ranks on hosts: rank i runs on ``hosts[i]``; ranks on one host do without a network."""

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
            # Acknowledgements are no part of a window, so the window back is not in their way.
            flow = Flow(self._limits(source, target) + self._window(source, target, round_trip),
                        self._limits(target, source))
            self._channels[source, target] = Channel(self.network, flow, self._delay(source, target), round_trip,
                                                     self._cold)

    def _delay(self, a: int, b: int) -> float:
        source, target = self._hosts[a], self._hosts[b]
        return 0.0 if source == target else self._topology.path(source, target).delay

    def _limits(self, a: int, b: int) -> list[Link]:
        """The links that limit the way from rank a to rank b, for all connections."""
        source, target = self._hosts[a], self._hosts[b]
        if source == target:
            return []
        path = self._topology.path(source, target)
        rates = {("path", source, target): path.rate, ("up", source): self._topology.host(source).up,
                 ("down", target): self._topology.host(target).down}
        rates |= {("group", group.name): group.rate for group in self._topology.groups
                  if (source, target) in group.paths}
        return [self._link(name, rate) for name, rate in rates.items() if rate is not None]

    def _window(self, a: int, b: int, round_trip: float) -> list[Link]:
        """The link that the window of one connection makes: W bytes in flight, then W a round trip."""
        if self._hosts[a] == self._hosts[b] or not round_trip:
            return []
        window = self._topology.path(self._hosts[a], self._hosts[b]).window
        if window is None:
            return []
        return [Link(f"window {a} -> {b}", wire_bytes(window) / round_trip, wire_bytes(window))]

    def _link(self, name: tuple[str, ...], rate: float) -> Link:
        if name not in self._links:
            self._links[name] = Link(" ".join(name), rate, burst(rate))
        return self._links[name]
