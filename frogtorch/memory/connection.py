"""One permanent connection to another member: what goes out, in which order, and where what comes in lands."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from frogtorch.collectives.interest import FRAME_BYTES
from frogtorch.memory import wire
from frogtorch.memory.endpoint import Endpoint
from frogtorch.memory.faults import PeerLost, ProtocolError
from frogtorch.memory.wire import ATOMIC_BYTES, FRAME_MAX, LONGEST_FRAME, Kind

if TYPE_CHECKING:
    from frogtorch.memory.cells import Cell, Reading, Tally
    from frogtorch.memory.parcels import Parcel
    from frogtorch.memory.rendezvous import Link
    from frogtorch.memory.space import Memory

UNSENT_BYTES = 128 * 1024
"""How much the kernel is let keep that it has not sent yet (TCP_NOTSENT_LOWAT, tcp(7) and the kernel's ip-sysctl).

The rest waits here, where requests and small cells overtake it. It has to last from the kernel's "writable" until this
thread answers: 0.4 ms at 300 MB/s, so that a fast path does not fall idle; 0.2 s at 0.7 MB/s."""

TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)

PIECES_MAX = 256
"""Most buffers in one call; the kernel's limit is 1024 (IOV_MAX)."""

SENDS = 2
RECEIVES = 4
"""Calls for one connection before the others have their turn."""

_sink = memoryview(bytearray(LONGEST_FRAME))
"""Where bytes land that nobody waits for any more."""


class _Piece:
    """Bytes on their way into the kernel. With the last of its bytes `cell` has been served, if there is one.

    A parcel is a cell here, of which nobody else gets anything.
    """

    __slots__ = ("cell", "payload", "served", "tally", "view")

    def __init__(self, view: memoryview, tally: Tally, payload: int = 0, cell: Cell | Parcel | None = None,
                 served: bool = False) -> None:
        self.view = view
        self.tally = tally
        self.payload = payload
        self.cell = cell
        self.served = served


class Connection:
    """A full-duplex TCP connection to rank `rank`. It is never resumed: what breaks it is final.

    Not thread-safe: all calls are made with the loop's lock held. The socket never blocks.
    """

    def __init__(self, memory: Memory, rank: int, link: Link) -> None:
        self.memory = memory
        self.rank = rank
        self.endpoint = link.endpoint
        self.interests = link.interests
        self.sock = link.sock
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.open = True
        self.blocked = False  # there is more to send; the loop says when the kernel takes it
        self._urgent: deque[_Piece] = deque()
        self._bulk: deque[list] = deque()  # [cell, offset of the next frame, kind of its frames]
        self._writing: deque[_Piece] = deque()  # begun frames, that have to be ended
        # How long a frame may be. Each costs calls here and there, so it is as long as what the kernel has just taken
        # at once: a small cell, which waits for its end, does not wait longer than it would have for that.
        self._frame = FRAME_BYTES
        self._buffer = memoryview(bytearray(2 * FRAME_MAX))
        self._start = 0  # of what is in the buffer and not taken yet
        self._end = 0
        self._into: memoryview | None = None  # the rest of a long payload goes here
        self._reading: Reading | None = None  # ... and belongs to this read
        self._buffer[:len(link.early)] = link.early
        self._end = len(link.early)

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.endpoint}"

    @property
    def ends(self) -> tuple[Endpoint, Endpoint]:
        """Our end of the connection and theirs, as the kernel has them; `endpoint` is where the peer listens."""
        try:
            return Endpoint(*self.sock.getsockname()[:2]), Endpoint(*self.sock.getpeername()[:2])
        except OSError:  # it is closed already
            return Endpoint("", 0), self.endpoint

    # Out ------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes, tally: Tally) -> None:
        """Queue a frame, whose bytes `tally` counts, ahead of the long cells that wait."""
        self._urgent.append(_Piece(memoryview(frame), tally))
        self.memory.dirty.add(self)

    def serve(self, cell: Cell, kind: Kind) -> None:
        """Queue a cell: a small one ahead of the long ones, a long one behind them. `kind` says if it was asked for."""
        if cell.nbytes <= ATOMIC_BYTES:
            head = memoryview(wire.encode(kind, cell.round, cell.name, cell.what, cell.nbytes, 0, cell.nbytes))
            if cell.nbytes:
                self._urgent.append(_Piece(head, cell.tally))
                self._urgent.append(_Piece(cell.view, cell.tally, cell.nbytes, cell, True))
            else:
                self._urgent.append(_Piece(head, cell.tally, 0, cell, True))
        else:
            self._bulk.append([cell, 0, kind])
        self.memory.dirty.add(self)

    def post(self, parcel: Parcel) -> None:
        """Queue a parcel, behind all that was queued before."""
        self._bulk.append([parcel, 0, Kind.DATA])
        self.memory.dirty.add(self)

    def withdraw(self, number: int) -> None:
        """Send no more of a round's cells, and nothing that still lies in their regions."""
        self._bulk = deque(entry for entry in self._bulk if entry[0].round != number)
        for piece in (*self._writing, *self._urgent):
            if piece.cell is not None and piece.cell.round == number:
                # The frame has been announced, so its bytes must come; let them come from where nobody writes.
                piece.view = memoryview(bytes(piece.view))
                piece.cell = None

    @property
    def waiting(self) -> int:
        """Frames, or their parts, that wait for the kernel: all but long cells."""
        return len(self._urgent)

    @property
    def idle(self) -> bool:
        """Whether the kernel has everything that was queued."""
        return not (self._urgent or self._bulk or self._writing)

    def flush(self) -> None:
        """Hand the kernel what it takes now."""
        if not self.open:
            return
        try:
            for _ in range(SENDS):
                if not self._compose():
                    break
                count = self.sock.sendmsg([piece.view for piece in self._writing])
                self._sent(count)
                if self._writing or count > self._frame:
                    self._frame = min(max(count, FRAME_BYTES), LONGEST_FRAME)
                if self._writing:  # it takes no more
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self._broken(error)
            return
        blocked = not self.idle
        if blocked != self.blocked:
            self.blocked = blocked
            self.memory.loop.watch(self)

    def _compose(self) -> bool:
        """Choose what goes next, unless begun frames have to be ended first; False if there is nothing."""
        if self._writing:
            return True
        size = 0
        while self._urgent and len(self._writing) < PIECES_MAX:
            piece = self._urgent.popleft()
            size += len(piece.view)
            self._writing.append(piece)
        while self._bulk and size < 2 * self._frame and not self._urgent and len(self._writing) < PIECES_MAX:
            cell, offset, kind = entry = self._bulk[0]
            length = min(self._frame, cell.nbytes - offset)
            head = wire.encode(kind, cell.round, cell.name, cell.what, cell.nbytes, offset, length)
            last = offset + length == cell.nbytes
            self._writing.append(_Piece(memoryview(head), cell.tally))
            self._writing.append(_Piece(cell.view[offset:offset + length], cell.tally, length, cell, last))
            size += length
            entry[1] = offset + length
            if last:
                self._bulk.popleft()
        return bool(self._writing)

    def _sent(self, count: int) -> None:
        now = time.monotonic()
        while count:
            piece = self._writing[0]
            size = len(piece.view)
            taken = size if size < count else count
            count -= taken
            piece.tally.socket_sent += taken
            if piece.payload:
                piece.tally.sends(self.rank, taken, now)
            if taken < size:
                piece.view = piece.view[taken:]
                return
            self._writing.popleft()
            if piece.served and piece.cell is not None:
                self.memory.served(piece.cell, self.rank)

    # In -------------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take what has come."""
        try:
            for _ in range(RECEIVES):
                if not self.open or not self._receive_once():
                    return
        except BlockingIOError:
            return
        except ProtocolError as error:
            self.memory.lost(self, PeerLost(f"the connection to {self} was closed: {error}"))
        except OSError as error:
            self._broken(error)

    def _broken(self, error: OSError) -> None:
        if isinstance(error, ConnectionResetError | BrokenPipeError):  # a process that ends with something unread
            self.memory.ended(self)
        else:
            self.memory.lost(self, PeerLost(f"the connection to {self} has closed with an error: {error}"))

    def _receive_once(self) -> bool:
        """One call; return whether there may be more."""
        into = self._into
        if into is not None:
            # The buffer is empty here; it takes what lies behind the payload, mostly the next header.
            expected = len(into)
            room = expected + FRAME_MAX
            count = self.sock.recvmsg_into([into, self._buffer[:FRAME_MAX]])[0]
            if count > expected:
                self._end = count - expected
                self._streamed(expected)
            elif count:
                self._streamed(count)
                return False
        else:
            free = self._buffer[self._end:]
            room = len(free)
            count = self.sock.recv_into(free)
            self._end += count
        if not count:
            self.memory.ended(self)
            return False
        self.take()
        return count == room

    def take(self) -> None:
        """Take the frames in the buffer; what is there of the last, broken one moves to the front."""
        while self.open:
            if self._into is not None:
                taken = min(self._end - self._start, len(self._into))
                if not taken:
                    break
                self._into[:taken] = self._buffer[self._start:self._start + taken]
                self._start += taken
                self._streamed(taken)
                continue
            found = wire.decode(self._buffer[self._start:self._end])
            if found is None:
                break
            frame, body = found
            begin = self._start + body
            if frame.length <= ATOMIC_BYTES:
                if self._end - begin < frame.length:
                    break
                self._start = begin + frame.length
                self.memory.incoming.frame(self, frame, body, self._buffer[begin:self._start])
            else:
                self._start = begin
                self._reading = self.memory.incoming.long_frame(self, frame, body)
                self._into = _sink[:frame.length] if self._reading is None else self._reading.place(frame)
        left = self._end - self._start
        if self._start:
            if left:
                self._buffer[:left] = self._buffer[self._start:self._end]
            self._start, self._end = 0, left

    def _streamed(self, count: int) -> None:
        """`count` more bytes of the long payload are in place."""
        assert self._into is not None
        self._into = self._into[count:] if count < len(self._into) else None
        reading = self._reading
        if reading is not None:
            if self._into is None:
                self._reading = None
            self.memory.progress(reading, count)

    def redirect(self, old: Reading, new: Reading) -> None:
        """What is arriving for one read is for another from now on, which has as much already."""
        if self._reading is old:
            self._reading = new
            if self._into is not None:
                self._into = new.view[new.got:new.got + len(self._into)]

    def forget(self, reading: Reading) -> None:
        """A read is off: let the rest of the payload that is arriving for it go nowhere."""
        if self._reading is reading:
            self._reading = None
            if self._into is not None:
                self._into = _sink[:len(self._into)]

    def close(self) -> None:
        """Close the socket at once; what is queued is dropped."""
        if self.open:
            self.open = False
            self.memory.loop.unwatch(self)
            self.sock.close()
            self._urgent.clear()
            self._bulk.clear()
            self._writing.clear()
            self._into = self._reading = None
