"""The engine: drives collectives, as generators of effects, against FrogNet Memory and tensors.

One engine a process, with one I/O thread for all its groups. The thread that calls a collective runs it to its first
wait; from there the I/O thread does, as bytes come in.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from frogtorch.arithmetic import combine
from frogtorch.effects import (
    Buffer,
    Collective,
    Combine,
    Copy,
    Look,
    Publish,
    Read,
    Receive,
    Region,
    Release,
    Send,
    Stage,
)
from frogtorch.lanes import WAITING, Lane, Lanes
from frogtorch.memory.cells import Reading, Tally
from frogtorch.memory.faults import GroupClosed, MemoryFault, RoundTimeout
from frogtorch.memory.loop import Loop
from frogtorch.memory.parcels import Parcel
from frogtorch.memory.rates import BULK_BYTES
from frogtorch.memory.space import Memory
from frogtorch.memory.texts import address
from frogtorch.memory.wire import encode_name
from frogtorch.telemetry import Record
from frogtorch.telemetry.record import REDUCED

__all__ = ["Engine", "Operation", "bind", "bytes_of", "engine"]

EXIT_GRACE = 10.0
"""Seconds that a process which ends without destroying its groups gives its peers to read what it has published."""

DOUBT = 5.0
"""Seconds after which a read whose cell should have come without a request asks for it once, all the same."""

POOL_BYTES = 256 << 20
"""Most bytes of working memory kept for the next collective."""


class Storage(NamedTuple):
    """Where a buffer's elements are: a flat contiguous tensor, and its bytes."""

    tensor: torch.Tensor
    view: memoryview


_memory_view = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_view.restype = ctypes.py_object
_memory_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200  # PyBUF_WRITE


def bind(flat: torch.Tensor) -> Buffer:
    """A buffer over a flat contiguous CPU tensor, which it keeps alive."""
    nbytes = flat.numel() * flat.itemsize
    view = _memory_view(flat.data_ptr(), nbytes, _WRITABLE) if nbytes else memoryview(bytearray())
    return Buffer(flat.numel(), flat.itemsize, Storage(flat, view))


def _tensor(region: Region) -> torch.Tensor:
    flat: torch.Tensor = region.buffer.storage.tensor
    return flat if region.count == region.buffer.count else flat[region.lo:region.hi]


def bytes_of(region: Region) -> memoryview:
    """The bytes of a region, where they are."""
    view: memoryview = region.buffer.storage.view
    return view[region.lo * region.itemsize:region.hi * region.itemsize]


class Pool:
    """Working memory. Fresh pages cost as much as the copy that fills them, and training asks for the same again."""

    def __init__(self) -> None:
        self._free: dict[int, list[Buffer]] = defaultdict(list)
        self._bytes = 0

    def get(self, nbytes: int) -> Buffer:
        """A buffer of `nbytes` bytes, undefined."""
        kept = self._free.get(nbytes)
        if kept:
            self._bytes -= nbytes
            return kept.pop()
        return bind(torch.empty(nbytes, dtype=torch.uint8))

    def put(self, buffer: Buffer) -> None:
        """Give a buffer back, that nobody reads or writes any more."""
        if self._bytes + buffer.count > POOL_BYTES:
            self._free.clear()
            self._bytes = 0
        self._free[buffer.count].append(buffer)
        self._bytes += buffer.count


class Engine:
    """The loop, the working memory, and the threads that complete futures."""

    def __init__(self) -> None:
        # Inference mode: what a user's inference tensors ask for, and as good for all others here.
        self.loop = Loop(torch.inference_mode)
        self.pool = Pool()
        self.at_close: dict[Any, Callable[[], None]] = {}
        """What groups have to put in order when the process ends without leaving them."""
        # Callbacks of a future run in the thread that completes it, and may start collectives and wait for them:
        # never on the I/O thread, and on as many threads as there are callbacks that wait.
        self._completers = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="frogtorch-complete")

    def submit(self, function: Callable[[], Any]) -> None:
        """Call `function` soon, on a thread where it may wait for other collectives."""
        # At the interpreter's end no more threads are started, and nobody is left who could wait for the future.
        with contextlib.suppress(RuntimeError):
            self._completers.submit(function)

    def run(self, memory: Memory, operation: Operation) -> None:
        """Start `operation`, and run it to its first wait. Raises GroupClosed."""
        with self.loop.door, self.loop.lock, torch.inference_mode():
            try:
                operation.start(memory)
                memory.flush()
            except (KeyboardInterrupt, SystemExit) as error:
                # A signal came in the middle of it: nobody knows what was done, and what was not.
                memory.abort(GroupClosed(f"group {memory.space} was closed on rank {memory.rank}: {error!r} came while "
                                         f"a collective was being started"))
                raise

    def close(self) -> None:
        """Leave all groups, stop the threads."""
        for memory in list(self.loop.memories):
            memory.leave(EXIT_GRACE)
        for put_in_order in self.at_close.values():
            put_in_order()
        self.loop.close()
        self._completers.shutdown(wait=False)


class Operation:
    """One collective of one group under way."""

    def __init__(self, engine: Engine, collective: Collective, record: Record, dtype: torch.dtype, variant: str,
                 timeout: float, done: Callable[[BaseException | None], None]) -> None:
        """Drive `collective`; `record` says what it is, `variant` what else has to be alike on all ranks.

        `done` is called once, with the loop's lock held: with None, or with the error. Nothing is read into, or sent
        from, the collective's tensors after that.
        """
        self.what = f"{record.collective}/{variant}/{record.dtype}".encode()[:255]
        self.until = record.start + timeout
        self.deadline = min(self.until, record.start + DOUBT)
        self.tally: Tally = record.tally
        self.number = -1
        self._engine = engine
        self._memory: Memory
        self._record = record
        self._dtype = dtype
        self._timeout = timeout
        self._done = done
        self._staged: dict[Buffer, Buffer] = {}  # as the collective has it: what it is in the pool
        self._pairs: dict[tuple[str, str, int], int] = defaultdict(int)  # Sends and Receives so far, by peer and kind
        self._reads: dict[Reading, Lane] = {}
        self._sends: dict[Parcel, tuple[Lane, int]] = {}  # and to whom
        self._lent = 0  # cells and parcels that are served from the collective's own tensors
        self._held = False  # all is done but that readers have to catch up before the caller goes on
        record.timeout = timeout
        record.waiting = self._reads
        self._lanes = Lanes(collective, self._perform, self._cancel, self._end)

    def start(self, memory: Memory) -> None:
        """Run to the first wait; the loop's lock is held."""
        self._memory = memory
        self.number = self._record.round = memory.begin(self)
        self._record.tally = self.tally
        fault = memory.early(self.number)
        if fault is not None:
            self.fail(fault)
            return
        self._lanes.run()

    def fail(self, error: BaseException) -> None:
        """End with `error`, which is told what it was that failed."""
        if self._held:
            self._close(error)
        else:
            self._lanes.stop(error)

    def expire(self) -> None:
        """The deadline has passed. If that was the timeout, end: the error says what was waited for, and what came."""
        if time.monotonic() < self.until:
            self._doubt()
            return
        waited = self._waited()
        more = f", and {len(waited) - 4} more" if len(waited) > 4 else ""
        self.fail(RoundTimeout(f"the timeout of {self._timeout:g} s passed, waiting for "
                               f"{', '.join(waited[:4]) or 'the network'}{more}"))

    def _doubt(self) -> None:
        """Ask for what should have come unasked: an owner that has nothing for this round, or another size, says so."""
        self.deadline = self.until
        for reading in self._reads:
            if not reading.asked:
                self._memory.ask(reading, self._memory.peers[reading.owner])

    def _waited(self) -> list[str]:
        """What this operation waits for."""
        memory = self._memory
        if self._held:
            return [f"{memory.peers[rank]} to read {address(memory, cell.round, cell.name, memory.rank)}, kept for it "
                    f"here" for cell, rank in memory.published.waiting(self.number)]
        # Contributions first: a sum may be late because its owner waits, too.
        reads = sorted(self._reads, key=lambda reading: reading.name.startswith(REDUCED))
        return [f"{address(memory, r.round, r.name, r.owner)} of {memory.peers[r.owner]} "
                f"({r.got} of {len(r.view)} bytes came)" for r in reads] + [
                f"{memory.peers[to]} to take {address(memory, parcel.round, parcel.name, memory.rank)}"
                for parcel, (_, to) in self._sends.items()]

    def _explained(self, error: BaseException) -> BaseException:
        """A memory's fault, with what every one of them has to say: collective, round, group and rank."""
        if not isinstance(error, MemoryFault):
            return error
        record = self._record
        what = ", ".join(x for x in (record.algorithm, record.op, record.dtype) if x)
        return type(error)(f"{record.collective} ({what}), round {self.number} of {self._memory.space}, on rank "
                           f"{record.rank}: {error}")

    def _end(self, _: Any, error: BaseException | None) -> None:
        for room in self._staged.values():
            self._engine.pool.put(room)
        self._staged.clear()
        if error is None:
            self._held = True
            self._catch_up()
        else:
            self._close(error)

    def _catch_up(self) -> None:
        """All is done here: end, unless readers have to catch up first."""
        if not self._lent and not self._memory.hold(self.number, lambda: self._close(None)):
            self._close(None)

    def _served(self) -> None:
        """A cell that was served in place is gone: read by all its readers, or withdrawn."""
        self._lent -= 1
        if self._held and not self._lent:
            self._catch_up()

    def _close(self, error: BaseException | None) -> None:
        self._held = False
        self._leave(error)
        self._record.end = time.monotonic()
        # Once the caller knows, its process may end: what this rank owes the others is out of its hands first.
        result = None if error is None else self._explained(error)
        self._memory.when_flushed.append(lambda: self._done(result))

    def _leave(self, error: BaseException | None) -> None:
        self._memory.end(self.number, error)

    # Effects --------------------------------------------------------------------------------------------------

    def _perform(self, lane: Lane, effect: Any) -> Any:
        return _HANDLERS[type(effect)](self, lane, effect)

    def _cancel(self, lane: Lane) -> None:
        what = lane.waits_for
        if self._reads.pop(what, None) is not None:
            self._memory.cancel(what)
        else:
            self._sends.pop(what, None)  # it goes on its way; what became of it concerns nobody here

    def _publish(self, lane: Lane, effect: Publish) -> None:
        begin = time.monotonic()
        name, region = effect.name, effect.region
        if effect.copy:
            room = self._engine.pool.get(region.nbytes)
            room.storage.view[:] = bytes_of(region)
            self._memory.publish(self.number, name, room.storage.view, effect.readers,
                                 lambda: self._engine.pool.put(room), copied=True)
        else:
            self._lent += 1
            self._memory.publish(self.number, name, bytes_of(region), effect.readers, self._served)
        self._record.publish += time.monotonic() - begin

    def _read(self, lane: Lane, effect: Read) -> Any:
        reading = self._reading(encode_name(effect.name), effect.owner, effect.into)
        return self._await(lane, reading, self._memory.read(reading, effect.name))

    def _reading(self, name: bytes, owner: int, into: Region) -> Reading:
        return Reading(self.number, name, owner, self.what, bytes_of(into), self.tally, self._filled)

    def _await(self, lane: Lane, reading: Reading, filled: bool) -> Any:
        if filled:
            self._record.read(reading)
            return None
        self._reads[reading] = lane
        lane.waits_for = reading
        return WAITING

    def _filled(self, reading: Reading, error: BaseException | None) -> None:
        lane = self._reads.pop(reading, None)
        if lane is None:
            return
        if error is None:
            self._record.read(reading)
            if len(reading.view) >= BULK_BYTES:
                self._memory.rates.saw(reading, self._engine.submit)
        self._lanes.go_on(lane, error=error)

    def _combine(self, lane: Lane, effect: Combine) -> None:
        combine(_tensor(effect.into), [_tensor(part) for part in effect.parts], effect.op)
        self._record.combined = time.monotonic()

    def _copy(self, lane: Lane, effect: Copy) -> None:
        _tensor(effect.into).copy_(_tensor(effect.source))

    def _look(self, lane: Lane, effect: Look) -> int:
        return int.from_bytes(bytes_of(effect.region), sys.byteorder, signed=True)

    def _stage(self, lane: Lane, effect: Stage) -> Buffer:
        room = self._engine.pool.get(effect.count * effect.itemsize)
        dtype = self._dtype if effect.itemsize == self._dtype.itemsize else torch.uint8
        buffer = Buffer(effect.count, effect.itemsize, Storage(room.storage.tensor.view(dtype), room.storage.view))
        self._staged[buffer] = room
        return buffer

    def _release(self, lane: Lane, effect: Release) -> None:
        room = self._staged.pop(effect.buffer, None)
        if room is None:
            raise ValueError(f"{effect.buffer!r} was released twice, or is not of this collective")
        self._engine.pool.put(room)

    def _send(self, lane: Lane, effect: Send) -> Any:
        name = self._pair("to", effect.kind, effect.to)
        parcel = Parcel(self.number, name, self.what, bytes_of(effect.region), self.tally, self._sent)
        self._memory.send(parcel, effect.to)
        self._lent += 1
        self._sends[parcel] = lane, effect.to
        lane.waits_for = parcel
        return WAITING

    def _sent(self, parcel: Parcel, error: BaseException | None) -> None:
        lane, _ = self._sends.pop(parcel, (None, None))
        if lane is not None:
            self._lanes.go_on(lane, error=error)
        self._served()

    def _receive(self, lane: Lane, effect: Receive) -> Any:
        reading = self._reading(self._pair("from", effect.kind, effect.source), effect.source, effect.into)
        return self._await(lane, reading, self._memory.receive(reading))

    def _pair(self, way: str, kind: str, peer: int) -> bytes:
        """The name of the next Send of a kind to, or Receive from, `peer`: they are counted on both sides."""
        index = self._pairs[way, kind, peer]
        self._pairs[way, kind, peer] += 1
        return encode_name((kind, index))


_HANDLERS: dict[type, Callable[[Operation, Lane, Any], Any]] = {
    Publish: Operation._publish, Read: Operation._read, Combine: Operation._combine, Copy: Operation._copy,
    Look: Operation._look, Stage: Operation._stage, Release: Operation._release, Send: Operation._send,
    Receive: Operation._receive,
}


_lock = threading.Lock()
_engine: Engine | None = None


def engine() -> Engine:
    """The process's engine, started when it is first asked for."""
    global _engine
    with _lock:
        if _engine is None or _engine.loop.failed:
            if _engine is None:
                atexit.register(_at_exit)
            _engine = Engine()
        return _engine


def _at_exit() -> None:
    global _engine
    with _lock:
        one, _engine = _engine, None
    if one is not None:
        one.close()


def _in_child() -> None:
    global _engine, _lock
    _lock = threading.Lock()
    if _engine is not None:
        _engine.loop.after_fork()
        _engine = None


os.register_at_fork(after_in_child=_in_child)
