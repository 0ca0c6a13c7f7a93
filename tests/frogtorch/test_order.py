"""The order of summation: that of the ranks, the same in every run, or that of the real Gloo, bit for bit."""

import functools
import itertools
import random
import time

import pytest
import torch
import torch.distributed as dist

import frogtorch

ALGORITHMS = ("shard", "pipelined", "whole", "direct")
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
WORLDS = (2, 3, 4, pytest.param(6, marks=pytest.mark.slow))


def variates(rank, count, dtype=torch.float32):
    """Rank `rank`'s tensor: normal variates, whose sums show any other order."""
    return torch.randn(count, generator=torch.Generator().manual_seed(1000 + rank), dtype=dtype)


def bits(x):
    return x.view({4: torch.int32, 8: torch.int64}[x.itemsize])


def ours(algorithm, order):
    return dist.new_group(backend="frogtorch", pg_options=frogtorch.Options(
        all_reduce=algorithm, order=order, chunk_bytes=100_000))


@pytest.mark.parametrize("size", WORLDS)
def test_all_reduce_in_the_order_gloo_has_gloos_bits(ranks, size):
    # Slices of no element, of one, uneven ones; segments of a few bytes, and of up to 1 MiB with a second and a third.
    counts = [1, 2, 2 * size - 1, 2 * size + 1, 1000, 100_003]

    def run(rank, size):
        groups = {algorithm: ours(algorithm, "gloo") for algorithm in ALGORITHMS}
        differing = []
        for count, dtype, op in itertools.product(counts, (torch.float32, torch.float64), OPS):
            real = variates(rank, count, dtype)
            dist.all_reduce(real, getattr(dist.ReduceOp, op))
            for algorithm, group in groups.items():
                x = variates(rank, count, dtype)
                dist.all_reduce(x, getattr(dist.ReduceOp, op), group=group)
                if not torch.equal(bits(x), bits(real)):
                    differing.append((algorithm, count, dtype, op))
        return differing

    assert ranks(size, run, backend="gloo") == [[]] * size


@pytest.mark.parametrize("size", WORLDS)
def test_millions_of_elements_in_the_order_gloo_have_gloos_bits(ranks, size):
    # The founding workload's buckets and its whole, in elements.
    def run(rank, size):
        group = ours("shard", "gloo")
        differing = []
        for count, dtype in [(1_050_625, torch.float32), (3_166_208, torch.float32), (4_216_833, torch.float32),
                             (1_050_625, torch.float64)]:
            real, x = variates(rank, count, dtype), variates(rank, count, dtype)
            dist.all_reduce(real)
            dist.all_reduce(x, group=group)
            if not torch.equal(bits(x), bits(real)):
                differing.append((count, dtype))
        # From 2W MiB on a reduce has other segments, and so another order, than an all-reduce.
        real, x = variates(rank, 4_216_833), variates(rank, 4_216_833)
        dist.reduce(real, 0)
        dist.reduce(x, 0, group=group)
        if rank == 0 and not torch.equal(bits(x), bits(real)):
            differing.append("reduce")
        return differing

    assert ranks(size, run, backend="gloo") == [[]] * size


@pytest.mark.parametrize("size", WORLDS)
def test_reduce_and_reduce_scatter_in_the_order_gloo_have_gloos_bits(ranks, size):
    counts = [size, 3 * size, 1000 * size, 100_003 * size]  # up to 16 KiB a reduce is another algorithm

    def run(rank, size):
        group = ours("shard", "gloo")
        differing = []
        for count, op in itertools.product(counts, OPS):
            kind = getattr(dist.ReduceOp, op)
            real, x = variates(rank, count), variates(rank, count)
            dist.reduce(real, size - 1, kind)
            dist.reduce(x, size - 1, kind, group=group)
            if rank == size - 1 and not torch.equal(bits(x), bits(real)):
                differing.append(("reduce", count, op))
            real, x = torch.empty(count // size), torch.empty(count // size)
            dist.reduce_scatter_tensor(real, variates(rank, count), kind)
            dist.reduce_scatter_tensor(x, variates(rank, count), kind, group=group)
            if not torch.equal(bits(x), bits(real)):
                differing.append(("reduce_scatter", count, op))
        return differing

    assert ranks(size, run, backend="gloo") == [[]] * size


@pytest.mark.parametrize("size", [3, 4])
def test_the_order_rank_is_that_of_the_ranks_in_every_run(ranks, size):
    counts = [1, size + 1, 1000, 50_021]

    def run(rank, size):
        # Folded from rank 0 on, whatever comes first.
        expected = {count: functools.reduce(torch.add, [variates(r, count) for r in range(size)]) for count in counts}
        groups = [ours(algorithm, "rank") for algorithm in ALGORITHMS]
        differing = []
        for turn in range(6):
            time.sleep(random.Random(10 * turn + rank).random() / 50)  # who comes when is another thing every time
            tensors = [(count, group, variates(rank, count)) for count in counts for group in groups]
            for work in [dist.all_reduce(x, group=group, async_op=True) for _, group, x in tensors]:
                work.wait()
            differing += [count for count, _, x in tensors if not torch.equal(bits(x), bits(expected[count]))]
        return differing

    assert ranks(size, run) == [[]] * size
