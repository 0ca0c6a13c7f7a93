"""What collectives and messages of a c10d process group end with, called as its users call it.

Values are worked out from rank and size. Most tests are many checks in one world, since a world is what costs time.
"""

import operator
import time
from functools import reduce

import pytest
import torch
import torch.distributed as dist

WORLDS = pytest.mark.parametrize("size", [2, 3])


def ones(rank, count=5, dtype=torch.float32):
    return torch.full((count,), rank + 1, dtype=dtype)


@WORLDS
def test_reductions(ranks, size):
    def run(rank, size):
        values = range(1, size + 1)
        folds = {
            dist.ReduceOp.SUM: sum(values), dist.ReduceOp.PRODUCT: reduce(operator.mul, values),
            dist.ReduceOp.MIN: 1, dist.ReduceOp.MAX: size,
        }
        bits = {
            dist.ReduceOp.BAND: reduce(operator.and_, values), dist.ReduceOp.BOR: reduce(operator.or_, values),
            dist.ReduceOp.BXOR: reduce(operator.xor, values),
        }
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8,
                      torch.int16, torch.int32, torch.int64):
            for op, right in {**folds, **({} if dtype.is_floating_point else bits)}.items():
                x = ones(rank, dtype=dtype)
                work = dist.all_reduce(x, op, async_op=True)
                assert work.get_future().wait()[0] is x
                assert x.tolist() == [right] * 5, (dtype, op)
        average = ones(rank)
        dist.all_reduce(average, dist.ReduceOp.AVG)
        assert average.tolist() == [(size + 1) / 2] * 5
        scaled = ones(rank)
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
        assert scaled.tolist() == [sum(values) / 2] * 5
        for root in range(size):
            x = ones(rank, dtype=torch.int64)
            dist.reduce(x, root, dist.ReduceOp.SUM)
            assert x.tolist() == [sum(values) if rank == root else rank + 1] * 5
            out = torch.empty(2)
            dist.reduce_scatter(out, [torch.full((2,), 10.0 * k + rank) for k in range(size)])
            assert out.tolist() == [10.0 * rank * size + size * (size - 1) / 2] * 2
            dist.reduce_scatter_tensor(out, torch.arange(2.0 * size) * (rank + 1), dist.ReduceOp.MAX)
            assert out.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]

    ranks(size, run)


@WORLDS
def test_movements(ranks, size):
    def run(rank, size):
        everybody = [[r + 1.0] * 5 for r in range(size)]
        for root in range(size):
            x = ones(rank)
            dist.broadcast(x, root)
            assert x.tolist() == everybody[root]
            into = [torch.empty(5) for _ in range(size)] if rank == root else None
            dist.gather(ones(rank), into, root)
            if rank == root:
                assert [part.tolist() for part in into] == everybody
            out = torch.empty(5)
            dist.scatter(out, [ones(10 * k) for k in range(size)] if rank == root else None, root)
            assert out.tolist() == [10 * rank + 1.0] * 5
        into = [torch.empty(5) for _ in range(size)]
        dist.all_gather(into, ones(rank))
        assert [part.tolist() for part in into] == everybody
        whole = torch.empty(size, 5)
        dist.all_gather_into_tensor(whole, ones(rank))
        assert whole.tolist() == everybody
        uneven = [torch.empty(r) for r in range(size)]
        dist.all_gather(uneven, torch.full((rank,), float(rank)))
        assert [part.tolist() for part in uneven] == [[float(r)] * r for r in range(size)]
        into = [torch.empty(2) for _ in range(size)]
        dist.all_to_all(into, [torch.tensor([rank, k], dtype=torch.float32) for k in range(size)])
        assert [part.tolist() for part in into] == [[r, rank] for r in range(size)]
        # Rank r sends k + 1 elements to rank k.
        into = torch.empty(size * (rank + 1))
        dist.all_to_all_single(into, torch.full((size * (size + 1) // 2,), float(rank)), [rank + 1] * size,
                               list(range(1, size + 1)))
        assert into.tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]

    ranks(size, run)


@WORLDS
def test_several_tensors_as_one(ranks, size):
    def run(rank, size):
        total = size * (size + 1) // 2
        tensors = [ones(rank, 3), ones(rank, 4) * 10]
        dist.all_reduce_coalesced(tensors)
        assert [t.tolist() for t in tensors] == [[total] * 3, [10 * total] * 4]
        lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
        dist.all_gather_coalesced(lists, [ones(rank, 2), ones(rank, 3) * 10])
        assert [[t.tolist() for t in one] for one in lists] == [
            [[r + 1.0] * 2, [10 * (r + 1.0)] * 3] for r in range(size)]
        mixed = [ones(rank, 2), ones(rank, 3).double()]
        with dist._coalescing_manager():
            for t in mixed[:1] * 1:
                dist.all_reduce(t)
        assert mixed[0].tolist() == [total] * 2
        with dist._coalescing_manager(async_ops=True) as manager:
            outs = [torch.empty(2 * size), torch.empty(3 * size)]
            for out, one in zip(outs, (ones(rank, 2), ones(rank, 3)), strict=True):
                dist.all_gather_into_tensor(out, one)
        manager.wait()
        for out, count in zip(outs, (2, 3), strict=True):
            assert out.tolist() == [r + 1.0 for r in range(size) for _ in range(count)]
        with dist._coalescing_manager():
            parts = [torch.empty(1), torch.empty(2)]
            for part, whole in zip(parts, (torch.arange(1.0 * size), torch.arange(2.0 * size)), strict=True):
                dist.reduce_scatter_tensor(part, whole)
        assert [part.tolist() for part in parts] == [[1.0 * size * rank], [2.0 * size * rank, size * (2.0 * rank + 1)]]
        # With a device, ops of any kind are taken as they come and ended together.
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            x, y = ones(rank), ones(rank)
            dist.all_reduce(x)
            dist.broadcast(y, 1)
        manager.wait()
        assert x.tolist() == [total] * 5
        assert y.tolist() == [2.0] * 5
        dist.all_reduce(x)  # and the group is as before
        assert x.tolist() == [total * size] * 5

    ranks(size, run)


@WORLDS
def test_messages(ranks, size):
    def run(rank, size):
        peers = [p for p in range(size) if p != rank]
        # Everybody sends to everybody, and only then receives.
        sent = [dist.isend(torch.full((3,), 10.0 * rank + p), p) for p in peers]
        for p in peers:
            x = torch.empty(3)
            assert dist.recv(x, p) == p
            assert x.tolist() == [10.0 * p + rank] * 3
        for work in sent:
            work.wait()
            assert work.is_completed()
        # A tag picks, whatever the order of sending.
        for p in peers:
            for tag in (5, 6, 5):
                dist.send(torch.tensor([100 * tag + rank]), p, tag=tag)
        for p in peers:
            x = torch.empty(1, dtype=torch.int64)
            for tag in (6, 5, 5):
                dist.recv(x, p, tag=tag)
                assert x.item() == 100 * tag + p
        # From whoever comes.
        for p in peers:
            dist.send(torch.tensor([rank]), p, tag=9)
        found = []
        for _ in peers:
            source = dist.recv(x, tag=9)
            assert x.item() == source
            found.append(source)
        assert sorted(found) == peers
        work = dist.irecv(x, tag=11)
        dist.send(torch.tensor([rank + 40]), (rank + 1) % size, tag=11)
        work.wait()
        assert work._source_rank() == (rank - 1) % size
        assert x.item() == 40 + (rank - 1) % size
        # In a batch, receives before sends.
        got = {p: torch.empty(2) for p in peers}
        ops = [dist.P2POp(dist.irecv, got[p], p, tag=p) for p in peers]
        ops += [dist.P2POp(dist.isend, torch.full((2,), rank + 0.5), p, tag=rank) for p in peers]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert {p: x.tolist() for p, x in got.items()} == {p: [p + 0.5] * 2 for p in peers}

    ranks(size, run)


def test_messages_that_are_late_or_large(ranks):
    def run(rank, size):
        many = 200
        if rank == 0:
            works = [dist.isend(torch.full((100,), float(k)), 1, tag=k % 3) for k in range(many)]
            works.append(dist.isend(torch.arange(1_000_000), 1, tag=7))
            for work in works:
                work.wait()
            return None
        time.sleep(0.2)
        big = torch.empty(1_000_000, dtype=torch.int64)
        dist.recv(big, 0, tag=7)
        x = torch.empty(100)
        got = []
        for tag in range(3):
            for _ in range(tag, many, 3):
                dist.recv(x, 0, tag=tag)
                got.append(x.unique().item())
        return torch.equal(big, torch.arange(1_000_000)), got

    _, (equal, got) = ranks(2, run)
    assert equal
    # In the order of sending, for each tag.
    assert got == [float(k) for tag in range(3) for k in range(tag, 200, 3)]


@WORLDS
def test_objects(ranks, size):
    def run(rank, size):
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank, "list": list(range(rank))})
        assert objects == [{"rank": r, "list": list(range(r))} for r in range(size)]
        into = [None] * size if rank == 1 else None
        dist.gather_object("x" * rank, into, 1)
        assert into == (["x" * r for r in range(size)] if rank == 1 else None)
        sent = ["a", 1, {2}] if rank == 0 else [None] * 3
        dist.broadcast_object_list(sent, 0)
        assert sent == ["a", 1, {2}]
        out = [None]
        dist.scatter_object_list(out, [("part", k) for k in range(size)] if rank == 0 else None, 0)
        assert out == [("part", rank)]
        peer = 1 - rank
        if rank < 2:
            if rank == 0:
                dist.send_object_list([rank, "text"], peer)
            else:
                got = [None, None]
                assert dist.recv_object_list(got, peer) == 0
                assert got == [0, "text"]

    ranks(size, run)


@WORLDS
def test_layouts_and_types_of_tensors(ranks, size):
    def run(rank, size):
        total = size * (size + 1) // 2
        # Every second element: the others stay.
        x = torch.full((6,), -1.0)
        x[::2] = rank + 1
        dist.all_reduce(x[::2])
        assert x.tolist() == [total, -1, total, -1, total, -1]
        table = torch.arange(6.0).view(2, 3) + rank
        turned = table.t()
        dist.broadcast(turned, 1)
        assert torch.equal(table, torch.arange(6.0).view(2, 3) + 1)
        into = [torch.zeros(3, 2).t() for _ in range(size)]
        dist.all_gather(into, table.t().contiguous().t() * (rank + 1))
        assert [torch.equal(part, (torch.arange(6.0).view(2, 3) + 1) * (r + 1)) for r, part in enumerate(into)] == [
            True] * size
        # Nothing, and a single number.
        for count in ((0,), (3, 0)):
            dist.all_reduce(torch.empty(count))
            dist.broadcast(torch.empty(count), 0)
            dist.all_gather([torch.empty(count) for _ in range(size)], torch.empty(count))
        number = torch.tensor(rank + 1.0)
        dist.all_reduce(number)
        assert number.item() == total
        # Moved as they are, whatever their type.
        for dtype in (torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
                      torch.float8_e4m3fn, torch.int16):
            one = torch.tensor([0, 1, 1, 0]).to(dtype)
            x = one.clone() if rank == 1 else torch.zeros(4).to(dtype)
            dist.broadcast(x, 1)
            assert torch.equal(x.view(torch.uint8), one.view(torch.uint8)), dtype
            into = [torch.zeros(4).to(dtype) for _ in range(size)]
            dist.all_gather(into, one)
            assert all(torch.equal(part.view(torch.uint8), one.view(torch.uint8)) for part in into), dtype
        z = torch.tensor([1 + 2j]) * (rank + 1)
        dist.all_reduce(z)
        assert z.item() == (1 + 2j) * total
        # What wants a gradient is written to all the same, and inference tensors.
        leaf = torch.ones(2, requires_grad=True)
        dist.all_reduce(leaf)
        assert leaf.tolist() == [size] * 2
        assert leaf.requires_grad
        with torch.inference_mode():
            x = torch.ones(2)
            dist.all_reduce(x)
            assert x.tolist() == [size] * 2
        parameter = torch.nn.Parameter(torch.full((2,), float(rank)))
        dist.broadcast(parameter.data, 1)
        assert parameter.tolist() == [1.0, 1.0]

    ranks(size, run)


@WORLDS
def test_sparse_sums(ranks, size):
    def table(rank, sparse_dims, dense_dims):
        # Rank r has entries 0 … r of the first dimension, so that some meet and some do not.
        generator = torch.Generator().manual_seed(rank)
        indices = torch.zeros(sparse_dims, rank + 1, dtype=torch.long)
        indices[0] = torch.arange(rank + 1)
        shape = [size] * sparse_dims + [2] * dense_dims
        values = torch.randint(1, 9, [rank + 1] + [2] * dense_dims, generator=generator, dtype=torch.float64)
        return torch.sparse_coo_tensor(indices, values, shape)

    def run(rank, size):
        results = []
        for sparse_dims, dense_dims in ((1, 0), (2, 0), (3, 0), (1, 1), (1, 3)):
            x = table(rank, sparse_dims, dense_dims)
            dist.all_reduce(x)
            results.append(x.to_dense())
        twice = torch.sparse_coo_tensor([[1, 1]], torch.tensor([2.0, 3.0]), (4,))  # not coalesced
        dist.all_reduce(twice)
        empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0), (4,))
        dist.all_reduce(empty)
        return results, twice.to_dense().tolist(), empty.to_dense().tolist()

    for results, twice, empty in ranks(size, run):
        for result, dims in zip(results, ((1, 0), (2, 0), (3, 0), (1, 1), (1, 3)), strict=True):
            assert torch.equal(result, sum(table(r, *dims).to_dense() for r in range(size)))
        assert twice == [0, 5 * size, 0, 0]
        assert empty == [0, 0, 0, 0]
