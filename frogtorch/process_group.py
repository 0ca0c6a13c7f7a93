"""The c10d contract: torch's tensors and options in, collectives of ours out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BarrierOptions

from frogtorch import (
    collectives,
    functional,  # noqa: F401 - a kernel that it registers
)
from frogtorch.buckets import Buckets
from frogtorch.calls import Call, call, collective
from frogtorch.collectives.monitored_barrier import monitored_barrier
from frogtorch.effects import Collective
from frogtorch.engine import bind
from frogtorch.memory.faults import MemoryFault, RoundTimeout
from frogtorch.messages import Receive, Received, Send, checked
from frogtorch.movements import Movements
from frogtorch.options import Options
from frogtorch.reductions import Reductions
from frogtorch.telemetry import Record
from frogtorch.tensors import Place, flat_of, only
from frogtorch.work import Work

__all__ = ["ProcessGroup", "create"]


def create(opts: Any, pg_options: Any) -> ProcessGroup:
    """Make a group, as torch's extended creator: `opts` says who and where, `pg_options` is the caller's.

    Raises TypeError or ValueError for bad options, RendezvousError if the group does not come together.
    """
    if not isinstance(pg_options, Options | None):
        raise TypeError(f"pg_options of the frogtorch backend is a frogtorch.Options, not {pg_options!r}")
    settings = (pg_options or Options()).resolved()
    ranks = tuple(opts.global_ranks_in_group) or tuple(range(opts.group_size))  # torch's are empty for the world
    return ProcessGroup(opts.store, opts.group_rank, opts.group_size, opts.timeout, str(opts.group_id), settings, ranks)


class ProcessGroup(Reductions, Movements, Buckets):
    """One group of ranks, over FrogNet Memory: what torch calls.

    ====================  ============================================================================
    :class:`Member`       what the group is called, how it comes together, what is under way, its end
    :class:`Reductions`   collectives that reduce
    :class:`Movements`    collectives that move tensors
    :class:`Buckets`      means of gradient buckets, for the comm hooks
    here                  barriers, and messages from one rank to another
    ====================  ============================================================================

    Everything is asynchronous: it returns a :class:`~frogtorch.work.Work`, any number may be under way, and the order
    of collectives on a rank has to be the same on all ranks. What cannot be is refused with a TypeError or ValueError
    before anything was changed. Tensors may lie in memory as they like, but for results in an expanded one.

    torch passes tensors in lists, from the time when a rank had several devices: of one tensor, or of one list with a
    tensor for each rank.
    """

    # Barriers -------------------------------------------------------------------------------------------------

    @collective("barrier", BarrierOptions)
    def barrier(self, call: Call) -> Work:
        """End when every rank has come, and every collective has ended that this rank began before."""
        before = list(self._under_way)
        return self._joint([*before, self._meet(call, collectives.barrier(self._group))], [])

    @call("monitored_barrier")
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return when every rank has come. If one does not, rank 0 says which: all of them with `wait_all_ranks`.

        ``torch.distributed.monitored_barrier`` refuses every backend but Gloo, so this is called on the group itself.
        Its errors begin as Gloo's do. Raises RoundTimeout, PeerLost or PeerGaveUp.
        """
        if timeout is not None and timeout <= timedelta(0):
            raise RoundTimeout(f"Rank {self._rank} timed out in monitoredBarrier: it was given "
                               f"{timeout.total_seconds():g} s")
        options = BarrierOptions()
        if timeout is not None:
            options.timeout = timeout
        missing = set(self._group.peers)
        begin = time.monotonic()
        try:
            self._meet(Call("monitored_barrier", options),
                       monitored_barrier(self._group, missing, wait_all_ranks)).wait()
        except MemoryFault as fault:
            if self._rank:
                raise
            late = ", ".join(str(peer) for peer in sorted(missing))
            raise type(fault)(f"Rank{'s' * (len(missing) > 1)} {late} failed to pass monitoredBarrier in "
                              f"{time.monotonic() - begin:.1f} s: {fault}") from fault

    def _meet(self, call: Call, generator: Collective) -> Work:
        token = torch.zeros(1, dtype=torch.uint8)
        return self._start(call, generator, token.dtype, token.nbytes, [token], variant="all", given=[])

    # Point to point -------------------------------------------------------------------------------------------

    @call("send")
    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Send one tensor to rank `dst` of the group.

        Done when it is copied: Gloo's waits for the receiver. It waits here too while this rank keeps too many copies
        that nobody has read. A receive of another size or dtype fails, and names both. Raises ValueError for a rank
        or tag that cannot be.
        """
        tensor = only(tensors)
        checked("send", dst, tag, self._group)
        flat = flat_of(tensor)
        record = self._message("send", flat, dst, tag, [tensor.shape], [])
        return self._run(record, Work([], self._engine.submit, "send"), (), lambda done: Send(
            self._engine, self._group, bind(flat)[:], record, flat.dtype, self._timeout, done))

    @call("recv")
    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> Work:
        """Fill one tensor with the next message of rank `src` of the group that has this tag. Raises ValueError."""
        return self._receive(tensors, src, tag)

    @call("recv")
    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Work:
        """Fill one tensor with the next message that has this tag; the Work's ``source_rank()`` says whose it was."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Sequence[torch.Tensor], source: int | None, tag: int) -> Work:
        tensor = only(tensors)
        checked("recv", source, tag, self._group)
        place = Place(tensor)
        flat = place.flat
        record = self._message("recv", flat, source, tag, [], [tensor.shape])
        return self._run(record, Received([tensor], self._engine.submit, record), [place], lambda done: Receive(
            self._engine, self._group, bind(flat)[:], record, flat.dtype, self._timeout, done))

    def _message(self, what: str, flat: torch.Tensor, peer: int | None, tag: int, inputs: list[torch.Size],
                 outputs: list[torch.Size]) -> Record:
        return Record(self._name, self._rank, self._size, what, None, None, str(flat.dtype).removeprefix("torch."),
                      flat.nbytes, time.monotonic(), inputs, outputs, peer=peer, tag=tag)
