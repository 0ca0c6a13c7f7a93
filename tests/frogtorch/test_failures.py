"""A rank that dies, never comes, stops, or does something else: one error, in time, that names it."""

import os
import re
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from helpers import brief_timeout, failure, passed, tell

import frogtorch

SHARD = frogtorch.Options(all_reduce="shard")
NEVER = 1000.0
"""Seconds of a timeout that no test waits for: a world counts as hung long before."""


@pytest.mark.parametrize("count", [10, 400_000])
def test_a_rank_that_dies_in_a_round(world, count):
    def run(rank, size):
        dist.all_reduce(torch.ones(4))
        if rank == 2:
            os._exit(3)
        return failure(lambda: dist.all_reduce(torch.ones(count)))

    first, second, _ = world(3, run, timeout=NEVER, options=SHARD).results(expected_dead=[2])
    for text in (first, second):
        assert "all_reduce (shard, sum, float32), round 1 " in text
        assert "rank 2 at 127.0.0.1:" in text
        assert " closed " in text


def test_a_rank_that_is_stopped(world):
    def run(rank, size):
        dist.all_reduce(torch.ones(4))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        brief_timeout(1.5)
        begin = time.monotonic()
        return failure(lambda: dist.all_reduce(torch.ones(400_000))), time.monotonic() - begin

    (text, seconds), _ = world(2, run, options=SHARD).results(expected_dead=[1])
    assert seconds > 1.4
    # Both slices are asked of it: its own sum, and its part of ours.
    assert " timeout of 1.5 s passed" in text
    assert "on rank 0" in text
    assert "ars.1.0.0, rank 1) of rank 1 at 127.0.0.1:" in text
    assert "(0 of 800000 bytes came)" in text


def test_the_rank_that_is_stopped_is_named_first(world):
    def run(rank, size):
        dist.all_reduce(torch.ones(4))
        if rank == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        brief_timeout(3)
        return failure(lambda: dist.all_reduce(torch.ones(600)))

    # The others' sums are late, too: they wait for the same rank.
    texts = world(6, run, options=SHARD).results(expected_dead=[3])[:3]
    assert any(re.search(r"waiting for \(\S+ ars\.1\.0\.\d, rank 3\)", text) for text in texts)
    assert all("rank 3 at 127.0.0.1:" in text for text in texts)


def test_an_interrupt_while_a_collective_is_started(world):
    def run(rank, size):
        def interrupted(*args, **named):
            raise KeyboardInterrupt

        if rank == 1:
            dist.group.WORLD._memory.publish = interrupted
            with pytest.raises(KeyboardInterrupt):
                dist.all_reduce(torch.ones(4))
        return failure(lambda: dist.all_reduce(torch.ones(4)))

    first, second = world(2, run, options=SHARD).results()
    assert "rank 1 at 127.0.0.1:" in first
    assert "KeyboardInterrupt() came while a collective was being started" in second


def test_a_rank_that_never_calls(world):
    def run(rank, size):
        if rank == 1:
            passed("rank 0 is told")
            return None
        brief_timeout(1)
        text = failure(lambda: dist.broadcast(torch.ones(3), 1))
        tell("rank 0 is told")
        return text

    text, _ = world(2, run, options=SHARD).results()
    assert "broadcast (float32), round 0 " in text
    assert "bct.0.1, rank 1) of rank 1 at" in text
    assert "0 of 12 bytes" in text


def test_a_rank_that_never_comes_to_the_rendezvous(world):
    def run(rank, size):
        raise AssertionError("the group must not come together")

    started = world(3, run, timeout=5, absent=[2])
    for result in started.results(expected_dead=[2])[:2]:
        assert "rank 2 has not come to the rendezvous" in str(result)


@pytest.mark.parametrize(("first", "second", "said"), [
    # Small both, long both, and one of each.
    (lambda: dist.all_reduce(torch.ones(10)), lambda: dist.all_reduce(torch.ones(11)), "/11 elements/"),
    (lambda: dist.all_reduce(torch.ones(100_000)), lambda: dist.all_reduce(torch.ones(90_000)), "/90000 elements/"),
    (lambda: dist.all_reduce(torch.ones(10)), lambda: dist.all_reduce(torch.ones(90_000)), "/90000 elements/"),
    (lambda: dist.all_reduce(torch.ones(10)), lambda: dist.all_reduce(torch.ones(10).int()), "int32"),
    (lambda: dist.all_reduce(torch.ones(90_000)), lambda: dist.all_reduce(torch.ones(90_000).int()), "int32"),
    (lambda: dist.all_reduce(torch.ones(10)), lambda: dist.all_reduce(torch.ones(10), dist.ReduceOp.MAX), "max"),
    (lambda: dist.all_reduce(torch.ones(10)), lambda: dist.barrier(), "barrier"),
    (lambda: dist.all_reduce(torch.ones(90_000)), lambda: dist.broadcast(torch.ones(90_000), 1), "broadcast"),
])
def test_ranks_that_do_different_things(world, first, second, said):
    def run(rank, size):
        return failure(first if rank == 0 else second)

    failed = [text for text in world(2, run, timeout=NEVER, options=SHARD).results() if text is not None]
    assert failed
    for text in failed:
        assert "rank 0" in text
        assert "rank 1" in text
    assert any(said in text for text in failed)


def test_a_group_goes_on_after_a_round_timed_out(world):
    def run(rank, size):
        group = dist.distributed_c10d._get_default_group()
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.5)
        if rank == 1:
            passed("the time is up")
        late = failure(lambda: group.allreduce([torch.ones(300_000)], options).wait())
        if rank == 0:
            tell("the time is up")
        x = torch.full((300_000,), rank + 1.0)
        dist.all_reduce(x)
        return late, x.unique().tolist()

    (early_text, early), (late_text, late) = world(2, run, timeout=20, options=SHARD).results()
    assert "timeout of 0.5 s" in early_text
    assert "rank 0 at 127.0.0.1" in late_text
    assert "gave up round 0" in late_text
    assert early == late == [3.0]


def test_a_rank_that_is_done_first_takes_nothing_from_the_others(world):
    # Rank 0 publishes, destroys its group and ends; the others read long after.
    def run(rank, size):
        x = torch.full((500_000,), 7.0) if rank == 0 else torch.zeros(500_000)
        if rank:
            time.sleep(0.5 * rank)
        dist.broadcast(x, 0)
        return x.unique().tolist()

    assert world(3, run, options=SHARD).results() == [[7.0]] * 3


def test_a_process_that_ends_without_destroying_its_group(world):
    def run(rank, size):
        x = torch.full((500_000,), 7.0) if rank == 0 else torch.zeros(500_000)
        if rank:
            time.sleep(1)
        dist.broadcast(x, 0)
        if rank == 0:
            import atexit

            atexit._run_exitfuncs()  # a forked child of the tests ends without them otherwise
            os._exit(0)
        return x.unique().tolist()

    assert world(2, run, options=SHARD).results(expected_dead=[0])[1] == [7.0]


def test_abort_ends_what_is_under_way(world):
    def run(rank, size):
        group = dist.distributed_c10d._get_default_group()
        if rank == 1:
            time.sleep(0.5)
            group.abort()
            return None
        return failure(lambda: dist.all_reduce(torch.ones(3)))

    text, _ = world(2, run, timeout=NEVER, options=SHARD).results()
    assert "rank 1 at 127.0.0.1" in text


def test_a_result_that_cannot_be_taken_home_fails_its_own_collective_alone(ranks):
    def run(rank, size):
        from frogtorch.tensors import Place

        x = torch.zeros(6)[::2]

        def refuse(self):
            raise RuntimeError("this tensor is not to be written")

        put_back, Place.put_back = Place.put_back, refuse
        text = failure(lambda: dist.all_reduce(x))
        Place.put_back = put_back
        x = torch.ones(3)
        dist.all_reduce(x)
        return text, x.tolist()

    assert ranks(2, run, timeout=10.0) == [("this tensor is not to be written", [2.0] * 3)] * 2
