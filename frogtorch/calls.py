"""How torch calls a process group, and how it is told what it did wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["Call", "call", "collective"]

_FIELDS = {"op": "reduceOp", "root": "rootRank"}
"""What torch's older forms call a field of the options."""


class Call(NamedTuple):
    """A call of a collective: its name, and torch's options for it."""

    collective: str
    options: Any

    @property
    def timeout(self) -> float | None:
        """Seconds, if this call has a timeout of its own."""
        seconds: float = self.options.timeout.total_seconds()
        return seconds if seconds > 0 else None  # negative is how torch says that it has none


def call(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a method of a process group that torch calls: what it refuses is said with `name` and the rank.

    torch.compile does not trace into it, where it would meet locks, threads and sockets.
    """
    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def called(self: Any, *args: Any, **named: Any) -> Any:
            try:
                return method(self, *args, **named)
            except (TypeError, ValueError) as error:
                if type(error) not in (TypeError, ValueError):
                    raise
                raise type(error)(f"{name} on rank {self.rank()} of {self.size()}: {error}") from error
        disabled: Callable[..., Any] = torch._dynamo.disable(called)
        return disabled
    return decorate


def collective(name: str, options: type, *fields: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make of ``method(self, call, tensors, …)`` the collective `name` that torch calls.

    torch calls it with the tensors and `options`, or, in its older forms, with values of the `fields` that come behind
    the tensors, and a timeout: ``allreduce(tensors, opts)`` or ``allreduce(tensor, op, timeout)``.
    """
    order = (*fields, "timeout")

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        tensors = method.__code__.co_argcount - 2

        @call(name)
        @functools.wraps(method)
        def called(self: Any, *args: Any, opts: Any = None, **named: Any) -> Any:
            values = args[tensors:]
            if values and isinstance(values[0], options):
                opts, values = values[0], values[1:]
            if opts is None:
                opts = options()
            for field, value in (*zip(order, values, strict=False), *named.items()):
                if value is not None:
                    setattr(opts, _FIELDS.get(field, field), value)
            return method(self, Call(name, opts), *args[:tensors])
        return called
    return decorate
