"""The methods of the process group itself: their forms and aliases, what torch asks of a backend, groups of groups."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from helpers import eventually
from torch._C import _distributed_c10d as c10d

from frogtorch import Options
from frogtorch.memory.faults import PeerLost, RoundTimeout

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def test_older_forms_without_options(ranks):
    def run(rank, size):
        group = dist.group.WORLD
        x = torch.tensor([rank + 1.0, 5.0])
        second = timedelta(seconds=10)
        into, both, four = torch.zeros(2), [torch.zeros(2), torch.zeros(2)], torch.zeros(4)

        def ended(work, *tensors):
            assert work.wait()
            return [tensor.tolist() for tensor in tensors]

        return [
            ended(group.allreduce(a := x.clone()), a),
            ended(group.allreduce([a := x.clone()], MAX), a),
            ended(group.allreduce(a := x.clone(), op=MAX, timeout=second), a),
            ended(group.broadcast(a := x.clone(), 1), a),
            ended(group.broadcast(a := x.clone(), root=1, timeout=second), a),
            ended(group.reduce(a := x.clone(), 0, MAX), a)[rank:],
            ended(group.allgather(both, x), *both),
            ended(group.gather(both if rank == 0 else [], x, 0, second))[rank:],
            ended(group.scatter(into, [x, x * 2] if rank == 1 else [], 1), into),
            ended(group.reduce_scatter(into, [x, x * 2], MAX), into),
            ended(group.all_to_all_single(four, torch.arange(4.0) + 10 * rank, [], [], second), four),
            ended(group.alltoall(both, [x, x * 2], second), *both),
            ended(group.barrier(second)),
            ended(group.barrier(opts=c10d.BarrierOptions())),
        ]

    first, second = ranks(2, run)
    common = [[[3.0, 10.0]], [[2.0, 5.0]], [[2.0, 5.0]], [[2.0, 5.0]], [[2.0, 5.0]]]
    assert first == [*common, [[2.0, 5.0]], [[1.0, 5.0], [2.0, 5.0]], [], [[2.0, 5.0]], [[2.0, 5.0]],
                     [[0.0, 1.0, 10.0, 11.0]], [[1.0, 5.0], [2.0, 5.0]], [], []]
    assert second == [*common, [], [[1.0, 5.0], [2.0, 5.0]], [], [[4.0, 10.0]], [[4.0, 10.0]],
                      [[2.0, 3.0, 12.0, 13.0]], [[2.0, 10.0], [4.0, 10.0]], [], []]


def test_legacy_names(ranks):
    def run(rank, size):
        group = dist.group.WORLD
        x, four, two = torch.tensor([rank + 1.0, 5.0]), torch.zeros(4), torch.zeros(2)
        found = []

        def keep(work, tensor):
            work.wait()
            found.append(tensor.tolist())

        keep(group._allgather_base(four, x, c10d.AllgatherOptions()), four)
        keep(group._reduce_scatter_base(two, torch.arange(4.0), c10d.ReduceScatterOptions()), two)
        keep(group.allgather_into_tensor_coalesced([four], [x], c10d.AllgatherOptions()), four)
        keep(group.reduce_scatter_tensor_coalesced([two], [torch.ones(4)], c10d.ReduceScatterOptions()), two)
        keep(group.alltoall_base(four, torch.arange(4.0), [], [], c10d.AllToAllOptions()), four)
        return found

    for rank, found in enumerate(ranks(2, run)):
        mine = [2.0 * rank, 2.0 * rank + 1]
        assert found == [[1.0, 5.0, 2.0, 5.0], [2 * v for v in mine], [1.0, 5.0, 2.0, 5.0], [2.0, 2.0], mine + mine]


def test_coalesced_tensors_of_several_dtypes(ranks):
    def run(rank, size):
        group = dist.group.WORLD
        kinds = [torch.float32, torch.int64, torch.float32, torch.bfloat16, torch.int64]

        def make(counts, value):
            return [torch.full((count,), value, dtype=dtype) for count, dtype in zip(counts, kinds, strict=True)]

        tensors = make([3, 2, 0, 1, 4], rank + 1)
        work = group.allreduce_coalesced(tensors, c10d.AllreduceCoalescedOptions())
        assert work.get_future().wait() == tensors
        outs, ins = make([6, 4, 0, 2, 8], 0), make([3, 2, 0, 1, 4], rank + 1)
        group.all_gather_single_coalesced(outs, ins, c10d.AllgatherOptions()).wait()
        shares = make([3, 2, 0, 1, 4], 0)
        group.reduce_scatter_single_coalesced(shares, make([6, 4, 0, 2, 8], rank + 1),
                                              c10d.ReduceScatterOptions()).wait()
        lists = [make([3, 2, 0, 1, 4], 0) for _ in range(size)]
        group.allgather_coalesced(lists, ins, c10d.AllgatherOptions()).wait()
        return [[t.tolist() for t in some] for some in (tensors, outs, shares, *lists)]

    one, two, three = ([[v] * count for count in [3, 2, 0, 1, 4]] for v in (1, 2, 3))
    gathered = [a + b for a, b in zip(one, two, strict=True)]
    assert ranks(2, run) == [[three, gathered, three, one, two]] * 2


def test_the_coalescing_manager_with_a_device_takes_anything(ranks):
    def run(rank, size):
        cpu, peer = torch.device("cpu"), 1 - rank
        x, y, into, got = torch.ones(3), torch.full((2,), float(rank)), torch.zeros(4), torch.zeros(1)
        with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
            dist.all_reduce(x)
            dist.all_reduce(more := torch.ones(2, dtype=torch.int64))
            dist.broadcast(y, 1)
            dist.all_to_all_single(into, torch.arange(4.0))
            dist.isend(torch.tensor([float(rank)]), peer)
            dist.irecv(got, peer)
        (work,) = manager.works
        work.wait()
        assert len(work.result()) == 5  # what is sent is nobody's result
        with dist._coalescing_manager(device=cpu):  # nothing in it
            pass
        # An error inside leaves no manager open.
        group = dist.group.WORLD
        group._start_coalescing(cpu)
        with pytest.raises(ValueError, match="takes one tensor"):
            group.allreduce([x, x])
        group._start_coalescing(cpu)
        group.allreduce(z := torch.ones(1))
        assert group._end_coalescing(cpu).wait()
        return x.tolist(), more.tolist(), y.tolist(), into.tolist(), got.tolist(), z.tolist()

    for rank, found in enumerate(ranks(2, run)):
        assert found == ([2.0] * 3, [2, 2], [1.0, 1.0], [2.0 * rank, 2.0 * rank + 1] * 2, [1.0 - rank], [2.0])


def test_what_torch_asks_of_a_backend(ranks):
    def run(rank, size):
        group = dist.group.WORLD
        backend = group._get_backend(torch.device("cpu"))
        assert backend is group
        assert (backend.name(), backend.supports_coalescing, backend.supports_splitting) == ("frogtorch", True, False)
        assert group._device_types == (torch.device("cpu"),)
        assert dist.distributed_c10d._device_capability(group) == ["cpu"]
        assert backend.options._timeout == timedelta(seconds=20)
        with pytest.raises(RuntimeError, match="nothing for cuda"):
            group._get_backend(torch.device("cuda"))
        assert group.get_group_store().check(["nothing"]) is False
        before = group._get_sequence_number_for_group()
        group._set_sequence_number_for_group()
        dist.all_reduce(torch.ones(1))
        dist.isend(torch.ones(1), 1 - rank)
        dist.recv(torch.ones(1), 1 - rank)  # a message is no collective
        assert group._get_sequence_number_for_group() == before + 1
        assert (group.rank(), group.size(), group.getRank(), group.getSize()) == (rank, 2, rank, 2)
        assert dist.distributed_c10d._resolve_process_group(group.group_name) is group
        assert "rank" in repr(group)
        return True

    assert ranks(2, run) == [True, True]


def test_a_group_splits(ranks):
    def run(rank, size):
        world = dist.group.WORLD
        pairs = world.split_group([[0, 2], [1, 3]][rank % 2], timedelta(seconds=9), Options(all_reduce="whole"))
        again = world.splitGroup([[0, 2], [1, 3]][rank % 2])  # of the same ranks, and another group
        alone = world.split_group([3], desc="the last")
        with pytest.raises(ValueError, match=f"rank {rank}.*different ranks from 0 to 3"):
            world.split_group([0, 0])
        found = []
        for group in (pairs, again):
            x = torch.tensor([rank + 1.0])
            group.allreduce(x).wait()
            found.append(x.item())
        x = torch.tensor([1.0])
        if rank == 3:
            alone.allreduce(x).wait()
            assert (alone.group_desc, alone.size()) == ("the last", 1)
        else:
            assert alone is None
        assert pairs.options._timeout == timedelta(seconds=9)
        assert pairs.options.global_ranks_in_group == [rank % 2, rank % 2 + 2]
        for group in (pairs, again, *([alone] if alone else [])):
            group.shutdown()
        return found

    assert ranks(4, run) == [[4.0, 4.0], [6.0, 6.0]] * 2


def test_a_monitored_barrier_that_all_reach(ranks):
    def run(rank, size):
        came = []
        for late in range(size):
            if rank == late:
                time.sleep(0.15)
            came.append(time.monotonic())
            dist.group.WORLD.monitored_barrier(timedelta(seconds=60), wait_all_ranks=bool(late))
            came.append(time.monotonic())
        with pytest.raises(ValueError, match="GLOO"):
            dist.monitored_barrier()  # torch's front, whatever the backend can do
        return came

    times = ranks(3, run)
    for late in range(3):
        assert min(t[2 * late + 1] for t in times) >= max(t[2 * late] for t in times)


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_a_monitored_barrier_names_who_has_not_come(ranks, wait_all_ranks):
    def run(rank, size):
        store = dist.distributed_c10d._get_default_store()
        if rank in (1, 3):
            store.wait(["rank 0 knows"])
            return None
        if rank == 0:
            assert eventually(lambda: dist.group.WORLD._memory.peers[2].standing)  # it has come, and asks to be let go
        try:
            dist.group.WORLD.monitored_barrier(timedelta(seconds=60 if rank else 2), wait_all_ranks)
        except RuntimeError as error:
            if rank == 0:
                store.set("rank 0 knows", "1")
            return type(error).__name__, str(error)
        return None

    first, second, third, fourth = ranks(4, run)
    assert (second, fourth) == (None, None)
    assert first[0] == RoundTimeout.__name__
    assert "Ranks 1, 3 failed to pass monitoredBarrier" in first[1]
    assert third[0] == "PeerGaveUp"  # it came, and is told by rank 0
    assert "rank 1" in third[1]


def test_a_monitored_barrier_does_not_wait_for_the_dead(world):
    import os

    def run(rank, size):
        dist.barrier()
        if rank == 1:
            os._exit(1)
        if rank == 2:
            time.sleep(0.5)
        texts = []
        for wait_all_ranks in (False, True):
            with pytest.raises((RuntimeError, PeerLost)) as caught:
                # A world counts as hung long before that.
                dist.group.WORLD.monitored_barrier(timedelta(seconds=1000), wait_all_ranks)
            texts.append(str(caught.value))
        return texts

    texts, _, _ = world(3, run, timeout=1000).results(expected_dead=[1])
    assert texts[0].startswith(("Rank 1 failed", "Ranks 1, 2 failed"))
    assert "Rank 1 failed to pass monitoredBarrier" in texts[1]  # and rank 2 had


def test_a_barrier_ends_with_what_was_begun_before_it(ranks):
    def run(rank, size):
        works = [dist.all_reduce(torch.full((100_000,), float(i)), async_op=True) for i in range(5)]
        dist.group.WORLD.barrier().wait()
        return [work.is_completed() for work in works]

    assert ranks(2, run) == [[True] * 5] * 2


def test_ranks_with_other_settings_find_out(world):
    for name, values in (("order", ("rank", "gloo")), ("all_reduce", ("shard", "whole"))):
        def differing(rank, size, name=name, values=values):
            group = dist.new_group(pg_options=Options(**{name: values[rank]}))
            try:
                dist.all_reduce(torch.ones(8), group=group)
            except RuntimeError as error:
                return str(error)
            return None

        texts = [text for text in world(2, differing, timeout=20).results() if text]
        assert texts
        assert any(all(value in text for value in values) for text in texts), texts


def test_all_gather_into_tensor_out(ranks):
    def run(rank, size):
        import warnings

        with warnings.catch_warnings(record=True) as caught:
            ops = torch.ops._c10d_functional
            found = []
            for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
                out = torch.zeros(4)
                result = ops.all_gather_into_tensor_out(torch.full((2,), rank + 1.0), size, group.group_name, out=out)
                assert ops.wait_tensor(result) is out
                found.append(out.tolist())
        return found, [str(one.message) for one in caught if "overrid" in str(one.message).lower()]

    assert ranks(2, run) == [([[1.0, 1.0, 2.0, 2.0]] * 2, [])] * 2


def test_a_result_of_a_functional_collective_is_as_good_as_any_tensor(ranks):
    import torch.distributed._functional_collectives as functional

    def run(rank, size):
        pending = functional.all_reduce(torch.tensor([rank + 1.0]), "sum", dist.group.WORLD)
        assert isinstance(pending, functional.AsyncCollectiveTensor)
        into = torch.zeros(2)
        dist.group.WORLD.all_gather_single(into, pending).wait()
        dist.group.WORLD.allreduce([pending]).wait()
        return into.tolist(), pending.tolist()

    assert ranks(2, run) == [([3.0, 3.0], [6.0])] * 2


def test_what_torch_calls_at_its_import_never_raises(monkeypatch):
    import frogtorch

    def broken():
        raise ImportError("a library is missing")

    monkeypatch.setattr(frogtorch, "register", broken)
    with pytest.warns(RuntimeWarning, match="not registered: ImportError\\('a library is missing'\\)"):
        frogtorch._autoload()
