"""The I/O thread: one a process, for all groups. It sleeps until a socket or a deadline has something for it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from frogtorch.memory.faults import GroupClosed

if TYPE_CHECKING:
    from frogtorch.memory.connection import Connection
    from frogtorch.memory.space import Memory

__all__ = ["Loop"]

FOREVER = float("inf")


class Loop:
    """Sockets, and a thread that serves them.

    `lock` guards all memories and connections, and is held for every call into them: by this thread while it handles
    what came, by a caller's while it starts a collective. Nothing that blocks is done under it.

    A lock is not fair: the thread, which lets go of it only to take it again, could keep a caller out for as long as
    much comes in. So a caller takes the `door` too, first, where the thread waits for it to come out.
    """

    def __init__(self, around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext) -> None:
        """Start the thread, which does all it does inside ``around()``."""
        self.door = threading.Lock()
        self.lock = threading.Lock()
        self._around = around
        self.memories: set[Memory] = set()
        self.failed = False  # the thread is gone: nothing would ever be served
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}  # by the socket's descriptor
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.EPOLLIN)
        self._sleeps_until = FOREVER
        self._stop = False
        # A daemon: the interpreter joins the others before it calls atexit hooks, where this one is stopped.
        self._thread = threading.Thread(target=self._run, name="frogtorch-io", daemon=True)
        self._thread.start()

    def add(self, memory: Memory) -> None:
        """Serve the connections of `memory`, whose lock is held."""
        self.memories.add(memory)
        for connection in memory.connections.values():
            self._connections[connection.sock.fileno()] = connection
            self._poll.register(connection.sock, select.EPOLLIN)

    def remove(self, memory: Memory) -> None:
        """Forget `memory`; its connections are closed already."""
        self.memories.discard(memory)

    def watch(self, connection: Connection) -> None:
        """Ask to be told when the kernel takes more, or no longer, as ``connection.blocked`` says."""
        self._poll.modify(connection.sock, select.EPOLLIN | (select.EPOLLOUT if connection.blocked else 0))

    def unwatch(self, connection: Connection) -> None:
        """Forget a connection that is about to be closed."""
        if self._connections.pop(connection.sock.fileno(), None) is not None:
            self._poll.unregister(connection.sock)

    def awake_by(self, deadline: float) -> None:
        """See to it that the thread looks at deadlines no later than at `deadline` (monotonic)."""
        if deadline < self._sleeps_until:
            self._sleeps_until = deadline
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Stop and join the thread. Memories must have been closed."""
        with self.lock:
            self._stop = True
            os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._poll.close()
        os.close(self._bell)

    def after_fork(self) -> None:
        """In a forked child: let go of the parent's sockets, or its death would go unnoticed by its peers.

        Its groups are the parent's; the lock may have been held by a thread that is not here.
        """
        self.door = threading.Lock()
        self.lock = threading.Lock()
        for memory in self.memories:
            memory.closed = GroupClosed(f"group {memory.space} belongs to the process that this one was forked from")
            for connection in memory.connections.values():
                connection.sock.close()
        self._poll.close()
        os.close(self._bell)

    def _run(self) -> None:
        with self._around():
            timeout: float | None = None
            while not self._stop:
                events = self._poll.poll(timeout)
                with self.door:
                    pass
                with self.lock:
                    timeout = self._guarded_turn(events)

    def _guarded_turn(self, events: list[tuple[int, int]]) -> float | None:
        try:
            return self._turn(events)
        except BaseException as error:
            # A dead I/O thread would look like a network that hangs: let everybody who waits know instead.
            self.failed = True
            for memory in list(self.memories):
                memory.abort(GroupClosed(f"the I/O thread of frogtorch failed: {error!r}"))
            raise

    def _turn(self, events: list[tuple[int, int]]) -> float | None:
        for descriptor, mask in events:
            connection = self._connections.get(descriptor)
            if connection is None:  # or it was closed meanwhile
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                continue
            if mask & ~select.EPOLLIN:  # an error is the socket's answer to both
                connection.flush()
            if mask & ~select.EPOLLOUT:
                connection.receive()
        nearest = FOREVER
        now = time.monotonic()
        for memory in list(self.memories):
            nearest = min(nearest, memory.expire(now))
            memory.flush()
        # A deadline that fell away stays set: nearly always one as far off takes its place, and then no bell is rung.
        if not now < self._sleeps_until < nearest:
            self._sleeps_until = nearest
        return None if self._sleeps_until == FOREVER else max(0.0, self._sleeps_until - now)
