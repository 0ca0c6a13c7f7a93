"""Work: what a collective of torch.distributed returns. Its rules are torch's, and are not written down there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from frogtorch.memory.faults import RoundTimeout
from frogtorch.telemetry.ranges import ranged

__all__ = ["Work"]


class Work(dist._Work):
    """A collective under way, or ended.

    * It is a Python subclass whose own :meth:`wait` raises: a Work that torch makes of a future swallows its errors.
    * C++ (DDP) sees an error of a future only where a callback raised it: what :meth:`get_future` gives is the
      ``then`` of an inner future, with a callback that raises it again. A future with ``set_exception`` would
      look successful there, with an exception for a value: a segmentation fault.
    * Waiting is done on a lock, which Ctrl-C interrupts, and not on the future, which it does not.
    """

    def __init__(self, tensors: list[torch.Tensor], submit: Callable[[Callable[[], Any]], None],
                 name: str = "collectives") -> None:
        """A Work whose result is `tensors`; `submit` runs a function on a thread where it may wait.

        `name` is what a profiler is told that is waited for.
        """
        super().__init__()
        self._name = name
        self._tensors = tensors
        self._submit = submit
        self._lock = threading.Lock()
        self._gates: list[Any] = []  # locks, each held, on which somebody waits
        self._told: list[Callable[[BaseException | None], None]] = []
        self._over = False
        self._error: BaseException | None = None
        self._inner: Future[list[torch.Tensor]] | None = None
        self._outer: Future[list[torch.Tensor]] | None = None

    @classmethod
    def joint(cls, works: Sequence[Work], tensors: list[torch.Tensor],
              submit: Callable[[Callable[[], Any]], None]) -> Work:
        """A Work that ends with the last of `works`, and fails with the first error of theirs."""
        one = cls(tensors, submit)
        lock = threading.Lock()
        left = len(works)
        first: BaseException | None = None

        def ended(error: BaseException | None) -> None:
            nonlocal left, first
            with lock:
                left -= 1
                first = first or error
                last = not left
            if last:
                one.complete(first)

        for work in works:
            work.when_over(ended)
        if not works:
            one.complete(None)
        return one

    def when_over(self, tell: Callable[[BaseException | None], None]) -> None:
        """Call `tell` once it has ended, with None or its error; the engine may hold its lock then."""
        with self._lock:
            if not self._over:
                self._told.append(tell)
                return
        tell(self._error)

    def complete(self, error: BaseException | None) -> None:
        """End it. Called once, by the engine; callbacks of the future run on another thread."""
        with self._lock:
            self._error = error
            self._over = True  # last: wait() looks at it without the lock
            inner = self._inner
        for gate in self._gates:
            gate.release()
        for tell in self._told:
            tell(error)
        if inner is not None:
            self._submit(lambda: inner.set_result(self._tensors))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it has ended; raise what it failed with. A `timeout` of 0 is none: the group's applies."""
        if not self._over:
            limit = timeout.total_seconds()
            with ranged(f"{self._name} wait"):
                self._await(limit if limit > 0 else None)
        if self._error is not None:
            raise self._error
        return True

    def _await(self, limit: float | None) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            if self._over:
                return
            self._gates.append(gate)
        if not gate.acquire(timeout=-1 if limit is None else min(limit, threading.TIMEOUT_MAX)):
            raise RoundTimeout(f"the wait ran into its own timeout of {limit:g} s; the collective goes on")

    def synchronize(self) -> None:
        """The same as :meth:`wait`: results are in CPU memory when it has ended."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._over

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._over and self._error is None

    def exception(self) -> BaseException | None:
        """What it failed with, if it has."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that it fills."""
        return self._tensors

    def source_rank(self) -> int:
        """Whom a receive got its tensor from: only that of a receive knows. Raises RuntimeError."""
        raise RuntimeError("this work is no receive, and has no source rank")

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future of the tensors, whose callbacks may start other collectives and wait for them."""
        with self._lock:
            if self._outer is None:
                self._inner = Future()
                self._outer = self._inner.then(self._checked)
                if self._over:
                    self._inner.set_result(self._tensors)
            return self._outer

    def _checked(self, done: Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return done.value()
