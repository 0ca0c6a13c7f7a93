"""The cells of this rank: who waits for which, who has them, and how much of them nobody has read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from frogtorch.collectives.interest import SMALL_BYTES, unasked
from frogtorch.effects import Name
from frogtorch.memory.cells import Cell, Key
from frogtorch.memory.credit import Unread
from frogtorch.memory.peers import Peer
from frogtorch.memory.wire import MESSAGES, Kind, encode


class Published:
    """Cells that have not been read by all their readers, and requests that stand for those that are to come."""

    def __init__(self, peers: Mapping[int, Peer], emptied: Callable[[], None]) -> None:
        """No cells; `emptied` is called whenever the last has gone."""
        self.cells: dict[Key, Cell] = {}
        self.unread = Unread()
        self._peers = peers
        self._emptied = emptied
        # By round: one that ends takes its own along.
        self._names: dict[int, set[bytes]] = {}  # of all that it has published, still here or not
        self._asked: dict[int, dict[bytes, list[Peer]]] = {}
        self._audiences: dict[tuple[str | int, str | int], tuple[Peer, ...]] = {}

    def __len__(self) -> int:
        return len(self.cells) + sum(map(len, self._asked.values())) + len(self._names)

    def add(self, cell: Cell, name: Name) -> None:
        """Publish a cell: it leaves for those who asked for it before, and if it is small for those who subscribed."""
        audience = self._audience(name)
        readers = audience if len(audience) == cell.left else self._peers.values()
        cell.waiting = {peer.rank for peer in readers if peer.gone is None and cell.round not in peer.gave_up}
        self.cells[cell.round, cell.name] = cell
        if cell.round < MESSAGES:
            self._names.setdefault(cell.round, set()).add(cell.name)
        if cell.copied:
            self.unread.add(cell.round, cell.nbytes)
        for peer in self._requests(cell.round, cell.name):
            self.serve(cell, peer)
        if cell.nbytes <= SMALL_BYTES:
            for peer in audience:
                self._give(cell, peer)
        elif cell.round >= MESSAGES:
            for peer in audience:
                self._offer(cell, peer)
        if not cell.waiting:
            self.retire(cell)

    def had(self, number: int, name: bytes) -> bool:
        """Whether there is, or was, such a cell in a round under way."""
        return name in self._names.get(number, ()) or (number, name) in self.cells

    def _audience(self, name: Name) -> tuple[Peer, ...]:
        """The members that subscribed to such a cell."""
        found = self._audiences.get((name[0], name[-1]))
        if found is None:
            found = tuple(p for p in self._peers.values() if unasked(p.connection.interests, name, 0))
            if len(self._audiences) < 4096:
                self._audiences[name[0], name[-1]] = found
        return found

    def _give(self, cell: Cell, peer: Peer) -> None:
        """Send a small cell unasked; without credit, offer it."""
        if peer.rank not in cell.waiting or peer.rank in cell.sent_to:
            return
        if peer.credit.spend(cell.nbytes):
            self._send(cell, peer, Kind.UNASKED)
        else:
            self._offer(cell, peer)

    def _offer(self, cell: Cell, peer: Peer) -> None:
        if peer.rank in cell.waiting and peer.rank not in cell.sent_to:
            peer.connection.send(encode(Kind.OFFER, cell.round, cell.name, cell.what, cell.nbytes), cell.tally)

    def serve(self, cell: Cell, peer: Peer) -> None:
        """Send a cell to a peer that asked for it; once."""
        if peer.rank in cell.waiting and peer.rank not in cell.sent_to:
            self._send(cell, peer, Kind.CELL)

    def answer(self, cell: Cell, peer: Peer) -> None:
        """Serve a cell to the one peer that it answers; nobody else will ask for it."""
        cell.waiting = {peer.rank}
        self.cells[cell.round, cell.name] = cell
        self._send(cell, peer, Kind.CELL)

    def _send(self, cell: Cell, peer: Peer, kind: Kind) -> None:
        cell.sent_to.add(peer.rank)
        cell.tally.payload_offered += cell.nbytes
        peer.connection.serve(cell, kind)

    def served(self, cell: Cell, peer: int) -> None:
        """The kernel has the last byte of `cell` for `peer`."""
        cell.left -= 1
        cell.waiting.discard(peer)
        if not cell.left or not cell.waiting:
            self.retire(cell)

    def retire(self, cell: Cell) -> None:
        """Let a cell go."""
        if self.cells.pop((cell.round, cell.name), None) is None:
            return
        if cell.retired is not None:
            cell.retired()
        if cell.copied:
            self.unread.remove(cell.round, cell.nbytes)
        if not self.cells:
            self._emptied()

    def withdraw(self, number: int) -> None:
        """Let all cells of a round go, read or not."""
        for cell in [cell for key, cell in self.cells.items() if key[0] == number]:
            self.retire(cell)

    def waiting(self, number: int) -> list[tuple[Cell, int]]:
        """The cells of a round, with each rank that has yet to read them."""
        return [(cell, rank) for cell in self.cells.values() if cell.round == number for rank in sorted(cell.waiting)]

    def owes(self, number: int, peer: Peer) -> bool:
        """Whether a peer has yet to read a cell of a round."""
        return any(cell.round == number and peer.rank in cell.waiting for cell in self.cells.values())

    def loses(self, peer: int, number: int | None = None) -> None:
        """A peer will not read our cells (of one round) any more."""
        for cell in [c for c in self.cells.values() if number in (None, c.round) and peer in c.waiting]:
            cell.waiting.discard(peer)
            if not cell.waiting:
                self.retire(cell)

    # Requests that stand --------------------------------------------------------------------------------------

    def stands(self, number: int, name: bytes, peer: Peer) -> None:
        """A peer asks for a cell that is to come."""
        peer.stands()
        self._asked.setdefault(number, {}).setdefault(name, []).append(peer)

    def _requests(self, number: int, name: bytes) -> list[Peer]:
        """Who asked for a cell; these requests stand no more."""
        names = self._asked.get(number)
        peers = None if names is None else names.pop(name, None)
        if peers is None:
            return []
        for peer in peers:
            peer.standing -= 1
        if not names:
            del self._asked[number]
        return peers

    def unanswered(self, number: int) -> list[tuple[bytes, Peer]]:
        """Requests for cells of a round that is over: name and asker; they stand no more."""
        self._names.pop(number, None)
        return [(name, peer) for name in list(self._asked.get(number, ())) for peer in self._requests(number, name)]

    def forget_requests(self, peer: Peer) -> None:
        """A peer is gone, and so is what it asked for."""
        for number, names in list(self._asked.items()):
            for name, peers in list(names.items()):
                if peer in peers:
                    peers[:] = [other for other in peers if other is not peer]
                    if not peers:
                        del names[name]
            if not names:
                del self._asked[number]
