"""The network as a fluid: directed links, and flows over them that share the links max–min fairly.

A flow is one direction of one TCP connection: while it has bytes to move, it moves them at its max–min fair rate.
Rates are worked out anew when a flow starts or ends, once an instant, after everything that happens in that instant,
and only where that changes something (:mod:`~emulator.sim.reshare`).

**Links are token buckets**, as kernel HTB classes are (tc-htb(8): ``rate`` and ``burst``): one that was idle lets
`burst` bytes through at the speed of the wire before it holds flows to its rate.

**Packets** are what a sender's segmentation offload makes: several segments that stay together up to the receiver.
TCP makes them 2 ms of its rate long, two segments at least and 64 KiB at most (:func:`~emulator.sim.flow.packet`).

**Acknowledgements** go the other way: a frame without payload for each packet, also when the connection has data to
send there, because behind a rate limit it is not the arrival of a packet that makes data leave. Counted in a probe that
moved bytes over one connection, one way and both ways at once: 1,036 frames for 2,072 segments at 0.7 MB/s, and 1,036
for 41,437 at 30 MB/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from simpy import Environment, Event
from simpy.events import EventPriority

from emulator.sim.flow import ACK_MOST, Flow, Link, acknowledgements
from emulator.sim.reshare import reshare

ACK_TINY = 1e-6
"""Acknowledgements whose change is less than this part of a link change nothing."""

ACK_TURNS = 20
"""Rates make acknowledgements, and what these take of links makes rates. Acknowledgements are a fiftieth of what they
acknowledge, so going back and forth gains almost two digits a turn; this many are never needed."""

_NORMAL = EventPriority(1)
_LAST = EventPriority(2)  # after all that SimPy schedules for an instant, which is URGENT (0) or NORMAL (1)
_ROUNDING = 1e-12  # seconds, and part of a point in time: what is due so little later is due now


class Network:
    """Moves the bytes of flows in the virtual time of `env`.

    `acks` is how many bytes per second of acknowledgements a flow of some rate on the wire has.
    """

    def __init__(self, env: Environment, acks: Callable[[float], float] = acknowledgements) -> None:
        self.env = env
        self._acks = acks
        self._starting: list[Callable[[], object]] = []
        self._changed: dict[Link, None] = {}
        self._moving: dict[Flow, None] = {}  # flows that have started in this instant
        self._solving = False
        self._due: list[tuple[float, int, Flow | Link]] = []  # a heap; what has another `due` by now does not count
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
        flow.left, flow.rate, flow.since, flow.done = nbytes, 0.0, self.env.now, done
        for link in flow.links:
            link.flows[flow] = None
        for link in flow.back:
            link.backs += 1
        self._moving[flow] = None
        self._touch(flow.links)

    def shorten(self, flow: Flow, keep: float) -> float:
        """Let a moving flow end after `keep` more bytes at most; returns how many bytes were taken off."""
        flow.settle(self.env.now)
        taken = max(0.0, flow.left - keep)
        if taken:
            flow.left -= taken
            if flow.rate:
                self._expect(flow, self.env.now + flow.left / flow.rate)
                self._set_alarm()
        return taken

    def change(self, link: Link, rate: float, burst: float) -> None:
        """Give a link another rate and burst; what crosses it goes on."""
        link.settle(self.env.now)
        link.rate, link.burst, link.tokens = rate, burst, min(link.tokens, burst)
        self._touch([link])

    def fire(self, event: Event, delay: float) -> None:
        """Let an event happen `delay` seconds from now."""
        event._ok, event._value = True, None  # triggered, as SimPy's Timeout does it, to be scheduled by hand
        self.env.schedule(event, _NORMAL, delay)

    def _touch(self, links: Iterable[Link]) -> None:
        self._changed.update(dict.fromkeys(links))
        self._solve_at_last()

    def _solve_at_last(self) -> None:
        if not self._solving:
            self._solving = True
            self._schedule(self._solve, 0.0, _LAST)

    def _schedule(self, callback: Callable[[Event], None], delay: float, priority: EventPriority) -> Event:
        event = self.env.event()
        event.callbacks.append(callback)
        event._ok, event._value = True, None  # triggered, as SimPy's Timeout does it, to be scheduled by hand
        self.env.schedule(event, priority, delay)
        return event

    def _solve(self, _: Event) -> None:
        while self._starting:
            starting, self._starting = self._starting, []
            for begin in starting:
                begin()
        self._solving = False
        now = self.env.now
        changed, self._changed = self._changed, {}
        started, self._moving = self._moving, {}
        seen = dict(changed)
        anew: dict[Flow, None] = {}
        for flow in started:
            if not flow.links:
                flow.rate = math.inf
                anew[flow] = None
        for link in changed:
            self._acks_change(link)
        for _turn in range(ACK_TURNS):
            back: dict[Link, None] = {}
            for flow, (rate, bottleneck) in reshare(changed, now).items():
                flow.bottleneck = bottleneck
                if rate != flow.rate or flow in started:
                    flow.settle(now)
                    flow.rate = rate
                    anew[flow] = None
                    if flow.back:
                        self._acknowledge(flow, rate, back)
                    for link in flow.links:
                        seen[link] = None
            seen.update(back)
            changed = {link: None for link in (*back, *changed) if self._acks_change(link)}
            if not changed:
                break
        for flow in anew:
            self._expect(flow, now + flow.left / flow.rate)
        for link in seen:
            link.settle(now)
            if link.watch(now):
                self._expect(link, link.due)
        self._set_alarm()

    def _acknowledge(self, flow: Flow, rate: float, back: dict[Link, None]) -> None:
        """Let the acknowledgements of a flow be those of this rate."""
        acks = self._acks(rate) if rate else 0.0
        for link in flow.back:
            # All of them are gone with the last flow, rounding included.
            link.acknowledging = link.acknowledging + acks - flow.acks if link.backs else 0.0
            back[link] = None
        flow.acks = acks

    def _acks_change(self, link: Link) -> bool:
        """Let acknowledgements take what they now need of a link; returns whether that is something else."""
        link.settle(self.env.now)
        capacity = link.capacity
        acks = min(ACK_MOST * capacity, link.acknowledging)
        if abs(acks - link.acks) <= ACK_TINY * capacity:
            return False
        link.acks = acks
        return bool(link.flows)

    def _expect(self, item: Flow | Link, due: float) -> None:
        item.due = due
        self._count += 1
        heappush(self._due, (due, self._count, item))

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
        now = self.env.now
        limit = now + _ROUNDING * (1 + now)
        due = self._due
        while due and due[0][0] <= limit:
            at, _, item = heappop(due)
            if at != item.due:
                continue
            if isinstance(item, Flow):
                self._end(item)
            else:
                item.settle(now)
                item.tokens, item.due = 0.0, math.inf
                self._touch([item])
        self._set_alarm()

    def _end(self, flow: Flow) -> None:
        done, flow.done, flow.due, flow.bottleneck = flow.done, None, math.inf, None
        flow.left = flow.rate = 0.0
        for link in flow.links:
            del link.flows[flow]
        back: dict[Link, None] = {}
        for link in flow.back:
            link.backs -= 1
        self._acknowledge(flow, 0.0, back)
        self._touch([*flow.links, *back])
        assert done is not None
        done()
