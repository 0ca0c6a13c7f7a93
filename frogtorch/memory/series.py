"""Cells of this rank that supersede each other: of a name only the newest counts.

Who reads such a cell, and how many, nobody knows: a reader asks whether there is a newer one than it has, and only then
do bytes travel. So a cell goes when the next one comes, and not before those are served to its end who are reading it
then. A reader reads one cell of a name at a time: of W ranks, no more than W cells of a name are kept, and mostly one.
"""

from __future__ import annotations

from collections.abc import Callable

from frogtorch.memory.cells import Cell, Tally
from frogtorch.memory.faults import ProtocolError
from frogtorch.memory.peers import Peer
from frogtorch.memory.published import Published
from frogtorch.memory.questions import NEVER, Query, Version, answer_newer, asked_by
from frogtorch.memory.wire import Frame, Kind

__all__ = ["Entry", "Series"]


class Entry:
    """One cell of a series, kept while it is the newest or somebody reads it; then `retired` is called, once."""

    __slots__ = ("name", "readers", "retired", "superseded", "tally", "version", "view", "what")

    def __init__(self, name: bytes, version: Version, what: bytes, view: memoryview, tally: Tally,
                 retired: Callable[[], None]) -> None:
        self.name = name
        self.version = version
        self.what = what
        self.view = view
        self.tally = tally
        self.retired = retired
        self.readers = 0  # that are being served
        self.superseded = False

    def supersede(self) -> None:
        """A newer one is there."""
        self.superseded = True
        if not self.readers:
            self.retired()

    def served(self) -> None:
        """A reader has it, or is gone."""
        self.readers -= 1
        if self.superseded and not self.readers:
            self.retired()


class Series:
    """The newest cell of each name, and the questions that wait for a newer one."""

    def __init__(self, published: Published) -> None:
        self._published = published
        self._newest: dict[bytes, Entry] = {}
        self._standing: dict[bytes, list[tuple[Peer, Frame, Query]]] = {}

    def __len__(self) -> int:
        return len(self._newest) + sum(map(len, self._standing.values()))

    def supersede(self, cell: Entry) -> None:
        """Publish a cell in place of the last of its name. Raises ValueError if its step is not a later one."""
        before = self._newest.get(cell.name)
        if before is not None and before.version.step >= cell.version.step:
            raise ValueError(f"{cell.name.decode()} of step {cell.version.step} would come after step "
                             f"{before.version.step}; steps only grow")
        self._newest[cell.name] = cell
        if before is not None:
            before.supersede()
        for peer, frame, query in self._standing.pop(cell.name, []):
            peer.standing -= 1
            self._answer(peer, frame, query)

    def asked(self, peer: Peer, frame: Frame, query: Query, came: int) -> None:
        """A peer asks, in `came` bytes. Raises ProtocolError if it asks for too much at a time."""
        if not asked_by(frame.round, peer.rank):
            raise ProtocolError(f"{peer} asks question {frame.round}, which is none of its own")
        if (frame.round, frame.name) in self._published.cells:
            raise ProtocolError(f"{peer} asks question {frame.round} twice")
        newest = self._newest.get(frame.name)
        if newest is not None:
            newest.tally.socket_received += came
        self._answer(peer, frame, query)

    def _answer(self, peer: Peer, frame: Frame, query: Query) -> None:
        newest = self._newest.get(frame.name)
        if (NEVER if newest is None else newest.version.step) < query.oldest:
            peer.stands()
            self._standing.setdefault(frame.name, []).append((peer, frame, query))
            return
        if newest is None or newest.version.layout != query.layout or newest.version.step <= query.have:
            version = Version(query.layout, NEVER, 0) if newest is None else newest.version
            peer.connection.send(answer_newer(Kind.SAME, frame.round, frame.name, b"", version),
                                 Tally() if newest is None else newest.tally)
            return
        peer.connection.send(answer_newer(Kind.NEWEST, frame.round, frame.name, newest.what, newest.version),
                             newest.tally)
        if (newest.what, newest.version.nbytes) == (frame.what, query.nbytes):  # the reader says so if they differ
            peer.stands()
            newest.readers += 1
            self._published.answer(Cell(frame.round, frame.name, newest.what, newest.view, 1, newest.tally,
                                        lambda: self._served(newest, peer), False), peer)

    def _served(self, cell: Entry, peer: Peer) -> None:
        peer.standing -= 1
        cell.served()

    def forget(self, peer: Peer) -> None:
        """A peer is gone, and so is what it asked."""
        for name, questions in list(self._standing.items()):
            self._standing[name] = [one for one in questions if one[0] is not peer]
            if not self._standing[name]:
                del self._standing[name]

    def close(self) -> None:
        """Let all cells go; what was being read has been called off before."""
        self._standing.clear()
        newest, self._newest = self._newest, {}
        for cell in newest.values():
            cell.supersede()
