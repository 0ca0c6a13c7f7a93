"""The network as a fluid: directed links, and flows over them that share the links max–min fairly.

A flow is one direction of one TCP connection, or of several that share what they move: while it has bytes to move, it
moves them at its max–min fair rate, by its weight (:class:`~emulator.sim.flow.Flow`). Rates are worked out anew when a
flow starts or ends, once an instant, after everything that happens in that instant, and only where that changes
something (:mod:`~emulator.sim.reshare`).

**Links are token buckets**, as kernel HTB classes are (tc-htb(8): ``rate`` and ``burst``): one that was idle lets
`burst` bytes through at once before it holds flows to its rate. What starts to move goes at once as far as all of its
links have tokens, for a class of HTB borrows from those above it; the wire's own speed is left out.

**Packets** are what a sender's segmentation offload makes: several segments that stay together up to the receiver.
TCP makes them 2 ms of its rate long, two segments at least and 64 KiB at most (:func:`~emulator.sim.flow.packet`).

**Acknowledgements** go the other way: a frame without payload for each packet, also when the connection has data to
send there, because behind a rate limit it is not the arrival of a packet that makes data leave. Counted in a probe that
moved bytes over one connection, one way and both ways at once: 1,036 frames for 2,072 segments at 0.7 MB/s, and 1,036
for 41,437 at 30 MB/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

from simpy import Environment, Event
from simpy.events import EventPriority

from emulator.sim.fair import share
from emulator.sim.flow import ACK_MOST, Flow, Link, acknowledgements, weigh
from emulator.sim.reshare import reshare

ACK_TINY = 1e-6
"""Acknowledgements whose change is less than this part of a link change nothing."""

ACK_TURNS = 20
"""Rates make acknowledgements, and what these take of links makes rates. Acknowledgements are a fiftieth of what they
acknowledge, so going back and forth gains almost two digits a turn; this many are never needed."""

_NORMAL = EventPriority(1)
_LAST = EventPriority(2)  # after all that SimPy schedules for an instant, which is URGENT (0) or NORMAL (1)
_ROUNDING = 1e-12  # seconds, and part of a point in time or a rate: what is due so little later is due now


class Network:
    """Moves the bytes of flows in the virtual time of `env`.

    `acks` is how many bytes per second of acknowledgements a flow of some rate on the wire has.
    """

    def __init__(self, env: Environment, acks: Callable[[float], float] = acknowledgements) -> None:
        self.env = env
        self._acks = acks
        self._starting: list[Callable[[], object]] = []
        self._started: list[Flow] = []
        self._changed: dict[Link, None] = {}
        self._fresh: dict[Flow, None] = {}  # moving flows that have no rate yet, or another weight than before
        self._solving = False
        self._due: list[tuple[float, int, Flow]] = []  # a heap; what has another `due` by now does not count
        self._count = 0
        self._alarm: Event | None = None  # at which _ring looks for what is due
        self._alarm_at = math.inf

    def start(self, begin: Callable[[], object]) -> None:
        """Call `begin`, which may move flows, when all else that happens in this instant has happened."""
        self._starting.append(begin)
        self._solve_at_last()

    def move(self, flow: Flow, nbytes: float, done: Callable[[], object]) -> None:
        """Start to move `nbytes` over an idle flow; `done` is called when the last byte has left.

        Raises ValueError if the flow is not idle.
        """
        if flow.done is not None:
            raise ValueError(f"{flow.left} bytes of this flow are still under way")
        flow.left, flow.done = nbytes, done
        self._started.append(flow)
        self._solve_at_last()

    def shorten(self, flow: Flow, keep: float) -> float:
        """Let a moving flow end after `keep` more bytes at most; returns how many bytes were taken off."""
        flow.settle(self.env.now)
        taken = max(0.0, flow.left - keep)
        if taken:
            flow.left = keep
            if flow.rate:
                self._expect(flow)
                self._set_alarm()
        return taken

    def change(self, link: Link, rate: float, burst: float) -> None:
        """Give a link another rate and burst; what crosses it goes on."""
        link.settle(self.env.now)
        idle = link.tokens >= link.burst
        link.rate, link.burst, link.tokens = rate, burst, burst if idle else min(link.tokens, burst)
        self._changed[link] = None
        self._solve_at_last()

    def fire(self, event: Event, delay: float) -> None:
        """Let an event happen `delay` seconds from now."""
        event._ok, event._value = True, None  # triggered, as SimPy's Timeout does it, to be scheduled by hand
        self.env.schedule(event, _NORMAL, delay)

    def _solve_at_last(self) -> None:
        if not self._solving:
            self._solving = True
            self._schedule(self._solve, 0.0, _LAST)

    def _schedule(self, callback: Callable[[Event], None], delay: float, priority: EventPriority) -> Event:
        event = Event(self.env)
        event.callbacks.append(callback)
        event._ok, event._value = True, None
        self.env.schedule(event, priority, delay)
        return event

    def _solve(self, _: Event) -> None:
        while self._starting or self._started:
            starting, self._starting = self._starting, []
            for begin in starting:
                begin()
            started, self._started = self._started, []
            self._burst(started)
        self._solving = False
        now = self.env.now
        changed, self._changed = self._changed, {}
        fresh, self._fresh = self._fresh, {}
        for link in changed:
            self._acks_change(link)
        anew: dict[Flow, None] = {}  # flows that get another rate
        for _turn in range(ACK_TURNS):
            back: dict[Link, None] = {}
            for flow, (rate, bottleneck) in reshare(changed, fresh).items():
                assert bottleneck is not None
                if bottleneck is not flow.bottleneck:
                    if flow.bottleneck is not None:
                        flow.bottleneck.holding -= 1
                    bottleneck.holding += 1
                    flow.bottleneck = bottleneck
                bottleneck.level = rate / flow.weight
                if abs(rate - flow.rate) > _ROUNDING * rate:
                    flow.settle(now)
                    for link in flow.links:
                        link.settle(now)
                        link.used += rate - flow.rate
                    flow.rate = rate
                    anew[flow] = None
                    self._acknowledge(flow, self._acks(rate), back)
            fresh = {}
            changed = {link: None for link in back if self._acks_change(link)}
            if not changed:
                break
        for flow in anew:
            self._expect(flow)
        self._set_alarm()

    def _burst(self, flows: list[Flow]) -> None:
        """Let flows that start go as far as tokens let them go at once, which they share fairly; admit the others."""
        now = self.env.now
        wanting: dict[Link, int] = {}
        for flow in flows:
            flow.since = now
            for link in flow.links:
                link.settle(now)
                wanting[link] = wanting.get(link, 0) + 1
        together: dict[Flow, tuple[Link | Flow, ...]] = {}
        bursts: dict[Flow, float] = {}
        for flow in flows:
            burst = flow.left
            for link in flow.links:
                burst = min(burst, link.tokens)
                if wanting[link] > 1:
                    together[flow] = *flow.links, flow  # no more than the flow itself moves
                    break
            bursts[flow] = burst
        if together:
            tokens: dict[Link | Flow, float] = {link: link.tokens for link in wanting}
            bursts.update(share(together, tokens | {flow: flow.left for flow in together}))
        for flow, burst in bursts.items():
            flow.left -= burst
            for link in flow.links:
                link.tokens = max(0.0, link.tokens - burst)
            if flow.left <= 0.0:
                done, flow.done = flow.done, None
                assert done is not None
                done()
                continue
            for link in flow.links:
                link.flows[flow] = None
                self._changed[link] = None
            for link in flow.back:
                link.backs += 1
            self._fresh[flow] = None
            if flow.beside is not None:
                flow.beside[flow] = None
                self._weigh(flow.beside)

    def _weigh(self, beside: dict[Flow, None]) -> None:
        weigh(beside)
        self._fresh.update(beside)

    def _acknowledge(self, flow: Flow, acks: float, back: dict[Link, None]) -> None:
        """Let the acknowledgements of a flow be so many bytes per second; `back` gets the links they cross."""
        if acks != flow.acks:
            for link in flow.back:
                # All of them are gone with the last flow, rounding included.
                link.acknowledging = link.acknowledging + acks - flow.acks if link.backs else 0.0
                back[link] = None
            flow.acks = acks

    def _acks_change(self, link: Link) -> bool:
        """Let acknowledgements take what they now need of a link; returns whether this concerns flows."""
        acks = min(ACK_MOST * link.rate, link.acknowledging)
        if abs(acks - link.acks) <= ACK_TINY * link.rate and link.room == link.rate - link.acks:
            return False
        link.settle(self.env.now)
        link.acks = acks
        link.room = link.rate - acks
        return bool(link.flows)

    def _expect(self, flow: Flow) -> None:
        """Note when a flow will end at the rate that it has."""
        flow.due = self.env.now + flow.left / flow.rate
        self._count += 1
        heappush(self._due, (flow.due, self._count, flow))

    def _set_alarm(self) -> None:
        due = self._due
        while due and due[0][2].due != due[0][0]:
            heappop(due)
        if due and due[0][0] < self._alarm_at:
            self._alarm_at = due[0][0]
            self._alarm = self._schedule(self._ring, max(0.0, self._alarm_at - self.env.now), _NORMAL)

    def _ring(self, alarm: Event) -> None:
        """End what is due. It may be nothing: things may have slowed down since the alarm was set."""
        if alarm is not self._alarm:
            return  # one was set for an earlier time
        self._alarm_at = math.inf
        limit = self.env.now + _ROUNDING * (1 + self.env.now)
        due = self._due
        while due and due[0][0] <= limit:
            at, _, flow = heappop(due)
            if at == flow.due:
                self._end(flow)
        self._set_alarm()

    def _end(self, flow: Flow) -> None:
        done, flow.done, flow.due = flow.done, None, math.inf
        if flow.bottleneck is not None:
            flow.bottleneck.holding -= 1
            flow.bottleneck = None
        for link in flow.links:
            link.settle(self.env.now)
            del link.flows[flow]
            link.used = link.used - flow.rate if link.flows else 0.0  # rounding is gone with the last flow
            self._changed[link] = None
        for link in flow.back:
            link.backs -= 1
        flow.left = flow.rate = 0.0
        self._acknowledge(flow, 0.0, self._changed)
        if flow.beside is not None:
            del flow.beside[flow]
            self._fresh.pop(flow, None)
            self._weigh(flow.beside)
        self._solve_at_last()
        assert done is not None
        done()
