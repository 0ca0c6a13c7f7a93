"""The TCP connections between ranks, over the links of a topology.

Two ranks share one full-duplex connection, as in both backends: two channels, one for each direction.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import partial
from itertools import permutations
from random import Random
from typing import Any, NamedTuple

from simpy import Environment, Event

from emulator.ethernet import FRAME, burst
from emulator.sim.channel import Channel, Message, What, wire_bytes
from emulator.sim.flow import Flow, Link, packet
from emulator.sim.law import BETA, MOST_LOSS, least_queue, lossy_rate
from emulator.sim.network import Network
from emulator.timeline import Traffic
from emulator.topology import Path, Topology, round_trip
from emulator.units import format_loss, format_size

LEAST_TIMEOUT = 0.2
"""Seconds: the least of TCP's retransmission timeout, beyond the round trip (Linux: ``TCP_RTO_MIN``)."""

_SHORT = 1e-4  # seconds: no round trip of a law is shorter
_FREE = 1e12  # bytes per second: no limit


def head_start(rate: float, shared: bool) -> float:
    """Bytes that an idle HTB class, of one path or `shared`, lets through at once.

    That is its ``burst``, and the last packet of a message: while it owes nothing it lets a whole packet go. The last
    one may be anything up to a full packet; half of one here.
    """
    return burst(rate, shared) + packet(rate) / 2 * FRAME


class Sent(NamedTuple):
    """A message, as one sees it who watches the wire: when its first byte left, and on which way."""

    seconds: float
    source: int
    target: int
    what: What


class Connections:
    """The connections of ranks on hosts: rank i runs on ``hosts[i]``; ranks on one host do without a network.

    The network follows its topology's timeline, from second 0 on. A queue that overflows costs nothing. `least_timeout`
    is the least of TCP's retransmission timeout, in seconds. Raises ValueError for loss that no law here is for, and
    for a queue so short that it does cost.
    """

    def __init__(self, env: Environment, topology: Topology, hosts: Sequence[str], cold: bool = False,
                 least_timeout: float = LEAST_TIMEOUT) -> None:
        self.env = env
        self.network = Network(env)
        self._hosts = tuple(hosts)
        self._cold = cold
        self._least_timeout = least_timeout
        self.log: list[Sent] | None = None
        """Made a list before the first message, it gets every one of them, in the order in which they leave."""
        self._groups: dict[tuple[str, str], list[str]] = {}
        for group in topology.groups:
            for pair in group.paths:
                self._groups.setdefault(pair, []).append(group.name)
        self._links: dict[tuple[str, ...], Link] = {}
        self._laws: dict[tuple[int, int], Link] = {}
        self._channels: dict[tuple[int, int], Channel] = {}
        self._moving: dict[tuple[str, str], dict[Flow, None]] = {
            (flow.source, flow.target): {} for flow in topology.timeline.traffic}
        """By path, where there may be several flows: those that move."""
        if len(set(hosts)) < len(hosts):
            self._moving = {pair: {} for pair in permutations(hosts, 2)} | self._moving
        self._name, self._congestion = topology.name, topology.congestion
        states = [topology.state(second) for second in (0.0, *topology.timeline.moments)]
        for state in states:
            _check(state, set(hosts))
        self._lossy = {(path.source, path.target) for state in states for path in state.paths if 0 < path.loss < 1}
        self._jittery = {(path.source, path.target) for state in states for path in state.paths if path.jitter}
        self._become(states[0])
        if topology.timeline:
            env.process(self._follow(topology))
        for traffic in topology.timeline.traffic:
            env.process(self._carry(traffic))

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
            limits, paths = [self._limits(*there), self._limits(*back)], [self._paths[there], self._paths[back]]
            trip = paths[0].delay + paths[1].delay
            flows = [Flow([*limits[i], *self._law(a, b, paths[i], trip)], limits[1 - i],
                          beside=self._moving.get((paths[i].source, paths[i].target))) for i in range(2)]
            pair = [Channel(self.network, flows[i], paths[i].delay, trip, paths[i].window, self._cold, paths[i].jitter,
                            self._random(a, b, paths[i])) for i in range(2)]
            if any(path.loss == 1 for path in paths):
                for channel in pair:
                    channel.cut()
        self._channels[a, b], self._channels[b, a] = pair
        if self.log is not None:
            for source, target in ((a, b), (b, a)):
                self._channels[source, target].watch = partial(self._note, source, target)

    def _random(self, a: int, b: int, path: Path) -> Random | None:
        """The chance of a path that has jitter at some time, for the connection of these two ranks."""
        pair = path.source, path.target
        return Random(f"{self._name} {pair} {a} {b}") if pair in self._jittery else None

    def _limits(self, source: str, target: str) -> list[Link]:
        """The links that limit the way from one host to another."""
        names: list[tuple[str, ...]] = [("path", source, target), ("up", source), ("down", target)]
        names += [("group", group) for group in self._groups.get((source, target), ())]
        return [self._link(name) for name in names if name in self._rates]

    def _link(self, name: tuple[str, ...]) -> Link:
        if name not in self._links:
            self._links[name] = Link(" ".join(name), *self._limit(name))
        return self._links[name]

    def _limit(self, name: tuple[str, ...]) -> tuple[float, float]:
        """The rate of a link and its head start, as they are now: all but a path's own are shared."""
        rate = self._rates[name]
        return rate, head_start(rate, shared=name[0] != "path")

    def _law(self, a: int, b: int, path: Path, trip: float) -> list[Link]:
        """The limit that loss is to a connection from rank a to rank b; none where no packet is ever lost."""
        if (path.source, path.target) not in self._lossy:
            return []
        link = self._laws[a, b] = Link(f"loss {path.source} {path.target}", _FREE)
        self._obey(link, path, trip)
        return [link]

    def _obey(self, link: Link, path: Path, trip: float) -> None:
        """Give the limit that loss is the rate that it has at present. A window of it may leave at once."""
        if 0 < path.loss < 1:
            trip = max(trip, _SHORT)
            rate = self._lossy_rate(path, trip)
            self.network.change(link, rate, rate * trip)
        else:
            self.network.change(link, _FREE, _FREE)

    def _lossy_rate(self, path: Path, trip: float, connections: int = 1) -> float:
        """Bytes per second that loss lets so many connections have together, alone on a path."""
        limit = min((link.rate for link in self._limits(path.source, path.target)), default=math.inf) / connections
        window = math.inf if path.window is None else wire_bytes(path.window)
        return connections * lossy_rate(path.loss, trip, self._congestion, limit, window)

    def _become(self, state: Topology) -> None:
        """Let the network be as this state is."""
        self._paths = {(path.source, path.target): path for path in state.paths}
        rates: list[tuple[tuple[str, ...], float | None]] = []
        for host in state.hosts:
            rates += ((("up", host.name), host.up), (("down", host.name), host.down))
        rates += ((("group", group.name), group.rate) for group in state.groups)
        rates += ((("path", *pair), path.rate) for pair, path in self._paths.items())
        self._rates = {name: rate for name, rate in rates if rate is not None}
        for name, link in self._links.items():
            if link.rate != self._rates[name]:
                self.network.change(link, *self._limit(name))
        for (a, b), channel in self._channels.items():
            there, back = (self._hosts[a], self._hosts[b]), (self._hosts[b], self._hosts[a])
            if there != back:
                paths = self._paths[there], self._paths[back]
                channel.delay, channel.jitter = paths[0].delay, paths[0].jitter
                channel.round_trip = paths[0].delay + paths[1].delay
                if (a, b) in self._laws:
                    self._obey(self._laws[a, b], paths[0], channel.round_trip)
                if any(path.loss == 1 for path in paths):  # without acknowledgements nothing goes on either
                    channel.cut()
                else:
                    channel.join(self._least_timeout)

    def _follow(self, topology: Topology) -> Generator[Event, Any, None]:
        for second in topology.timeline.moments:
            yield self.env.timeout(second - self.env.now)
            self._become(topology.state(second))

    def _carry(self, traffic: Traffic) -> Generator[Event, Any, None]:
        """Somebody else's connection. It has its share of the links, acknowledges, and takes no notice of outages."""
        yield self.env.timeout(traffic.start)
        path, back = self._paths[traffic.source, traffic.target], self._paths[traffic.target, traffic.source]
        trip = max(path.delay + back.delay, _SHORT)
        rates = [traffic.rate or _FREE]
        if path.window is not None:
            rates.append(traffic.connections * wire_bytes(path.window) / trip)
        if 0 < path.loss < 1:
            rates.append(self._lossy_rate(path, trip, traffic.connections))
        own = Link(f"traffic {traffic.source} {traffic.target}", min(rates), math.inf)
        flow = Flow([*self._limits(traffic.source, traffic.target), own], self._limits(traffic.target, traffic.source),
                    traffic.connections, self._moving[traffic.source, traffic.target])
        self.network.move(flow, math.inf, lambda: None)
        yield self.env.timeout(traffic.end - traffic.start)
        self.network.shorten(flow, 0.0)


def _check(state: Topology, hosts: set[str]) -> None:
    for path in state.paths:
        if not (path.loss or path.queue) or path.source not in hosts or path.target not in hosts:
            continue
        where = f"{state.file}:{path.line}: path {path.source} -> {path.target}"
        if 0 < path.loss < 1:
            if path.loss > MOST_LOSS:
                raise ValueError(f"{where} loses {format_loss(path.loss)} of its packets, where timeouts rule and no "
                                 f"prediction holds; the simulator knows up to {format_loss(MOST_LOSS)}")
            if state.congestion not in BETA:
                raise ValueError(f"{where} loses packets, and the simulator knows no rate of {state.congestion} under "
                                 f"loss, only of {' and '.join(BETA)}")
        if path.queue is not None and path.rate is not None and state.congestion in BETA:
            trip = round_trip(state, path)
            least = least_queue(path.rate, trip, state.congestion)
            if path.queue < least and (path.window is None or path.window > path.rate * trip + path.queue):
                raise ValueError(f"{where} has a queue of {format_size(path.queue)}, with which {state.congestion} "
                                 "leaves it idle after each loss, and the simulator does not know for how long; give "
                                 f"it {format_size(math.ceil(least))} or more, or none, to let the engine choose")
