"""Says how far a long piece of work is: a bar on a terminal, a line a stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINE = 30.0
"""Seconds between two lines of one stage, where there is no terminal."""


class Estimate:
    """How long a piece of work goes on: what it was predicted to take, times how wrong that was of what is done."""

    def __init__(self, predicted: Mapping[Any, float]) -> None:
        """`predicted`: seconds of each part that is to be done."""
        self._left: dict[Hashable, float] = dict(predicted)
        self._done = 0.0
        self._took = 0.0
        self._since = time.monotonic()

    def finished(self, part: Hashable) -> None:
        """A part is done."""
        now = time.monotonic()
        self._done += self._left.pop(part, 0.0)
        self._took += now - self._since
        self._since = now

    def __str__(self) -> str:
        """Minutes and seconds left, or "" where nothing is known."""
        left = sum(self._left.values()) * (self._took / self._done if self._done else 1.0)
        left -= time.monotonic() - self._since
        if not self._left or left <= 0:
            return ""
        hours, seconds = divmod(round(left), 3600)
        return f"about {hours}:{seconds // 60:02}:{seconds % 60:02} left in all"


class Stages:
    """One bar, renamed and refilled stage by stage. Writes to stderr: results go to stdout."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        # Without a thread of its own: the links fork daemons, and a fork copies no other thread.
        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                             TimeRemainingColumn(), console=self._console, auto_refresh=False, transient=True,
                             disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._estimate: Estimate | None = None
        self._text, self._at, self._of, self._said = "", 0, 0, 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        # Where there is no terminal nothing says how long a line may be.
        self._console.print(text, highlight=False, markup=False, soft_wrap=not self._console.is_terminal)

    def left(self, estimate: Estimate) -> None:
        """Show how long it goes on, beyond the stage."""
        self._estimate = estimate

    def finished(self, part: Hashable) -> None:
        """A part of the estimate is done."""
        if self._estimate is not None:
            self._estimate.finished(part)

    def stage(self, text: str, total: int) -> None:
        """Begin a stage of `total` steps."""
        if self._bar.disable:
            self.say(self._whole(text))
        self._text, self._at, self._of, self._said = text, 0, total, time.monotonic()
        self._bar.reset(self._task, description=self._whole(text), total=total)
        self._bar.refresh()

    def advance(self, text: str | None = None) -> None:
        """One step more; `text` renames the stage."""
        self._text = text or self._text
        self.at(self._at + 1, self._of, self._text)

    def at(self, done: int, total: int, text: str) -> None:
        """Set how far this stage is."""
        self._at, self._of, self._text = done, total, text
        if self._bar.disable and time.monotonic() - self._said >= _LINE:
            self.say(self._whole(f"{text}: {done} of {total}"))
            self._said = time.monotonic()
        self._bar.update(self._task, completed=done, total=total, description=self._whole(text))
        self._bar.refresh()

    def _whole(self, text: str) -> str:
        left = "" if self._estimate is None else str(self._estimate)
        return f"{text} ({left})" if left else text
