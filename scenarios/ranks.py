"""The ranks of one world, as the runner sees them: started together, told what to do, ended together."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from threading import Thread
from types import TracebackType
from typing import IO, Any, Protocol, Self

from emulator.links.namespace import Program
from scenarios.clocks import LOOKS, Sight, translated

_START_AFTER = 0.02
"""Seconds from the runner's word to the common start: enough for the word to reach every rank of a busy machine. On
machines with clocks of their own a round trip comes on top."""


@dataclass(frozen=True)
class Place:
    """Where a rank runs, and with whom."""

    rank: int
    world_size: int
    host: str
    store: str
    """Where the ranks find each other (:func:`scenarios.store.join`); no shaped link is crossed."""
    arms: tuple[str, ...]
    timeout: float
    """Seconds after which a collective fails."""
    address: str = "127.0.0.1"
    interface: str = "lo"
    """The device that has the address; "": the rank finds it."""
    enter: Callable[[], None] | None = None
    """Moves the process into its host's namespaces; None stays on this machine's loopback."""
    spawn: Callable[[], Program] | None = None
    """Starts ``python -m scenarios.rank`` on a host that no process of ours can enter, as a container."""
    own_clock: bool = False
    """Whether that host is a machine of its own, whose clock is not ours."""
    slowness: float = 1.0
    """How many times longer than on other hosts a training computes there."""


class RankError(RuntimeError):
    """A rank failed, died or did not answer: names it, its host and what it was doing."""


class Talk(Protocol):
    """One end of the pipe between the runner and a rank; :class:`multiprocessing.connection.Connection` is one."""

    def send(self, content: Any) -> None:
        """Raises BrokenPipeError if the other end is closed."""

    def recv(self) -> Any:
        """Raises EOFError if the other end is closed."""

    def fileno(self) -> int:
        """What to wait on for something to receive."""

    def close(self) -> None:
        """Twice is fine."""


class Words:
    """A :class:`Talk` in JSON over two pipes, for a rank that is a program: what a host says is never unpickled."""

    _LENGTH = struct.Struct("!I")

    def __init__(self, heard: IO[bytes], said: IO[bytes]) -> None:
        self._heard = heard
        self._said = said

    def send(self, content: Any) -> None:
        """Say it."""
        data = json.dumps(content).encode()
        self._said.write(self._LENGTH.pack(len(data)) + data)
        self._said.flush()

    def recv(self) -> Any:
        """What was said."""
        length, = self._LENGTH.unpack(self._exactly(self._LENGTH.size))
        return json.loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        # Not through the file's buffer: what it had read ahead would not wake up who waits on the descriptor.
        data = bytearray()
        while len(data) < count:
            more = os.read(self._heard.fileno(), count - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def fileno(self) -> int:
        """Of the pipe that is heard."""
        return self._heard.fileno()

    def close(self) -> None:
        """Hang up."""
        for pipe in (self._heard, self._said):
            with contextlib.suppress(OSError):  # what was left unsaid has no listener any more
                pipe.close()


class Ranks:
    """Processes, one a rank: forked from one server that has imported torch once, or spawned where they are to run."""

    def __init__(self, places: Sequence[Place]) -> None:
        """`places[r]` is rank r's."""
        self._places = places
        self._patience = places[0].timeout + 60.0  # a rank's own error, which says more, comes first
        self._processes: list[Any] = []
        self._connections: list[Talk] = []
        self.modules: list[dict[str, str]] = []
        """By rank, from when they have joined on: SHA-256 of the modules that each runs."""
        self._sights: dict[int, Sight] = {}
        """The latest, of ranks that have clocks of their own."""

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scenarios.rank", "frogtorch.process_group"])
        try:
            for place in self._places:
                connection: Talk
                if place.spawn is not None:
                    process: Any = _Spawned(place.spawn())
                    connection = process.talk
                    connection.send(asdict(replace(place, enter=None, spawn=None)))
                else:
                    connection, theirs = context.Pipe()
                    process = context.Process(target=_serve, args=(theirs, place), daemon=True)
                    process.start()
                    theirs.close()
                self._processes.append(process)
                self._connections.append(connection)
            self.modules = self._gather("joining the process groups", "done")
            self._sights = self._look()
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
        start = time.monotonic() + _START_AFTER + max((sight.trip for sight in self._sights.values()), default=0.0)
        for rank in range(len(self._places)):
            self._send(doing, start + (self._sights[rank].ahead if rank in self._sights else 0.0), [rank])
        if on_start is not None:
            on_start(start)
        results = self._gather(doing, "done", on_step)
        before, self._sights = self._sights, self._look()
        return [translated(result, before[rank], self._sights[rank]) if rank in before else result
                for rank, result in enumerate(results)]

    def _look(self) -> dict[int, Sight]:
        """See the clocks that are not ours, all at once, while nothing else goes on."""
        far = [rank for rank, place in enumerate(self._places) if place.own_clock]
        seen: dict[int, list[Sight]] = {rank: [] for rank in far}
        for _ in range(LOOKS if far else 0):
            asked, heard = {}, dict.fromkeys(far, 0.0)
            for rank in far:
                asked[rank] = time.monotonic()
                self._send("clock()", ("clock", {}), [rank])
            said = self._gather("clock()", "done", heard=heard)
            for rank, clock in zip(far, said, strict=True):
                seen[rank].append(Sight.of(asked[rank], clock, heard[rank]))
        return {rank: min(sights, key=lambda sight: sight.trip) for rank, sights in seen.items()}

    def _send(self, doing: str, content: object, ranks: Iterable[int] | None = None) -> None:
        for rank in range(len(self._places)) if ranks is None else ranks:
            try:
                self._connections[rank].send(content)
            except OSError:
                raise self._died(rank, doing) from None

    def _gather(self, doing: str, wanted: str, on_step: Callable[[int], None] | None = None,
                heard: dict[int, float] | None = None) -> list[Any]:
        """Wait until every rank has said `wanted`; what came with it, by rank.

        With `heard` the ranks in it are waited for, and when each was heard is put there.
        """
        answers: dict[int, Any] = {}
        waiting: dict[int, Any] = {rank: self._connections[rank] for rank in heard or range(len(self._places))}
        deadline = time.monotonic() + self._patience
        while waiting:
            speaking = wait(list(waiting.values()), timeout=deadline - time.monotonic())
            now = time.monotonic()
            if not speaking:
                raise RankError(f"{self._named(*waiting)} did not answer for {self._patience:.0f} s: {doing}")
            for rank, connection in list(waiting.items()):
                if connection not in speaking:
                    continue
                try:
                    word, content = connection.recv()
                except (EOFError, OSError):
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
                    if heard is not None:
                        heard[rank] = now
        return [answers[rank] for rank in sorted(answers)]

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


class _Spawned:
    """A program as the process that multiprocessing makes."""

    def __init__(self, program: Program) -> None:
        assert program.stdin is not None
        assert program.stdout is not None
        self._program = program
        self.talk = Words(program.stdout, program.stdin)

    @property
    def exitcode(self) -> int | None:
        return self._program.poll()

    def is_alive(self) -> bool:
        return self._program.poll() is None

    def join(self, timeout: float | None = None) -> None:
        try:
            self._program.wait(timeout)
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        self._program.kill()


def _serve(connection: Talk, place: Place) -> None:
    from scenarios.rank import serve  # torch is imported in the server and the ranks, not in the runner

    # A rank within a collective hears of nothing, and the server that forked it lives as long as its ranks do.
    Thread(target=_die_with_the_runner, daemon=True).start()
    serve(connection, place)


def _die_with_the_runner() -> None:
    runner = multiprocessing.parent_process()
    assert runner is not None
    runner.join()
    os._exit(1)
