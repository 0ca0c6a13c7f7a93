"""The ranks of one world, as the runner sees them: started together, told what to do, ended together."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

_START_AFTER = 0.02
"""Seconds from the runner's word to the common start: enough for the word to reach every rank of a busy machine."""


@dataclass(frozen=True)
class Place:
    """Where a rank runs, and with whom."""

    rank: int
    world_size: int
    host: str
    store: str
    """File through which the ranks find each other; rendezvous does not cross the shaped links."""
    arms: tuple[str, ...]
    timeout: float
    """Seconds after which a collective fails."""
    address: str = "127.0.0.1"
    interface: str = "lo"
    enter: Callable[[], None] | None = None
    """Moves the process into its host's namespaces; None stays on this machine's loopback."""


class RankError(RuntimeError):
    """A rank failed, died or did not answer: names it, its host and what it was doing."""


class Ranks:
    """Processes, one a rank, forked from one server that has imported torch once."""

    def __init__(self, places: Sequence[Place]) -> None:
        """`places[r]` is rank r's."""
        self._places = places
        self._patience = places[0].timeout + 60.0  # a rank's own error, which says more, comes first
        self._processes: list[Any] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scenarios.rank", "frogtorch.process_group"])
        try:
            for place in self._places:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, place), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._connections.append(ours)
            self._gather("joining the process groups", "done")
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None:
            for connection in self._connections:
                connection.close()
            for process in self._processes:
                process.join(timeout=self._patience)
        self._kill()

    def tell(self, command: str, on_step: Callable[[int], None] | None = None,
             on_start: Callable[[float], None] | None = None, **arguments: Any) -> list[Any]:
        """Have every rank do `command` from one common start; their results, by rank.

        `on_start` is told the start, on the monotonic clock, shortly before; `on_step` each step that rank 0 has done.
        Raises RankError with the rank's own traceback when one fails, or saying so when one dies or does not answer.
        """
        doing = f"{command}({', '.join(f'{name}={value}' for name, value in arguments.items())})"
        self._send(doing, (command, arguments))
        self._gather(doing, "ready")
        start = time.monotonic() + _START_AFTER
        self._send(doing, start)
        if on_start is not None:
            on_start(start)
        return self._gather(doing, "done", on_step)

    def _send(self, doing: str, content: object) -> None:
        for rank, connection in enumerate(self._connections):
            try:
                connection.send(content)
            except BrokenPipeError:
                raise self._died(rank, doing) from None

    def _gather(self, doing: str, wanted: str, on_step: Callable[[int], None] | None = None) -> list[Any]:
        """Wait until every rank has said `wanted`; what came with it, by rank."""
        answers: dict[int, Any] = {}
        waiting = dict(enumerate(self._connections))
        deadline = time.monotonic() + self._patience
        while waiting:
            heard = wait(list(waiting.values()), timeout=deadline - time.monotonic())
            if not heard:
                raise RankError(f"{self._named(*waiting)} did not answer for {self._patience:.0f} s: {doing}")
            for rank, connection in list(waiting.items()):
                if connection not in heard:
                    continue
                try:
                    word, content = connection.recv()
                except (EOFError, ConnectionError):
                    raise self._died(rank, doing) from None
                if word == "failed":
                    raise RankError(f"{self._named(rank)} failed: {doing}\n{content}")
                if word == "step":
                    deadline = time.monotonic() + self._patience
                    if rank == 0 and on_step is not None:
                        on_step(content)
                elif word == wanted:
                    answers[rank] = content
                    del waiting[rank]
        return [answers[rank] for rank in range(len(self._connections))]

    def _died(self, rank: int, doing: str) -> RankError:
        self._processes[rank].join(timeout=5)
        return RankError(f"{self._named(rank)} died (exit code {self._processes[rank].exitcode}): {doing}")

    def _named(self, *ranks: int) -> str:
        return ", ".join(f"rank {rank} on {self._places[rank].host}" for rank in ranks)

    def _kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        for connection in self._connections:
            connection.close()


def _serve(connection: Connection, place: Place) -> None:
    from scenarios.rank import serve  # torch is imported in the server and the ranks, not in the runner

    serve(connection, place)
