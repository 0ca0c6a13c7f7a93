"""Says how far a long piece of work is: a bar on a terminal, a line a stage elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Stages:
    """One bar, renamed and refilled stage by stage. Writes to stderr: results go to stdout."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        # Without a thread of its own: the links fork daemons, and a fork copies no other thread.
        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                             TimeRemainingColumn(), console=self._console, auto_refresh=False, transient=True,
                             disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def stage(self, text: str, total: int) -> None:
        """Begin a stage of `total` steps."""
        if self._bar.disable:
            self._console.print(text, highlight=False, markup=False)
        self._bar.reset(self._task, description=text, total=total)
        self._bar.refresh()

    def advance(self, text: str | None = None) -> None:
        """One step more; `text` renames the stage."""
        self._bar.update(self._task, advance=1, description=text)
        self._bar.refresh()

    def at(self, done: int, total: int, text: str) -> None:
        """Set how far this stage is."""
        self._bar.update(self._task, completed=done, total=total, description=text)
        self._bar.refresh()
