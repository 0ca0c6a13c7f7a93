"""Collectives as ranges of torch.profiler.

``frogtorch:all_reduce`` is where one is called, ``frogtorch:all_reduce wait`` where the caller waits for its end. Each
begins and ends in one call on one thread. A range that ended with the collective, on the thread where that happens,
could end after the profiler has: torch then writes to memory that it has freed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd import profiler

__all__ = ["ranged"]

_UNSEEN: AbstractContextManager[Any] = nullcontext()


def ranged(name: str) -> AbstractContextManager[Any]:
    """For a ``with``: the range ``frogtorch:<name>``; without a profiler, nothing."""
    # To make the range costs microseconds whether somebody looks or not; to ask, tens of nanoseconds.
    return profiler.record_function(f"frogtorch:{name}") if profiler._is_profiler_enabled else _UNSEEN
