"""The c10d contract: torch's tensors and options in, collectives of ours out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
)

from frogtorch import arithmetic
from frogtorch.collectives import ALL_REDUCE, all_gather, barrier, broadcast, pipelined
from frogtorch.collectives.interest import interests
from frogtorch.effects import Collective, Group
from frogtorch.engine import Operation, bind, engine
from frogtorch.memory.faults import GroupClosed
from frogtorch.memory.rendezvous import rendezvous
from frogtorch.memory.space import Memory
from frogtorch.messages import Receive, Received, Send, checked
from frogtorch.options import Options, Settings
from frogtorch.telemetry import GroupInfo, Record, Telemetry, dump
from frogtorch.telemetry.ranges import Range
from frogtorch.work import Work

__all__ = ["ProcessGroup", "create"]

_OPS = {
    dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "avg", dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min", dist.ReduceOp.MAX: "max",
}


def create(opts: Any, pg_options: Any) -> ProcessGroup:
    """Make a group, as torch's extended creator: `opts` says who and where, `pg_options` is the caller's.

    Raises TypeError or ValueError for bad options, RendezvousError if the group does not come together.
    """
    if not isinstance(pg_options, Options | None):
        raise TypeError(f"pg_options of the frogtorch backend is a frogtorch.Options, not {pg_options!r}")
    settings = (pg_options or Options()).resolved()
    ranks = tuple(opts.global_ranks_in_group) or tuple(range(opts.group_size))  # torch's are empty for the world
    return ProcessGroup(opts.store, opts.group_rank, opts.group_size, opts.timeout, str(opts.group_id), settings, ranks)


def _not_yet(name: str) -> Callable[..., NoReturn]:
    def method(self: ProcessGroup, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"not yet: the frogtorch backend has no {name}; it has all_reduce, broadcast, "
                                  f"all_gather and barrier")
    method.__name__ = name
    return method


class _Flat:
    """A tensor as the engine takes it: flat and contiguous, out of autograd's sight.

    What it points to is the tensor's own memory if that is contiguous, else a copy, which :meth:`put_back` returns.
    """

    __slots__ = ("flat", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise TypeError(f"the frogtorch backend takes dense CPU tensors, not {tensor.layout} on {tensor.device}")
        self.tensor = tensor.detach()
        self.flat = self.tensor.contiguous().view(-1)

    def put_back(self) -> None:
        if not self.tensor.is_contiguous():
            self.tensor.copy_(self.flat.view(self.tensor.shape))


class ProcessGroup(dist.ProcessGroup):
    """One group of ranks, over FrogNet Memory.

    torch accepts no Python subclass of its Backend, so this is a whole ProcessGroup. Collectives are asynchronous:
    each returns a :class:`~frogtorch.work.Work`, any number may be under way, and their order on a rank has to be
    the same on all ranks.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str, settings: Settings,
                 ranks: tuple[int, ...]) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store, torch refuses subclasses
        self._rank = rank
        self._size = size
        self._name = name
        self._desc = "undefined"
        self._timeout = timeout.total_seconds()
        self._settings = settings
        self._store = store
        self._group = Group(rank, size)
        if settings.dump is not None:
            engine().at_close["dump"] = dump.configure(settings.dump, ranks[rank], settings.dump_at_exit)
        subscribed = interests(rank)
        token, endpoint, links = rendezvous(store, name, rank, size, subscribed, self._timeout, settings.address)
        # Never the incarnation itself in a text, as who knows it may join; a digest tells two runs apart as well.
        space = f"{name}#{hashlib.sha256(token).hexdigest()[:6]}"
        self._engine = engine()
        self.telemetry = Telemetry(GroupInfo(name, space, rank, ranks), settings.telemetry, self._engine.submit)
        self._engine.at_close[self] = self.telemetry.write
        with self._engine.loop.lock:
            self._memory = Memory(self._engine.loop, space, rank, endpoint, links, subscribed)
            self.telemetry.info.ends = {p: c.ends for p, c in self._memory.connections.items()}

    # What it is -----------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name that ``init_process_group`` takes."""
        return "frogtorch"

    def getRank(self) -> int:  # noqa: N802
        """Our rank in the group."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """Number of ranks."""
        return self._size

    def rank(self) -> int:
        """Our rank in the group."""
        return self._rank

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch gave the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Take the name that torch gives the group."""
        self._name = name

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name that torch gave the group."""
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the user calls the group."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Take what the user calls the group."""
        self._desc = self.telemetry.info.desc = desc

    @property
    def group_desc(self) -> str:
        """What the user calls the group."""
        return self._desc

    def get_group_store(self) -> dist.Store:
        """The c10d store, which the group itself has used at its rendezvous only."""
        return self._store

    def __repr__(self) -> str:
        return f"<frogtorch group {self._memory.space}: rank {self._rank} of {self._size} at {self._memory.endpoint}>"

    # Collectives ----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        """All-reduce one tensor in place."""
        opts = opts or AllreduceOptions()
        (tensor,) = _one(tensors, "all_reduce")
        flat = _Flat(tensor)
        return self._all_reduce(flat.flat, flat.put_back, tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """All-reduce several tensors of one dtype in place, as one."""
        opts = opts or AllreduceCoalescedOptions()
        if len({tensor.dtype for tensor in tensors}) != 1:
            raise TypeError(f"all_reduce_coalesced takes tensors of one dtype, not {[t.dtype for t in tensors]}")
        flats = [_Flat(tensor) for tensor in tensors]
        joined = torch.cat([flat.flat for flat in flats])

        def put_back() -> None:
            for flat, part in zip(flats, joined.split([f.flat.numel() for f in flats]), strict=True):
                flat.tensor.copy_(part.view(flat.tensor.shape))

        return self._all_reduce(joined, put_back, tensors, opts)

    def _all_reduce(self, flat: torch.Tensor, put_back: Callable[[], None], tensors: list[torch.Tensor],
                    opts: Any) -> Work:
        op = _op(opts.reduceOp, flat.dtype)
        arithmetic.check(op, flat.dtype)
        name = self._settings.all_reduce
        algorithm = ALL_REDUCE[name]
        variant = f"{name}/{op}"
        if name == "pipelined":
            algorithm = partial(pipelined, chunk_bytes=self._settings.chunk_bytes)
            variant = f"{name}:{self._settings.chunk_bytes}/{op}"
        return self._start(algorithm(self._group, bind(flat)[:], op), tensors, flat, put_back, opts,
                           collective="all_reduce", variant=variant, algorithm=name, op=op)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        """Fill one tensor with that of the root, which is a rank of the group."""
        opts = opts or BroadcastOptions()
        (tensor,) = _one(tensors, "broadcast")
        flat = _Flat(tensor)
        return self._start(broadcast(self._group, bind(flat.flat)[:], opts.rootRank), tensors, flat.flat,
                           flat.put_back, opts, collective="broadcast", variant=f"from {opts.rootRank}")

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],  # type: ignore[override]
                  opts: Any = None) -> Work:
        """Fill one tensor a rank with that rank's; their sizes may differ."""
        opts = opts or AllgatherOptions()
        (mine,) = _one(inputs, "all_gather")
        (into,) = outputs
        if len(into) != self._size:
            raise ValueError(f"all_gather in a group of {self._size} takes as many output tensors, not {len(into)}")
        if any(tensor.dtype != mine.dtype for tensor in into) or into[self._rank].numel() != mine.numel():
            raise ValueError(
                f"all_gather of {mine.numel()} x {mine.dtype} on rank {self._rank} has no room in outputs of "
                f"{[(tensor.numel(), tensor.dtype) for tensor in into]}")
        flats = [_Flat(tensor) for tensor in into]
        source = _Flat(mine).flat

        def put_back() -> None:
            for flat in flats:
                flat.put_back()

        return self._start(all_gather(self._group, bind(source)[:], [bind(flat.flat)[:] for flat in flats]), into,
                           source, put_back, opts, collective="all_gather", variant="list", given=[mine])

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> Work:
        """Fill `output` with the `mine` of all ranks, one behind the other."""
        opts = opts or AllgatherOptions()
        if output.dtype != mine.dtype or output.numel() != mine.numel() * self._size:
            raise ValueError(f"all_gather of {mine.numel()} x {mine.dtype} in a group of {self._size} has no room in "
                             f"an output of {output.numel()} x {output.dtype}")
        flat, source = _Flat(output), _Flat(mine).flat
        return self._start(all_gather(self._group, bind(source)[:], bind(flat.flat)[:].split(self._size)), [output],
                           source, flat.put_back, opts, collective="all_gather", variant="single", given=[mine])

    _allgather_base = all_gather_single  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> Work:
        """End when every rank has come."""
        opts = opts or BarrierOptions()
        token = torch.zeros(1, dtype=torch.uint8)
        return self._start(barrier(self._group), [token], token, lambda: None, opts, collective="barrier",
                           variant="all", given=[])

    def _start(self, collective_: Collective, tensors: list[torch.Tensor], flat: torch.Tensor,
               put_back: Callable[[], None], opts: Any, *, collective: str, variant: str,
               algorithm: str | None = None, op: str | None = None,
               given: Sequence[torch.Tensor] | None = None) -> Work:
        # `tensors` are those that the collective fills; `given` what it takes, where that is not the same.
        timeout = opts.timeout.total_seconds()
        record = Record(self._name, self._rank, self._size, collective, algorithm, op,
                        str(flat.dtype).removeprefix("torch."), flat.numel() * flat.itemsize, time.monotonic(),
                        [tensor.shape for tensor in (tensors if given is None else given)],
                        [tensor.shape for tensor in tensors])
        # A negative timeout is how torch says that there is none of its own.
        return self._run(record, Work(tensors, self._engine.submit), put_back, lambda done: Operation(
            self._engine, collective_, record, flat.dtype, variant, timeout if timeout > 0 else self._timeout, done))

    def _run(self, record: Record, work: Work, put_back: Callable[[], None],
             operation: Callable[[Callable[[BaseException | None], None]], Operation]) -> Work:
        seen = Range(record.collective)

        def done(error: BaseException | None) -> None:
            if error is None:
                try:
                    put_back()
                except Exception as refused:  # torch's word on the caller's tensor: its Work must tell, not this thread
                    error = refused
            self.telemetry.end(record, error)
            work.complete(error)

        self.telemetry.begin(record)
        try:
            self._engine.run(self._memory, operation(done))
        except BaseException as error:
            self.telemetry.end(record, error)
            seen.end(None)
            raise
        seen.end(work)
        return work

    reduce = _not_yet("reduce")
    gather = _not_yet("gather")
    scatter = _not_yet("scatter")
    reduce_scatter = _not_yet("reduce_scatter")
    reduce_scatter_single = _reduce_scatter_base = _not_yet("reduce_scatter_tensor")
    reduce_scatter_single_coalesced = _not_yet("reduce_scatter_tensor_coalesced")
    all_gather_single_coalesced = _not_yet("all_gather_into_tensor_coalesced")
    allgather_coalesced = _not_yet("all_gather_coalesced")
    alltoall = _not_yet("all_to_all")
    all_to_all_single = alltoall_base = _not_yet("all_to_all_single")
    _start_coalescing = _not_yet("coalescing manager")

    # Point to point -------------------------------------------------------------------------------------------

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:  # type: ignore[override]
        """Send one tensor to rank `dst` of the group.

        Done when it is copied: Gloo's waits for the receiver. It waits here too while this rank keeps too many copies
        that nobody has read. A receive of another size or dtype fails, and names both. Raises ValueError for a rank
        or tag that cannot be.
        """
        (tensor,) = _one(tensors, "send")
        checked("send", dst, tag, self._group)
        flat = _Flat(tensor).flat
        record = self._message("send", flat, dst, tag, [tensor.shape], [])
        return self._run(record, Work([], self._engine.submit), lambda: None, lambda done: Send(
            self._engine, self._group, bind(flat)[:], record, flat.dtype, self._timeout, done))

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:  # type: ignore[override]
        """Fill one tensor with the next message of rank `src` of the group that has this tag. Raises ValueError."""
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:  # type: ignore[override]
        """Fill one tensor with the next message that has this tag; the Work's ``source_rank()`` says whose it was."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: list[torch.Tensor], source: int | None, tag: int) -> Work:
        (tensor,) = _one(tensors, "recv")
        checked("recv", source, tag, self._group)
        flat = _Flat(tensor)
        record = self._message("recv", flat.flat, source, tag, [], [tensor.shape])
        return self._run(record, Received(tensors, self._engine.submit, record), flat.put_back, lambda done: Receive(
            self._engine, self._group, bind(flat.flat)[:], record, flat.flat.dtype, self._timeout, done))

    def _message(self, what: str, flat: torch.Tensor, peer: int | None, tag: int, inputs: list[torch.Size],
                 outputs: list[torch.Size]) -> Record:
        return Record(self._name, self._rank, self._size, what, None, None, str(flat.dtype).removeprefix("torch."),
                      flat.numel() * flat.itemsize, time.monotonic(), inputs, outputs, peer=peer, tag=tag)

    # The end --------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave: wait until what was begun has ended and the others have read what they need, then close."""
        self._memory.leave(self._timeout)
        self._end_telemetry()

    def abort(self) -> None:
        """Close now: what is under way fails, here and on the other ranks."""
        with self._engine.loop.lock:
            self._memory.abort(GroupClosed(f"group {self._memory.space} was aborted on rank {self._rank}"))
        self._end_telemetry()

    def _end_telemetry(self) -> None:
        self._engine.at_close.pop(self, None)
        self.telemetry.write()


def _one(tensors: Sequence[torch.Tensor], what: str) -> Sequence[torch.Tensor]:
    if len(tensors) != 1:
        raise ValueError(f"{what} takes one tensor a rank, not {len(tensors)}")
    return tensors


def _op(op: Any, dtype: torch.dtype) -> str:
    for known, name in _OPS.items():
        if op == known:
            return name
    raise NotImplementedError(f"not yet: the frogtorch backend cannot reduce {dtype} with {op.op}; it can with "
                              f"{', '.join(_OPS.values())}")


# torch.compile would trace into these methods, which lock, and talk to threads and sockets.
for _name in ("allreduce", "allreduce_coalesced", "broadcast", "allgather", "all_gather_single", "_allgather_base",
              "barrier", "send", "recv", "recv_anysource", "shutdown", "abort"):
    setattr(ProcessGroup, _name, torch._dynamo.disable(getattr(ProcessGroup, _name)))
