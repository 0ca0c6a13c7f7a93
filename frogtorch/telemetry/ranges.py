"""Collectives as ranges of torch.profiler: ``frogtorch:all_reduce``, from the call until the collective has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.autograd import profiler

if TYPE_CHECKING:
    from frogtorch.work import Work

__all__ = ["Range"]


class Range:
    """A range on the caller's thread; without a profiler, next to nothing."""

    __slots__ = ("_function",)

    def __init__(self, collective: str) -> None:
        self._function: profiler.record_function | None = None
        # To make the range costs microseconds whether somebody looks or not; to ask, tens of nanoseconds.
        if profiler._is_profiler_enabled:
            self._function = profiler.record_function(f"frogtorch:{collective}")
            self._function.__enter__()

    def end(self, work: Work | None) -> None:
        """The call returns: the range ends with `work`, or here if there is none."""
        if self._function is None:
            return
        if work is None:
            self._function.__exit__(None, None, None)
        else:
            self._function._call_end_callbacks_on_future(work.get_future())
