"""Timeouts of a collective's own, of a wait, and of a group from now on."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from frogtorch.memory.faults import PeerGaveUp, RoundTimeout


def timed(rank, size):
    """Calls of every collective that cannot end without rank 1, with options that have a timeout of their own."""
    def options(kind, **fields):
        made = kind()
        made.timeout = timedelta(seconds=0.15)
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    group, x = dist.group.WORLD, torch.ones(2)
    both, four = [torch.ones(2), torch.ones(2)], torch.ones(4)
    from torch._C import _distributed_c10d as c10d

    return [
        lambda: group.allreduce([x], options(c10d.AllreduceOptions)),
        lambda: group.allreduce_coalesced([x], options(c10d.AllreduceCoalescedOptions)),
        lambda: group.reduce([x], options(c10d.ReduceOptions, rootRank=0)),
        lambda: group.reduce_scatter([x], [both], options(c10d.ReduceScatterOptions)),
        lambda: group.reduce_scatter_single(x, four, options(c10d.ReduceScatterOptions)),
        lambda: group.broadcast([x], options(c10d.BroadcastOptions, rootRank=1)),
        lambda: group.allgather([both], [x], options(c10d.AllgatherOptions)),
        lambda: group.all_gather_single(four, x, options(c10d.AllgatherOptions)),
        lambda: group.gather([both] if rank == 0 else [], [x], options(c10d.GatherOptions, rootRank=0)),
        lambda: group.scatter([x], [both] if rank == 1 else [], options(c10d.ScatterOptions, rootRank=1)),
        lambda: group.alltoall(both, both, options(c10d.AllToAllOptions)),
        lambda: group.all_to_all_single(four, four, [], [], options(c10d.AllToAllOptions)),
        lambda: group.barrier(options(c10d.BarrierOptions)),
    ]


def test_each_collective_takes_a_timeout_of_its_own(ranks):
    def run(rank, size):
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["all have run out"])
        found = []
        for number, call in enumerate(timed(rank, size)):
            try:
                call().wait()
            except RoundTimeout as error:
                if rank == 0 and ("timeout of 0.15 s" not in str(error) or "rank 1" not in str(error)):
                    found.append((number, str(error)))
            except PeerGaveUp as error:
                if rank == 0:
                    found.append((number, str(error)))
            else:
                if rank == 0:
                    found.append((number, "did not run out"))
        if rank == 0:
            store.set("all have run out", "1")
        x = torch.ones(2)
        dist.all_reduce(x)
        return found, x.tolist()

    assert ranks(2, run, timeout=30) == [([], [2.0, 2.0])] * 2


def test_the_timeouts_of_a_wait_and_of_what_begins_later(ranks):
    def run(rank, size):
        store = dist.distributed_c10d._get_default_store()
        x = torch.ones(2)
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            with pytest.raises(RoundTimeout, match=r"timeout of 0\.1 s"):
                work.wait(timedelta(seconds=0.1))
            assert not work.is_completed()
            store.set("the wait has run out", "1")
            work.wait()
            assert x.tolist() == [2.0, 2.0]
            dist.group.WORLD.set_timeout(timedelta(seconds=0.1))
            with pytest.raises(RoundTimeout, match=r"timeout of 0\.1 s"):
                dist.all_reduce(torch.ones(2))
            store.set("the second too", "1")
            return dist.group.WORLD.options._timeout.total_seconds()
        store.wait(["the wait has run out"])
        dist.all_reduce(x)
        store.wait(["the second too"])
        return x.tolist()

    assert ranks(2, run, timeout=30) == [0.1, [2.0, 2.0]]
