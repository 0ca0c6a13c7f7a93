"""The control arm: the sums of shard, its bytes and paths, and nothing of the memory."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from helpers import brief_timeout, failure, group, passed, tell

import frogtorch

DIRECT = frogtorch.Options(all_reduce="direct")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def variates(rank, count, dtype):
    x = torch.randn(count, generator=torch.Generator().manual_seed(1000 + rank), dtype=torch.float64)
    return x.to(dtype) if dtype.is_floating_point else (20 * x).abs().to(dtype)


@pytest.mark.parametrize("order", ["rank", "gloo"])
@pytest.mark.parametrize("size", [2, 3, 4, pytest.param(5, marks=pytest.mark.slow),
                                  pytest.param(6, marks=pytest.mark.slow)])
def test_bits_are_those_of_shard(ranks, size, order):
    # Slices that are empty, of one element, small, and of several frames; all of a dtype and operation in flight.
    small, large = [1, size - 1, 2 * size + 1, 1000], [300_007]

    def run(rank, size):
        groups = [dist.new_group(backend="frogtorch", pg_options=frogtorch.Options(all_reduce=arm, order=order))
                  for arm in ("shard", "direct")]
        differing = []
        for dtype in DTYPES:
            for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
                if op == "AVG" and not dtype.is_floating_point:
                    continue
                counts = small + large * (op == "SUM")
                ours = [[variates(rank, count, dtype) for count in counts] for _ in groups]
                works = [dist.all_reduce(x, getattr(dist.ReduceOp, op), group=one, async_op=True)
                         for one, tensors in zip(groups, ours, strict=True) for x in tensors]
                for work in works:
                    work.wait()
                differing += [(dtype, op, len(x)) for x, y in zip(*ours, strict=True)
                              if not torch.equal(x.view(torch.uint8), y.view(torch.uint8))]
        return differing

    assert ranks(size, run) == [[]] * size


def test_nothing_is_on_the_sockets_but_the_tensors_and_a_header_a_frame(ranks):
    def run(rank, size):
        dist.barrier()
        group().telemetry.take()
        for count in (7, 3000, 30_000):
            dist.all_reduce(torch.ones(count))
        return [(seen["publish"], seen["payload_sent"], seen["socket_sent"]) for seen in group().telemetry.take()]

    frames = 2 * 2  # to each of two peers, its part of our slice and our sum of it: 40 kB of 30,000 elements are one
    for rank, results in enumerate(ranks(3, run, options=DIRECT)):
        for count, (publish, payload, sent) in zip((7, 3000, 30_000), results, strict=True):
            own = 4 * (count // 3 + (rank < count % 3))
            header = 32 + len("ars.0") + len(f"all_reduce/direct/sum/rank order/{count} elements/float32")
            assert publish == 0
            assert payload == 4 * count - own + 2 * own
            assert sent == payload + frames * header


def test_phases_are_told_as_of_shard(ranks):
    def run(rank, size):
        dist.all_reduce(torch.ones(300_000))
        (seen,) = group().telemetry.take()
        return seen

    for rank, seen in enumerate(ranks(3, run, options=DIRECT)):
        assert 0 < seen["phase1"] < seen["seconds"]
        assert 0 < seen["phase2"] < seen["seconds"]
        for phase in ("phase1", "phase2"):
            assert {int(peer): one[phase]["bytes"] for peer, one in seen["peers"].items()} == {
                peer: 400_000 for peer in range(3) if peer != rank}


def test_a_rank_that_waits_for_one_round_has_what_comes_of_the_next(ranks):
    """Rank 0 starts three rounds at once; what the others send in the first is behind what it sent of the third."""
    def run(rank, size):
        tensors = [torch.full((400_000,), float(rank + i)) for i in range(3)]
        if rank == 0:
            for work in [dist.all_reduce(x, async_op=True) for x in tensors]:
                work.wait()
        else:
            time.sleep(0.3 * rank)
            for x in tensors:
                dist.all_reduce(x)
        return [x.unique().tolist() for x in tensors]

    assert ranks(3, run, options=DIRECT) == [[[3.0], [6.0], [9.0]]] * 3


@pytest.mark.parametrize("count", [10, 400_000])
def test_a_rank_that_dies_is_named(world, count):
    def run(rank, size):
        dist.all_reduce(torch.ones(4))
        if rank == 2:
            os._exit(3)
        return failure(lambda: dist.all_reduce(torch.ones(count)))

    # A world counts as hung long before this timeout.
    first, second, _ = world(3, run, timeout=1000, options=DIRECT).results(expected_dead=[2])
    for text in (first, second):
        assert "all_reduce (direct, sum, float32), round 1 " in text
        assert "rank 2 at 127.0.0.1:" in text


def test_a_rank_that_is_late_is_waited_for_until_the_timeout(world):
    def run(rank, size):
        dist.all_reduce(torch.ones(4))
        if rank == 1:
            passed("the time is up")
            return None
        brief_timeout(1.5)
        text = failure(lambda: dist.all_reduce(torch.ones(40_000_000)))
        tell("the time is up")
        return text

    text, _ = world(2, run, options=DIRECT).results()
    assert " timeout of 1.5 s passed" in text
    assert "ars.1.0, rank 1) of rank 1 at 127.0.0.1:" in text
    assert "(0 of 80000000 bytes came)" in text


@pytest.mark.parametrize("count", [10, 100_000])
def test_ranks_with_other_algorithms_find_out(ranks, count):
    def run(rank, size):
        os.environ["FROGTORCH_ALL_REDUCE"] = "direct" if rank else "shard"
        other = dist.new_group(backend="frogtorch")
        return failure(lambda: dist.all_reduce(torch.ones(count), group=other))

    for text in ranks(2, run):
        assert "does all_reduce/shard/sum" in text
        assert "does all_reduce/direct/sum" in text
