"""Comm hooks: what is in a mean, what is skipped and at what cost, what happens where ranks run ahead, leave or die."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from helpers import brief_timeout, eventually, failure, group, passed, tell

import frogtorch
from frogtorch.hooks import EveryK, Faithful, FreshOnly, Taken, every_k, faithful, fresh_only
from frogtorch.telemetry import chrome, flight
from frogtorch.telemetry.ring import RING

LARGE = 8 << 20  # elements: 32 MiB, more than the buffers of two sockets hold


class Bucket:
    """As DDP hands one over: the values of this rank and step, and whose gradients they are."""

    def __init__(self, values, index=0, parameters=()):
        self._buffer = torch.tensor(values) if isinstance(values, list) else values
        self._index = index
        self._parameters = list(parameters)

    def index(self):
        return self._index

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters


def mean(hook, state, values, **bucket):
    """What the hook makes of a bucket with these values."""
    return hook(state, Bucket(values, **bucket)).wait().tolist()


def received():
    return sum(seen["payload_received"] for seen in group().telemetry.take() if seen["collective"] == "fresh_only")


# Semantics ----------------------------------------------------------------------------------------------------


def test_faithful_is_the_mean_in_rank_order(ranks):
    # In fp32, (1e8 + 1) - 1e8 is 0 in this order and 1 in any that begins with rank 0 and 2.
    parts = [[1e8, 3.0], [1.0, 4.0], [-1e8, 5.0]]

    def run(rank, size):
        state = Faithful()
        result = mean(faithful, state, parts[rank])
        seen = group().telemetry.take()[-1]
        assert (seen["collective"], seen["algorithm"], seen["step"], seen["bucket"]) == ("faithful", "whole", 0, 0)
        assert seen["incorporated"] == {str(peer): 0 for peer in range(3) if peer != rank}
        assert list(state.taken) == [Taken(0, 0, dict.fromkeys(set(range(3)) - {rank}, 0))]
        return result

    assert ranks(3, run) == [[0.0, 4.0]] * 3


def test_every_k_takes_the_others_in_every_kth_step_and_nothing_else_travels(ranks):
    def run(rank, size):
        state = EveryK(3)
        group().telemetry.take()
        results = [mean(every_k, state, [float(10 * step + rank)]) for step in range(7)]
        assert [(one.step, one.ages) for one in state.taken] == [
            (step, {} if step % 3 else dict.fromkeys(set(range(3)) - {rank}, 0)) for step in range(7)]
        seen = group().telemetry.take()
        assert [one["step"] for one in seen] == list(range(7))
        assert [one["payload_received"] for one in seen] == [0 if step % 3 else 8 for step in range(7)]
        return [value for (value,) in results]

    for rank, result in enumerate(ranks(3, run)):
        assert result == [1, 10 + rank, 20 + rank, 31, 40 + rank, 50 + rank, 61]


def test_fresh_only_takes_what_is_new_and_skips_what_is_not(ranks):
    # Rank 0: steps 0, 1. Then rank 1: steps 0, 1. Then rank 0: step 2. Nobody else is on its way meanwhile.
    def run(rank, size):
        state = FreshOnly()
        group().telemetry.take()
        found = []

        def step(value):
            found.append((mean(fresh_only, state, [value, value]), received()))

        if rank == 0:
            step(1.0)
            step(3.0)
            tell("zero")
            passed("one")
            step(5.0)
            tell("end")
        else:
            passed("zero")
            step(11.0)
            step(20.0)
            tell("one")
            passed("end")  # what it has published is there until then
        return found, [tuple(one) for one in state.taken]

    (zero, taken_by_0), (one, taken_by_1) = ranks(2, run)
    assert zero == [([1.0, 1.0], 0), ([3.0, 3.0], 0), ([12.5, 12.5], 8)]  # (5 + 20) / 2
    assert taken_by_0 == [(0, 0, {}), (1, 0, {}), (2, 0, {1: 1})]
    # Its step 0 meets rank 0's step 1, which is ahead; its step 1 finds nothing new.
    assert one == [([7.0, 7.0], 8), ([20.0, 20.0], 0)]
    assert taken_by_1 == [(0, 0, {0: -1}), (1, 0, {})]


def test_fresh_only_adds_up_in_rank_order_whoever_came_first(ranks):
    parts = [[1e8], [1.0], [-1e8]]

    def run(rank, size):
        state = FreshOnly(bound=0)  # nobody goes on before all have published
        if rank == 0:
            passed("the others are there")
        work = fresh_only(state, Bucket(parts[rank]))
        if rank == 2:
            tell("the others are there")
        return work.wait().tolist()

    assert ranks(3, run) == [[0.0]] * 3


def test_a_skipped_peer_costs_a_question_and_no_payload(ranks):
    def run(rank, size):
        state = FreshOnly()
        if rank == 0:
            fresh_only(state, Bucket(torch.ones(LARGE))).wait()
            tell("published")
            passed("done")
            return None
        passed("published")
        group().telemetry.take()
        for _ in range(3):
            fresh_only(state, Bucket(torch.zeros(LARGE))).wait()
        tell("done")
        return [(seen["payload_received"], seen["socket_received"]) for seen in group().telemetry.take()]

    first, *others = ranks(2, run)[1]
    assert first[0] == 4 * LARGE
    for payload, on_the_socket in others:
        assert payload == 0
        assert 0 < on_the_socket < 100


@pytest.mark.parametrize("bound", [0, 2])
def test_a_peer_that_lags_beyond_the_bound_is_waited_for(ranks, bound):
    def run(rank, size):
        state = FreshOnly(bound=bound)
        if rank == 0:
            for step in range(bound):
                assert mean(fresh_only, state, [float(step)]) == [float(step)]
            late = fresh_only(state, Bucket([4.0]))
            time.sleep(0.3)
            assert not late.done()
            tell("rank 0 waits")
            return late.wait().tolist(), state.taken[-1].ages
        passed("rank 0 waits")
        return mean(fresh_only, state, [8.0])

    (result, ages), _ = ranks(2, run)
    assert result == [6.0]
    assert ages == {1: bound}


def test_what_was_put_into_other_buckets_is_not_mixed(ranks):
    # Rank 0 is a step ahead, and DDP has changed its buckets: of the same size, but the parameters are others.
    before, after = [torch.zeros(1), torch.zeros(1)], [torch.zeros(1), torch.zeros(1)]

    def run(rank, size):
        state = FreshOnly()
        first = mean(fresh_only, state, [float(rank)], parameters=before) if rank == 0 else None
        if rank == 0:
            second = mean(fresh_only, state, [10.0], parameters=after)
            tell("rank 0 is ahead")
            passed("rank 1 is there")
            third = mean(fresh_only, state, [20.0], parameters=after)
            tell("end")
            return first, second, third
        passed("rank 0 is ahead")
        first = mean(fresh_only, state, [1.0], parameters=before)
        second = mean(fresh_only, state, [30.0], parameters=after)
        tell("rank 1 is there")
        passed("end")
        return first, second

    assert ranks(2, run) == [([0.0], [10.0], [25.0]), ([1.0], [20.0])]


def test_hooks_are_found_without_an_import_of_their_own():
    assert frogtorch.hooks.fresh_only is fresh_only


def test_traces_name_hooks_by_step_and_bucket_and_the_analyzer_sees_what_is_a_collective(ranks, tmp_path):
    def run(rank, size):
        state, every = FreshOnly(), EveryK(2)
        for _ in range(2):
            mean(fresh_only, state, [1.0])
            mean(every_k, every, [2.0])
        mean(faithful, Faithful(), [3.0])
        # Nothing of fresh_only, nor of a step that was a rank's own, is among the collectives.
        entries = flight.trace(RING.records())["entries"]
        events = chrome.trace(RING.records(), rank, time.monotonic())["traceEvents"]
        return ([(entry["profiling_name"], entry["collective_seq_id"]) for entry in entries],
                {event["name"] for event in events})

    for entries, names in ranks(2, run):
        assert entries == [("gloo:all_reduce", 0), ("gloo:all_reduce", 1)]
        assert {"fresh_only step 1, bucket 0", "every_k step 1, bucket 0", "faithful step 0, bucket 0"} <= names


# Memory -------------------------------------------------------------------------------------------------------


def test_one_bucket_is_kept_however_many_were_published(ranks):
    def run(rank, size):
        state = FreshOnly(bound=1000)
        if rank == 0:
            for step in range(100):
                for index in range(2):
                    fresh_only(state, Bucket(torch.full((1000,), float(step)), index=index)).wait()
            tell("published")
            memory, pool = group()._memory, group()._engine.pool
            assert len(memory.series) == 2
            assert not memory.published.cells
            # The two that are kept, and what the next ones will be copied into and read into.
            assert sum(map(len, pool._free.values())) <= 4
            passed("read")
            return None
        passed("published")
        first = fresh_only(state, Bucket(torch.zeros(1000))).wait()
        tell("read")
        return first[0].item(), state.taken[-1].ages

    assert ranks(2, run)[1] == (49.5, {0: -99})


# The end ------------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_being_read_comes_to_its_end_though_its_owner_goes_on_and_leaves(ranks):
    def run(rank, size):
        state = FreshOnly(bound=0) if rank else FreshOnly()
        if rank == 0:
            passed("rank 1 waits")
            for step in range(3):  # the first answers rank 1, the others supersede it while it is read
                fresh_only(state, Bucket(torch.full((LARGE,), 2.0 + step))).wait()
            return None
        waits = fresh_only(state, Bucket(torch.zeros(LARGE)))
        tell("rank 1 waits")
        result = waits.wait()
        return result.min().item(), result.max().item(), state.taken[-1].ages

    assert ranks(2, run)[1] == (1.0, 1.0, {0: 0})


def test_a_rank_that_ends_early_is_skipped_until_it_lags_too_far(ranks):
    def run(rank, size):
        state = FreshOnly(bound=5)
        if rank == 0:
            fresh_only(state, Bucket([1.0])).wait()
            tell("published")
            passed("rank 1 has read")
            return None
        passed("published")
        assert mean(fresh_only, state, [3.0]) == [2.0]
        tell("rank 1 has read")
        assert eventually(lambda: group()._memory.peers[0].gone is not None)
        for _ in range(5):
            assert mean(fresh_only, state, [3.0]) == [3.0]
        return failure(lambda: mean(fresh_only, state, [3.0]))

    error = ranks(2, run)[1]
    assert "bucket 0 of step 6" in error
    assert "on rank 1: rank 0 at 127.0.0.1" in error
    assert "has left the group" in error
    assert "nothing later than step 0 came, which is beyond the staleness bound" in error


def test_a_rank_that_dies_is_an_error(world):
    def run(rank, size):
        state = FreshOnly(bound=0)
        if rank == 0:
            mean(fresh_only, state, [1.0])
            os.kill(os.getpid(), signal.SIGKILL)
        mean(fresh_only, state, [1.0])
        return failure(lambda: mean(fresh_only, state, [1.0]))

    error = world(2, run).results(expected_dead=(0,))[1]
    assert "fresh_only (float32), bucket 0 of step 1" in error
    assert "it died, or was killed" in error


def test_waiting_ends_with_the_timeout_and_says_for_what(ranks):
    def run(rank, size):
        if rank == 0:
            passed("end")
            return None
        brief_timeout(1)
        error = failure(lambda: mean(fresh_only, FreshOnly(bound=0), [1.0]))
        tell("end")
        return error

    error = ranks(2, run)[1]
    assert "hkb.1.0 of step 0 or later of rank 0 at 127.0.0.1" in error
    assert "timeout of 1 s passed" in error


# Refusals -----------------------------------------------------------------------------------------------------


def test_a_group_of_another_backend_is_refused(ranks):
    def run(rank, size):
        return failure(FreshOnly, TypeError), failure(lambda: EveryK(2, dist.group.WORLD), TypeError)

    for errors in ranks(2, run, backend="gloo"):
        for error in errors:
            assert "a group of backend 'gloo' has not" in error
            assert 'init_process_group("frogtorch")' in error


def test_what_cannot_be_is_refused(ranks):
    def run(rank, size):
        state = Faithful()
        models = [[torch.zeros(1)], [torch.zeros(1)]]
        mean(faithful, state, [1.0], parameters=models[0])
        mean(faithful, state, [1.0], parameters=models[1])
        return [failure(lambda: FreshOnly(bound=-1), ValueError), failure(lambda: FreshOnly(bound=0.5), ValueError),
                failure(lambda: EveryK(0), ValueError), failure(lambda: fresh_only(None, Bucket([1.0])), TypeError),
                failure(lambda: mean(faithful, state, [1.0], parameters=models[0]))]

    for negative, half, zero, no_state, two in ranks(2, run):
        assert negative == "bound is a whole number of steps, 0 or more, not -1"
        assert "not 0.5" in half
        assert zero == "k is a whole number of steps, 1 or more, not 0"
        assert "register_comm_hook(frogtorch.hooks.FreshOnly(...), frogtorch.hooks.fresh_only), not" in no_state
        assert two == "this Faithful serves two models; give each a state of its own"


def test_buckets_of_different_sizes_are_a_mismatch(ranks):
    def run(rank, size):
        error = failure(lambda: mean(fresh_only, FreshOnly(bound=0), [1.0] * (rank + 1)))
        dist.barrier()
        return error

    errors = ranks(2, run)
    assert "hkb.1.0 is fresh_only/buckets/float32 of 8 bytes on rank 1" in errors[0]
    assert "of 8 bytes on rank 1" in errors[1]
