"""One rank's membership of a group: what it is called, how it comes together, what is under way, how it ends."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from frogtorch.calls import Call, call
from frogtorch.collectives.interest import interests
from frogtorch.effects import Collective, Group
from frogtorch.engine import Operation, engine
from frogtorch.memory.faults import GroupClosed
from frogtorch.memory.rendezvous import rendezvous
from frogtorch.memory.space import Memory
from frogtorch.options import Options, Settings
from frogtorch.telemetry import GroupInfo, Record, Telemetry, dump
from frogtorch.telemetry.ranges import ranged
from frogtorch.work import Work

__all__ = ["Member"]


class Result(Protocol):
    """What has to be taken home when a collective has ended well."""

    def put_back(self) -> None:
        """Take it there."""


class Member(dist.ProcessGroup):
    """A process group of torch without its collectives.

    torch accepts no Python subclass of its Backend, so this is a whole ProcessGroup, and its own backend. torch asks
    for what a rank, a size or a name is by several names.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str, settings: Settings,
                 ranks: tuple[int, ...]) -> None:
        """Come together with the other members, whose global ranks are `ranks`. Raises RendezvousError."""
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store, torch refuses subclasses
        self._rank = rank
        self._size = size
        self._ranks = ranks
        self._name = name
        self._desc = "undefined"
        self._timeout = timeout.total_seconds()
        self._settings = settings
        self._store = store
        self._group = Group(rank, size)
        self._under_way: set[Work] = set()
        self._batch: list[Work] | None = None  # Works of what is being coalesced
        self._splits = 0
        if settings.dump is not None:
            engine().at_close["dump"] = dump.configure(settings.dump, ranks[rank], settings.dump_at_exit)
        subscribed = interests(rank)
        token, endpoint, links = rendezvous(store, name, rank, size, subscribed, self._timeout, settings.address,
                                            settings.advertise, settings.ports)
        # Never the incarnation itself in a text, as who knows it may join; a digest tells two runs apart as well.
        space = f"{name}#{hashlib.sha256(token).hexdigest()[:6]}"
        self._engine = engine()
        self.telemetry = Telemetry(GroupInfo(name, space, rank, ranks), settings.telemetry, self._engine.submit)
        self._engine.at_close[self] = self.telemetry.write
        with self._engine.loop.lock:
            self._memory = Memory(self._engine.loop, space, rank, endpoint, links, subscribed)
            self.telemetry.info.ends = {p: c.ends for p, c in self._memory.connections.items()}

    # What it is called ----------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name that ``init_process_group`` takes."""
        return "frogtorch"

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

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the user calls the group."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Take what the user calls the group."""
        self._desc = self.telemetry.info.desc = desc

    getRank = rank  # noqa: N815
    getSize = size  # noqa: N815
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def __repr__(self) -> str:
        ends = self.telemetry.info.ends
        paths = [f"{ours} with rank {peer} at {theirs}" for peer, (ours, theirs) in list(ends.items())[:8]]
        if len(ends) > 8:
            paths.append(f"and {len(ends) - 8} more")
        return (f"<frogtorch group {self._memory.space}: rank {self._rank} of {self._size} at {self._memory.endpoint}"
                f"{''.join(f'; {path}' for path in paths)}>")

    # What torch asks of its backend ---------------------------------------------------------------------------

    _device_types = (torch.device("cpu"),)  # type: ignore[assignment]
    supports_coalescing = True
    supports_splitting = False  # as torch means it: from a communicator on a device. For new_group it is no matter
    supports_time_estimate = False

    def _get_backend(self, device: torch.device) -> Member:  # type: ignore[override]
        """The group, which is its own backend. Raises RuntimeError, as torch does, for devices other than the CPU."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the frogtorch backend works on tensors of the CPU; it has nothing for {device}")
        return self

    @property
    def options(self) -> Backend.Options:
        """What torch keeps of a backend's options; ours are :class:`frogtorch.Options`."""
        options = Backend.Options("frogtorch", timedelta(seconds=self._timeout))
        options.global_ranks_in_group = list(self._ranks)
        options.group_name = self._name  # type: ignore[assignment]
        return options

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether it has memory of its own for tensors: no."""
        return False

    def get_group_store(self) -> dist.Store:
        """The c10d store, which the group itself has used at its rendezvous only."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Let what begins from now on, and does not bring its own, have this timeout."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: rounds are numbered from 0 on all ranks."""

    def _get_sequence_number_for_group(self) -> int:
        """Number of collectives so far."""
        return self._memory.next_round

    # What is under way ----------------------------------------------------------------------------------------

    def _start(self, call: Call, collective: Collective, dtype: torch.dtype, nbytes: int,
               filled: Sequence[torch.Tensor], *, variant: str, given: Sequence[torch.Tensor] | None = None,
               results: Iterable[Result] = (), algorithm: str | None = None, op: str | None = None) -> Work:
        """Start `collective`, on `nbytes` of elements of `dtype`; `variant` says what else is alike on all ranks.

        `filled` are the tensors that it fills, `given` those it takes, by default the same. `results` are taken home,
        in their order, when it has ended.
        """
        record = Record(self._name, self._rank, self._size, call.collective, algorithm, op,
                        str(dtype).removeprefix("torch."), nbytes, time.monotonic(),
                        [tensor.shape for tensor in (filled if given is None else given)],
                        [tensor.shape for tensor in filled])
        work = Work(list(filled), self._engine.submit, call.collective)
        self._under_way.add(work)
        timeout = call.timeout or self._timeout
        return self._run(record, work, results, lambda done: Operation(
            self._engine, collective, record, dtype, variant, timeout, done))

    def _run(self, record: Record, work: Work, results: Iterable[Result],
             operation: Callable[[Callable[[BaseException | None], None]], Operation]) -> Work:
        def done(error: BaseException | None) -> None:
            if error is None:
                try:
                    for result in results:
                        result.put_back()
                except Exception as refused:  # torch's word on the caller's tensor: its Work must tell, not this thread
                    error = refused
            self.telemetry.end(record, error)
            self._under_way.discard(work)
            work.complete(error)

        self.telemetry.begin(record)
        try:
            with ranged(record.collective):
                self._engine.run(self._memory, operation(done))
        except BaseException as error:
            self.telemetry.end(record, error)
            self._under_way.discard(work)
            raise
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _root(self, call: Call) -> int:
        """The root of a collective. Raises ValueError."""
        root: int = call.options.rootRank
        if not 0 <= root < self._size:
            raise ValueError(f"the root is a rank of the group, from 0 to {self._size - 1}, not {root}")
        return root

    def _joint(self, works: Sequence[Work], tensors: Sequence[torch.Tensor]) -> Work:
        """A Work that ends with the last of `works`."""
        return works[0] if len(works) == 1 else Work.joint(works, list(tensors), self._engine.submit)

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect what is issued from now on; each begins all the same when it is issued."""
        self._batch = []  # and never an error, which would leave torch with an open manager

    def _end_coalescing(self, device: torch.device) -> Work:
        """A Work that ends with the last of what was issued since :meth:`_start_coalescing`."""
        works, self._batch = self._batch or [], None
        return self._joint(works, [tensor for work in works for tensor in work.result()])

    # Other groups, and the end --------------------------------------------------------------------------------

    @call("split_group")
    def split_group(self, ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None,
                    name: str | None = None, desc: str | None = None, devices: Any = None) -> Member | None:
        """The group of some of our ranks, given as ranks of ours: None on those that are not among them.

        All of ours call it, and in the same order, for any number of groups at a time: each names its own. `opts` are
        :class:`frogtorch.Options`; by default ours. Raises ValueError for ranks that cannot be.
        """
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self._size for rank in ranks) or not ranks:
            raise ValueError(f"it takes different ranks from 0 to {self._size - 1}, not {list(ranks)}")
        self._splits += 1
        if self._rank not in ranks:
            return None
        name = name or f"{self._name}:split:{self._splits}:{'_'.join(map(str, ranks))}"
        group = type(self)(
            dist.PrefixStore(f"{name}/", self._store), list(ranks).index(self._rank), len(ranks),
            timedelta(seconds=self._timeout) if timeout is None else timeout, name,
            opts.resolved() if isinstance(opts, Options) else self._settings, tuple(self._ranks[r] for r in ranks))
        group.setGroupDesc(desc or f"{self._desc}:split")
        return group

    splitGroup = split_group  # noqa: N815

    @call("shutdown")
    def shutdown(self) -> None:
        """Leave: wait until what was begun has ended and the others have read what they need, then close."""
        self._memory.leave(self._timeout)
        self._end_telemetry()

    @call("abort")
    def abort(self) -> None:
        """Close now: what is under way fails, here and on the other ranks."""
        with self._engine.loop.lock:
            self._memory.abort(GroupClosed(f"group {self._memory.space} was aborted on rank {self._rank}"))
        self._end_telemetry()

    def _end_telemetry(self) -> None:
        self._engine.at_close.pop(self, None)
        self.telemetry.write()
