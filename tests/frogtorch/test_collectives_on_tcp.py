"""Collectives over real sockets, against values worked out by hand."""

import itertools

import pytest
import torch
import torch.distributed as dist

import frogtorch

ALGORITHMS = ("shard", "pipelined", "whole")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def options(algorithm):
    return frogtorch.Options(all_reduce=algorithm, chunk_bytes=4096)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_reduce_sums_every_size_and_dtype(ranks, size, algorithm):
    def run(rank, size):
        wrong = []
        # 16 KiB is where cells begin to be asked for; 5 x 100 003 x 4 bytes makes many frames and chunks.
        counts = [0, 1, size - 1, size, size + 1, 4096 * size, 4097 * size, 100_003]
        for count, dtype in itertools.product(counts, DTYPES):
            x = (torch.arange(count) % 5 + rank).to(dtype)
            dist.all_reduce(x)
            # sum over r of (i % 5 + r) = W (i % 5) + W (W - 1) / 2: at most 22, exact in every dtype.
            expected = (torch.arange(count) % 5 * size + size * (size - 1) // 2).to(dtype)
            if not torch.equal(x, expected):
                wrong.append((count, dtype))
        return wrong

    assert ranks(size, run, options=options(algorithm)) == [[]] * size


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce_ops(ranks, algorithm):
    def run(rank, size):
        found = {}
        for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
            x = torch.tensor([1.0, 2.0, 4.0, 8.0, -3.0]) + rank
            dist.all_reduce(x, getattr(dist.ReduceOp, op))
            found[op] = x.tolist()
        return found

    # Columns of ranks 0, 1, 2: (1 2 3), (2 3 4), (4 5 6), (8 9 10), (-3 -2 -1).
    assert ranks(3, run, options=options(algorithm)) == [{
        "SUM": [6.0, 9.0, 15.0, 27.0, -6.0], "AVG": [2.0, 3.0, 5.0, 9.0, -2.0],
        "PRODUCT": [6.0, 24.0, 120.0, 720.0, -6.0], "MIN": [1.0, 2.0, 4.0, 8.0, -3.0],
        "MAX": [3.0, 4.0, 6.0, 10.0, -1.0],
    }] * 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_order_of_summation_is_that_of_the_ranks(ranks, algorithm):
    # ((1e8 + 1) - 1e8) + 0.5 in float32: 1e8 + 1 rounds to 1e8, so 0.5; any other first pair gives 1.5 or 1.0.
    mine = [1e8, 1.0, -1e8, 0.5]

    def run(rank, size):
        x = torch.full((40,), mine[rank])
        dist.all_reduce(x)
        return x.unique().tolist()

    assert ranks(4, run, options=options(algorithm)) == [[0.5]] * 4


def test_half_precision_is_summed_in_single(ranks):
    # 2048 + 1 rounds to 2048 in float16, twice over; in float32, 2050, which float16 has.
    def run(rank, size):
        x = torch.full((7,), [2048.0, 1.0, 1.0][rank], dtype=torch.float16)
        dist.all_reduce(x)
        return x.unique().tolist()

    assert ranks(3, run) == [[2050.0]] * 3


def test_broadcast_all_gather_and_barrier(ranks):
    def run(rank, size):
        small, large = torch.full((5,), float(rank)), torch.full((50_000,), float(rank))
        dist.broadcast(small, 2)
        dist.broadcast(large, 0)
        uneven = [torch.zeros(r * 10_000) for r in range(size)]
        dist.all_gather(uneven, torch.full((rank * 10_000,), float(rank)))
        single = torch.zeros(size * 2, dtype=torch.int64)
        dist.all_gather_into_tensor(single, torch.tensor([rank, rank + 10]))
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        dist.barrier()
        return (small.unique().tolist(), large.unique().tolist(), [part.unique().tolist() for part in uneven],
                single.tolist(), objects)

    assert ranks(3, run) == [([2.0], [0.0], [[], [1.0], [2.0]], [0, 10, 1, 11, 2, 12],
                              [{"rank": 0}, {"rank": 1}, {"rank": 2}])] * 3


def test_barrier_waits_for_the_last(ranks):
    import time

    def run(rank, size):
        if rank == 1:
            time.sleep(0.3)
        before = time.monotonic()
        dist.barrier()
        return before, time.monotonic()

    times = ranks(3, run)
    assert min(after for _, after in times) >= max(before for before, _ in times)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_in_flight_waited_for_in_another_order(ranks, algorithm):
    counts = [3, 70_000, 1, 5000, 200_000, 12, 9000, 0, 40_000]

    def run(rank, size):
        tensors = [torch.full((count,), float(i + rank)) for i, count in enumerate(counts)]
        works = [dist.all_reduce(x, async_op=True) for x in tensors]
        order = range(len(works)) if rank == 0 else reversed(range(len(works)))
        for i in order:
            works[i].wait()
        return [x.unique().tolist() for x in tensors]

    expected = [[2.0 * i + 1.0] if count else [] for i, count in enumerate(counts)]
    assert ranks(2, run, options=options(algorithm)) == [expected] * 2


def test_a_rank_may_overwrite_its_tensor_as_soon_as_it_is_done(ranks):
    # The others read what this rank published after it is done: they must not see the overwriting.
    def run(rank, size):
        wrong = 0
        for i in range(30):
            x = torch.full((60_000,), float(rank + i))
            dist.all_reduce(x)
            wrong += not bool((x == 3 * i + 3).all())
            x.fill_(-1e9)
            y = torch.full((60_000,), float(i)) if rank == i % 3 else torch.zeros(60_000)
            dist.broadcast(y, i % 3)
            wrong += not bool((y == i).all())
            y.fill_(-1e9)
        return wrong

    for algorithm in ALGORITHMS:
        assert ranks(3, run, options=options(algorithm)) == [0, 0, 0]


def test_tensors_of_every_kind(ranks):
    def run(rank, size):
        across = torch.arange(12.0).reshape(3, 4).t() + rank
        assert not across.is_contiguous()
        dist.all_reduce(across)
        leaf = torch.full((4,), rank + 1.0, requires_grad=True)
        dist.all_reduce(leaf)
        with torch.inference_mode():
            inference = torch.full((4,), rank + 1.0)
            dist.all_reduce(inference)
        columns = [torch.zeros(4, 2).t() for _ in range(size)]
        dist.all_gather(columns, torch.arange(8.0).reshape(2, 4) + rank)
        together = [torch.full((2,), 1.0 + rank), torch.full((2, 2), 10.0 + rank).t()]
        dist.all_reduce_coalesced(together)
        truth = torch.tensor([rank == 0, False])
        dist.all_reduce(truth)
        whole = torch.tensor([1 + 1j]) * (rank + 1)
        dist.all_reduce(whole)
        return (across.tolist(), leaf.tolist(), inference.tolist(), columns[1].tolist(),
                [x.tolist() for x in together], truth.tolist(), whole.tolist())

    assert ranks(2, run) == [(
        [[1.0, 9.0, 17.0], [3.0, 11.0, 19.0], [5.0, 13.0, 21.0], [7.0, 15.0, 23.0]], [3.0] * 4, [3.0] * 4,
        [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], [[3.0, 3.0], [[21.0, 21.0], [21.0, 21.0]]], [True, False],
        [3 + 3j],
    )] * 2


def test_what_cannot_be_is_refused_with_its_op_and_dtype(ranks):
    def run(rank, size):
        texts = []
        for attempt in (
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG),
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BXOR),
            lambda: dist.all_reduce(torch.ones(2).to_sparse()),
            lambda: dist.reduce(torch.ones(2), 0),
        ):
            try:
                attempt()
            except (TypeError, NotImplementedError) as error:
                texts.append(str(error))
        # None of them took a round: the group goes on.
        x = torch.ones(2)
        dist.all_reduce(x)
        return texts, x.tolist()

    for texts, after in ranks(2, run):
        avg, bxor, sparse, reduce = texts
        assert "int32" in avg
        assert "avg" in avg
        assert "int32" in bxor
        assert "BXOR" in bxor
        assert "sparse" in sparse
        assert "not yet" in reduce
        assert "no reduce" in reduce
        assert after == [2.0, 2.0]


def test_two_groups_side_by_side(ranks):
    def run(rank, size):
        pair = dist.new_group([0, 2])
        x, y = torch.ones(3), torch.full((40_000,), float(rank))
        first = dist.all_reduce(x, async_op=True)
        if rank != 1:
            dist.all_reduce(y, group=pair)
        first.wait()
        return x.tolist(), y.unique().tolist()

    assert ranks(3, run) == [([3.0] * 3, [2.0]), ([3.0] * 3, [1.0]), ([3.0] * 3, [2.0])]


def test_thousands_of_chunks_side_by_side(ranks):
    def run(rank, size):
        x = torch.full((100_000,), rank + 1.0)
        dist.all_reduce(x)  # 200 KB a slice, in chunks of 64 bytes: 3125 lanes
        return x.unique().tolist()

    assert ranks(2, run, options=frogtorch.Options(all_reduce="pipelined", chunk_bytes=64)) == [[3.0]] * 2


def test_one_that_runs_ahead(ranks):
    # Rank 0 begins 300 rounds before rank 1 begins any: what it publishes waits in rank 1's inbox, or at rank 0.
    import time

    def run(rank, size):
        if rank:
            time.sleep(0.5)
        tensors = [torch.full((2000 + 30 * i,), float(i)) for i in range(300)]
        for work in [dist.all_reduce(x, async_op=True) for x in tensors]:
            work.wait()
        return all(bool((x == 2.0 * i).all()) for i, x in enumerate(tensors))

    assert ranks(2, run) == [True, True]
