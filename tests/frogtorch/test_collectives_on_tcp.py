"""Collectives over real sockets, against values worked out by hand."""

import itertools

import pytest
import torch
import torch.distributed as dist

import frogtorch

ALGORITHMS = ("shard", "pipelined", "whole", "direct")
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


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16,
                                   torch.uint32, torch.uint64], ids=str)
def test_all_reduce_of_integers(ranks, dtype):
    def run(rank, size):
        found = {}
        for op in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
            if dtype != torch.uint64 or op not in ("MIN", "MAX"):
                x = torch.tensor([[3, 6, 1], [5, 3, 2], [100, 77, 100]])[:, rank].to(dtype)
                dist.all_reduce(x, getattr(dist.ReduceOp, op))
                found[op] = x.tolist()
        return found

    # Of 100, 77 and 100: the sum is 277, the product 770000 = 2^16 * 11 + 49104 = 2^8 * 3007 + 208.
    bits, signed = 8 * dtype.itemsize, dtype.is_signed
    add = {8: 277 - 256}.get(bits, 277)
    multiply = {8: 208 - 256 * signed, 16: 49104 - 65536 * signed}.get(bits, 770000)
    expected = {
        "SUM": [10, 10, add], "PRODUCT": [18, 30, multiply], "MIN": [1, 2, 77], "MAX": [6, 5, 100],
        # 100 = 0b1100100, 77 = 0b1001101.
        "BAND": [0, 0, 0b1000100], "BOR": [7, 7, 0b1101101], "BXOR": [4, 4, 77],
    }
    for found in ranks(3, run):
        assert found == {op: expected[op] for op in found}


def test_what_cannot_be_is_refused_with_its_op_and_dtype(ranks):
    def run(rank, size):
        texts = []
        for attempt in (
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG),
            lambda: dist.reduce(torch.ones(2), 0, dist.ReduceOp.BXOR),
            lambda: dist.reduce_scatter_tensor(torch.ones(1, dtype=torch.complex64),
                                               torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX),
            lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)),
        ):
            with pytest.raises(TypeError) as caught:
                attempt()
            texts.append(str(caught.value))
        # None of them took a round: the group goes on.
        x = torch.ones(2)
        dist.all_reduce(x)
        return texts, x.tolist()

    for texts, after in ranks(2, run):
        said = ["torch.int32 with avg", "torch.float32 with bxor", "torch.complex64 with max",
                "torch.float8_e4m3fn with sum"]
        assert [f"cannot reduce {what}" in text for what, text in zip(said, texts, strict=True)] == [True] * 4
        assert after == [2.0, 2.0]


UNIT = 3_001
"""Elements of which even three make a cell of more than 16 KiB, while one is a small one."""


@pytest.mark.parametrize("unit", [1, UNIT, 20 * UNIT])
def test_what_is_gathered_scattered_and_exchanged(ranks, unit):
    # A share of rank r has (r + 1) units; the part from r to k is filled with 10 r + k. And each is overwritten as soon
    # as the rank is done, again and again: nobody may see that.
    def run(rank, size):
        wrong = []

        def check(what, tensors, values):
            wrong.extend((what, i) for i, (x, value) in enumerate(zip(tensors, values, strict=True))
                         if not bool((x == value).all()))
            for x in tensors:
                x.fill_(-1)

        for root in (0, 1, 2, 0, 1, 2):
            mine = torch.full(((rank + 1) * unit,), 10.0 * rank)
            into = [torch.zeros((r + 1) * unit) for r in range(size)] if rank == root else None
            dist.gather(mine, into, root)
            check("gather", [mine, *(into or [])], [10.0 * rank, *([0.0, 10.0, 20.0] if into else [])])
            parts = [torch.full(((k + 1) * unit,), 10.0 * root + k) for k in range(size)] if rank == root else None
            own = torch.zeros((rank + 1) * unit)
            dist.scatter(own, parts, root)
            check("scatter", [own, *(parts or [])], [10.0 * root + rank, *([10.0 * root + k for k in range(size)]
                                                                           if parts else [])])
            parts = [torch.full(((rank * k) % 3 * unit,), 10.0 * rank + k) for k in range(size)]
            into = [torch.zeros((rank * k) % 3 * unit) for k in range(size)]
            dist.all_to_all(into, parts)
            check("all_to_all", into + parts, [10.0 * k + rank for k in range(size)] + [10.0 * rank + k
                                                                                         for k in range(size)])
        return wrong

    assert ranks(3, run) == [[]] * 3


@pytest.mark.parametrize("count", [0, 1, 2, 4096, 4097, 100_003])
def test_what_is_reduced_to_one_or_scattered(ranks, count):
    def run(rank, size):
        wrong = []
        for root in (0, 1, 2, 0):
            x = torch.arange(float(count)) + rank
            dist.reduce(x, root)
            # i + (i + 1) + (i + 2) at the root; elsewhere the tensor stays as it was.
            expected = torch.arange(float(count)) * 3 + 3 if rank == root else torch.arange(float(count)) + rank
            wrong += [] if torch.equal(x, expected) else [("reduce", root)]
            x.fill_(-1e9)
            parts = [torch.full((count * k,), float(10 * k + rank)) for k in range(size)]
            into = torch.zeros(count * rank)
            dist.reduce_scatter(into, parts, dist.ReduceOp.MAX)
            wrong += [] if bool((into == 10 * rank + 2).all()) else [("reduce_scatter", root)]
            for part in (into, *parts):
                part.fill_(-1e9)
        return wrong

    assert ranks(3, run) == [[]] * 3


def test_the_bytes_that_a_rank_receives_are_those_of_the_table(ranks):
    count = 30_000  # elements of 4 bytes, of a whole tensor; it divides by 3 and 4

    def run(rank, size):
        group = dist.distributed_c10d._get_default_group()
        whole, share = torch.ones(count), torch.ones(count // size)
        shares = [torch.ones(count // size) for _ in range(size)]
        at_root = rank == 1
        for run in (
            lambda: dist.reduce(whole, 1),
            lambda: dist.reduce(torch.ones(4096), 1),
            lambda: dist.reduce_scatter_tensor(share, whole),
            lambda: dist.broadcast(whole, 1),
            lambda: dist.all_gather_into_tensor(whole, share),
            lambda: dist.gather(share, shares if at_root else None, 1),
            lambda: dist.scatter(share, shares if at_root else None, 1),
            lambda: dist.all_to_all_single(torch.ones(count), whole),
        ):
            run()
        dist.barrier()
        return [record["payload_received"] for record in group.telemetry.take()]

    for size in (3, 4):
        most = (size - 1) * count // size * 4
        for rank, received in enumerate(ranks(size, run)):
            at_root = rank == 1
            assert received == [
                2 * most if at_root else most, (size - 1) * 16384 if at_root else 0, most, 0 if at_root else 4 * count,
                most, most if at_root else 0, 0 if at_root else 4 * count // size, most, size - 1]


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
