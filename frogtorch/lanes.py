"""The scheduler of one collective: its generator, and the lanes of every Together in it. No I/O, no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Any

from frogtorch.effects import Collective, Together

__all__ = ["Lane", "Lanes", "WAITING"]

WAITING = object()
"""What `perform` returns for an effect that is not done yet."""


class Lane:
    """A generator on its way, or one effect beside others (`generator` is None)."""

    __slots__ = ("generator", "index", "over", "side", "waits_for")

    def __init__(self, generator: Collective | None, side: _Side | None, index: int) -> None:
        self.generator = generator
        self.side = side
        self.index = index
        self.over = False
        self.waits_for: Any = None  # the driver's, while an effect of this lane is under way


class _Side:
    """A Together under way: lanes side by side, and the lane that waits for them."""

    __slots__ = ("lane", "left", "live", "queue", "results")

    def __init__(self, lane: Lane, together: Together) -> None:
        self.lane = lane
        self.left = len(together.lanes)
        self.results: list[Any] = [None] * self.left
        self.queue = deque(enumerate(together.lanes))  # not admitted yet
        self.live: dict[int, Lane] = {}


class Lanes:
    """Runs a collective, an effect at a time, without recursion: hundreds of lanes are as good as one.

    `perform(lane, effect)` does an effect, and returns its result, or WAITING if :meth:`go_on` will be called for that
    lane; what it raises is thrown into the lane. `cancel(lane)` calls off the effect that a lane waits for.
    `over(result, error)` is called once, when the collective has ended.
    """

    def __init__(self, collective: Collective, perform: Callable[[Lane, Any], Any], cancel: Callable[[Lane], None],
                 over: Callable[[Any, BaseException | None], None]) -> None:
        self._perform = perform
        self._cancel = cancel
        self._over = over
        self._root = Lane(collective, None, 0)
        self._ready: deque[tuple[Lane, Any, BaseException | None]] = deque([(self._root, None, None)])
        self._running = False

    def run(self) -> None:
        """Run every lane that can to its next wait. Called again from inside, it leaves the work to the outer call."""
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                lane, value, error = self._ready.popleft()
                if not lane.over:
                    self._advance(lane, value, error)
        finally:
            self._running = False

    def go_on(self, lane: Lane, value: Any = None, error: BaseException | None = None) -> None:
        """The effect that `lane` waited for is done, or has failed."""
        lane.waits_for = None
        self._ready.append((lane, value, error))
        self.run()

    def stop(self, error: BaseException) -> None:
        """End the collective with `error`, whatever it is waiting for."""
        if not self._root.over:
            self._close(self._root)
            self._finish(None, error)

    def _advance(self, lane: Lane, value: Any, error: BaseException | None) -> None:
        generator = lane.generator
        if generator is None:
            self._end(lane, value, error)
            return
        while True:
            try:
                effect = generator.send(value) if error is None else generator.throw(error)
            except StopIteration as stop:
                self._end(lane, stop.value, None)
                return
            except Exception as failure:
                self._end(lane, None, failure)
                return
            if type(effect) is Together:
                if not effect.lanes:
                    value, error = [], None
                    continue
                side = _Side(lane, effect)
                lane.waits_for = side
                for _ in range(effect.width or side.left):
                    if not side.queue or lane.waits_for is not side:
                        break
                    self._admit(side)
                return
            try:
                value, error = self._perform(lane, effect), None
            except Exception as failure:
                value, error = None, failure
            if value is WAITING or lane.over:  # what it did may have ended the whole collective
                return

    def _admit(self, side: _Side) -> None:
        index, what = side.queue.popleft()
        if type(what) is GeneratorType or isinstance(what, Generator):  # the first is quick
            lane = side.live[index] = Lane(what, side, index)
            self._ready.append((lane, None, None))
        elif type(what) is Together:
            lane = side.live[index] = Lane(_alone(what), side, index)
            self._ready.append((lane, None, None))
        else:
            lane = side.live[index] = Lane(None, side, index)
            try:
                value = self._perform(lane, what)
            except Exception as failure:
                self._ready.append((lane, None, failure))
            else:
                if value is not WAITING:
                    self._ready.append((lane, value, None))

    def _end(self, lane: Lane, value: Any, error: BaseException | None) -> None:
        lane.over = True
        side = lane.side
        if side is None:
            self._finish(value, error)
            return
        del side.live[lane.index]
        if error is not None:
            for other in list(side.live.values()):
                self._close(other)
            side.lane.waits_for = None
            self._ready.append((side.lane, None, error))
            return
        side.results[lane.index] = value
        side.left -= 1
        if not side.left:
            side.lane.waits_for = None
            self._ready.append((side.lane, side.results, None))
        elif side.queue:
            self._admit(side)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        over = self._over
        # The driver knows us: in a circle, what it holds (tensors) would go some time later, and cost a search.
        del self._perform, self._cancel, self._over
        over(value, error)

    def _close(self, lane: Lane) -> None:
        """Call off a lane, and what it waits for, down to the last lane beside it."""
        pending = [lane]
        order = []
        while pending:
            one = pending.pop()
            one.over = True
            order.append(one)
            if isinstance(one.waits_for, _Side):
                pending.extend(one.waits_for.live.values())
            elif one.waits_for is not None:
                self._cancel(one)
            one.waits_for = None
        for one in reversed(order):
            if one.generator is not None:
                one.generator.close()


def _alone(together: Together) -> Collective:
    return (yield together)
