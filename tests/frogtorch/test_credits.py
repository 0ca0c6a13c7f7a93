"""Credit for cells that go unasked, and Works that wait while too many copies are unread."""

import threading
import time
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from helpers import brief_timeout, eventually, failure, group, passed, store, tell

from frogtorch.memory import credit
from frogtorch.memory.credit import CELL_BYTES, Credit, Unread
from frogtorch.memory.faults import ProtocolError, RoundTimeout
from frogtorch.memory.wire import Kind


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.fixture
def limits(monkeypatch):
    """Set limits, for all ranks that are started after."""
    def set_(**values):
        for name, value in values.items():
            monkeypatch.setattr(credit, name, value)
    return set_


# The counts ---------------------------------------------------------------------------------------------------


def test_what_is_sent_unasked_is_no_more_than_the_credit(limits):
    limits(UNASKED_BYTES=10 * (CELL_BYTES + 76), CREDIT_BYTES=2 * (CELL_BYTES + 76))
    sender, reader = Credit(), Credit()
    assert [sender.spend(76) for _ in range(11)] == [True] * 10 + [False]
    for _ in range(10):
        reader.take(76)
    each = CELL_BYTES + 76
    assert reader.due(10 * each) is None  # all of them wait
    assert reader.due(9 * each) is None  # one is used up: too little to say so
    used = reader.due(7 * each)
    assert used == 3 * each
    assert reader.due(7 * each) is None  # it has been said
    sender.restore(used)
    assert [sender.spend(76) for _ in range(4)] == [True] * 3 + [False]


def test_credit_that_cannot_be(limits):
    limits(UNASKED_BYTES=3 * CELL_BYTES, CREDIT_BYTES=1)
    one = Credit()
    one.spend(0)
    one.spend(0)
    one.restore(CELL_BYTES)
    for wrong in (3 * CELL_BYTES, CELL_BYTES - 1):
        with pytest.raises(ProtocolError):
            one.restore(wrong)
    for _ in range(3):
        one.take(0)
    with pytest.raises(ProtocolError, match="beyond all credit"):
        one.take(0)


def test_which_rounds_are_held_back(limits):
    limits(UNREAD_BYTES=200 + 2 * CELL_BYTES)
    unread, ended = Unread(), []

    def hold(number):
        return unread.hold(number, lambda: ended.append(number))

    assert not hold(1)  # has published nothing
    unread.add(1, 2000)
    assert not hold(1)  # larger than the limit, but alone
    unread.add(2, 50)
    assert hold(2)
    assert hold(1)
    assert not hold(3)  # too many, but none of its own
    unread.add(2, 20)
    unread.remove(2, 50)
    assert ended == []
    unread.remove(2, 20)  # 2 has been read, and 1 is alone again
    assert ended == [2, 1]
    ended.clear()
    unread.add(4, 60)
    unread.add(5, 60)
    assert hold(4)
    assert hold(5)
    unread.remove(1, 2000)  # under the limit, with 4 and 5 unread
    assert ended == [4, 5]
    unread.add(6, 1000)
    assert hold(6)
    unread.forget(6)
    unread.remove(6, 1000)
    unread.remove(4, 60)
    unread.remove(5, 60)
    assert ended == [4, 5]
    assert (unread.nbytes, len(unread)) == (0, 0)


# Between ranks ------------------------------------------------------------------------------------------------


def test_a_root_far_ahead_of_its_reader(ranks):
    # 50 MiB in tensors that go unasked, more than the credit; the reader begins when all is published.
    count, many = 4096, 3000

    def run(rank, size):
        connection = group()._memory.connections[1 - rank]
        send, kinds = connection.send, Counter()

        def counted(frame, tally):
            kinds[Kind(frame[0])] += 1
            send(frame, tally)

        connection.send = counted
        if rank == 1:
            passed("published")
        wrong = 0
        for i in range(many):
            x = torch.full((count,), float(i)) if rank == 0 else torch.zeros(count)
            dist.broadcast(x, 0)
            wrong += not (x[0] == x[-1] == i)
        tell("published")
        dist.barrier()
        return wrong, kinds, group()._memory.peers[1 - rank].inbox.cost

    (wrong, sent, _), (also_wrong, answered, left) = ranks(2, run)
    assert wrong == also_wrong == 0
    # All that exceeded the credit of 32 MiB was offered, and asked for: a cell of 16 KiB counts as 17.
    assert sent[Kind.OFFER] == answered[Kind.ASK] == many - (32 << 20) // (17 << 10)
    # Of the rest, the reader has said seven times that it has used up 4 MiB more: the eighth 4 MiB are not full.
    assert answered[Kind.CREDIT] == 7
    assert left == 0


@pytest.mark.parametrize("size", [2, 3])
def test_with_hardly_any_credit_everything_still_works(ranks, limits, size):
    # For three cells: most are offered. Then tiny ones, of which each is a cell too.
    limits(UNASKED_BYTES=3 * (CELL_BYTES + 4096), CREDIT_BYTES=CELL_BYTES)

    def run(rank, size):
        works, tensors = [], []
        for i in range(150):
            x = torch.full((1024 if i % 2 else 1,), float(rank + i))
            tensors.append(x)
            works.append(dist.all_reduce(x, async_op=True) if i % 3 else dist.broadcast(x, i % size, async_op=True))
        for work in works:
            work.wait()
        gathered = [torch.zeros(3) for _ in range(size)]
        dist.all_gather(gathered, torch.full((3,), float(rank)))
        dist.barrier()
        return [x.unique().tolist() for x in tensors], [x.unique().tolist() for x in gathered]

    for sums, gathered in ranks(size, run):
        assert sums == [[float(size * i + size * (size - 1) // 2)] if i % 3 else [float(i % size + i)]
                        for i in range(150)]
        assert gathered == [[float(rank)] for rank in range(size)]


def test_a_cell_of_an_earlier_round_does_not_wait_for_credit(ranks, limits):
    # Rank 1 waits in round 0, for rank 2 and then for rank 0's sum. Rank 0 has spent all its credit on later rounds,
    # which rank 1 will not read before round 0 has ended.
    limits(UNASKED_BYTES=20 * (CELL_BYTES + 4), CREDIT_BYTES=CELL_BYTES)

    def run(rank, size):
        if rank == 2:
            time.sleep(1)
        x = torch.full((3,), float(rank))
        first = dist.all_reduce(x, async_op=True)
        if rank:
            first.wait()
        works = [dist.broadcast(torch.ones(1), 0, async_op=True) for _ in range(200)]
        for work in (first, *works):
            work.wait()
        return x.tolist()

    assert ranks(3, run) == [[3.0] * 3] * 3


def test_messages_beyond_the_credit(ranks, limits):
    limits(UNASKED_BYTES=10 * (CELL_BYTES + 40), CREDIT_BYTES=CELL_BYTES)

    def run(rank, size):
        if rank:
            for i in range(50):
                dist.send(torch.full((10,), float(i)), 0, tag=i % 2)
            return None
        time.sleep(0.5)
        found = {1: [[], []], 2: [[], []]}
        for i in range(100):
            x = torch.zeros(10)
            source = dist.recv(x, tag=i % 2)
            found[source][i % 2].append(x[0].item())
        return found

    assert ranks(3, run)[0] == {rank: [list(range(0, 50, 2)), list(range(1, 50, 2))] for rank in (1, 2)}


# Unread copies ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_root_that_waits_for_its_works_is_slowed_down_to_its_reader(ranks):
    # 2,000 MiB, of which the root keeps 256, and up to as much again that it has freed.
    many, count = 2000, 1 << 18

    def run(rank, size):
        dist.barrier()
        before, most = resident_bytes(), 0
        if rank:
            time.sleep(2)
        x = torch.zeros(count)
        wrong = 0
        for i in range(many):
            if rank == 0:
                x.fill_(i)
            dist.broadcast(x, 0)
            wrong += not (x[0] == x[-1] == i)
            most = max(most, resident_bytes())
        dist.barrier()
        return wrong, (most - before) >> 20

    (wrong, grown), (also_wrong, also_grown) = ranks(2, run, timeout=200.0, guard=250.0)
    assert wrong == also_wrong == 0
    assert grown < 600
    assert also_grown < 150


def test_ranks_that_publish_more_than_is_kept(ranks, limits):
    # Every kind of collective, several at a time, in two groups, with room for one small cell: nobody waits for ever.
    limits(UNREAD_BYTES=2 * CELL_BYTES)

    def run(rank, size):
        others = dist.new_group(list(range(size)))
        works, sums = [], []
        for i in range(40):
            where = others if i % 2 else None
            x = torch.full((5000 if i % 4 else 5,), float(rank + i))
            works.append(dist.all_reduce(x, group=where, async_op=True))
            sums.append(x)
            parts = [torch.zeros(3000) for _ in range(size)]
            works.append(dist.all_gather(parts, torch.full((3000,), float(rank)), group=where, async_op=True))
            sums.append(torch.cat(parts).unique() if works[-1].wait() is None else torch.cat(parts)[::3000])
            dist.broadcast(torch.ones(7000), i % size, group=where)
            if i % 3 == 0:
                dist.barrier()
                works.pop(0).wait()
        for work in works:
            work.wait()
        return [x.unique().tolist() for x in sums[::2]], [x.tolist() for x in sums[1::2]]

    for sums, gathered in ranks(3, run):
        assert sums == [[3.0 * i + 3] for i in range(40)]
        assert gathered == [[0.0, 1.0, 2.0]] * 40


def test_a_work_is_held_for_its_own_copies_alone(ranks, limits):
    # As a program may with Gloo: nobody waits for the long messages before the short ones have gone to and fro.
    limits(UNREAD_BYTES=2 * CELL_BYTES)

    def run(rank, size):
        token = torch.tensor([5.0])
        if rank == 0:
            long = [dist.isend(torch.full((100_000,), float(i)), 1, tag=1) for i in range(2)]
            assert eventually(long[0].is_completed)
            time.sleep(0.3)
            held = [work.is_completed() for work in long]
            dist.recv(token, 1, tag=2)
            dist.all_reduce(torch.ones(3))
            dist.send(token, 1, tag=3)
            for work in long:
                work.wait()
            return held
        dist.send(token, 0, tag=2)
        dist.all_reduce(torch.ones(3))
        dist.recv(token, 0, tag=3)
        found = []
        for _ in range(2):
            x = torch.zeros(100_000)
            dist.recv(x, 0, tag=1)
            found.append(x.unique().tolist())
        return found

    # The first is alone, so it is not held back; the second is.
    assert ranks(2, run) == [[True, False], [[0.0], [1.0]]]


def test_a_work_that_is_held_back_too_long(world, limits):
    limits(UNREAD_BYTES=2 * CELL_BYTES)

    def run(rank, size):
        dist.barrier()
        if rank:
            passed("rank 0 has waited")
            return None
        brief_timeout(1)
        dist.broadcast(torch.ones(100_000), 0)
        broadcast = failure(lambda: dist.broadcast(torch.ones(100_000), 0), RoundTimeout)
        send = failure(lambda: dist.send(torch.ones(100_000), 1, tag=4), RoundTimeout)
        left = len(group()._memory.published.unread)
        tell("rank 0 has waited")
        return broadcast, send, left

    broadcast, send, left = world(2, run).results()[0]
    assert "broadcast (float32), round 2 of " in broadcast
    assert "timeout of 1 s passed, waiting for rank 1 at 127.0.0.1:" in broadcast
    assert "bct.2.0, rank 0), kept for it here" in broadcast
    assert "send (float32), tag 4, to rank 1 of " in send
    assert left == 1  # the first, which was not held back


@pytest.mark.parametrize("how", ["dies", "leaves", "aborts"])
def test_a_work_that_is_held_back_for_a_reader_that_goes(world, limits, how):
    limits(UNREAD_BYTES=2 * CELL_BYTES)

    def run(rank, size):
        dist.barrier()
        if rank:
            time.sleep(0.5)
            tell("rank 1 goes")
            if how == "dies":
                import os

                os._exit(1)
            if how == "aborts":
                group().abort()
            return None
        for _ in range(3):
            dist.broadcast(torch.ones(100_000), 0)
        return store().check(["rank 1 goes"]), len(group()._memory.published.unread)

    started = world(2, run, timeout=1000)  # a world counts as hung long before
    held, left = started.results(expected_dead=[1] if how == "dies" else ())[0]
    assert held  # until then
    assert left == 0


def test_leaving_with_works_that_are_held_back(ranks, limits):
    limits(UNREAD_BYTES=2 * CELL_BYTES)

    def run(rank, size):
        if rank == 0:
            for i in range(5):
                dist.broadcast(torch.full((100_000,), float(i)), 0, async_op=True)
            return None
        time.sleep(0.5)
        found = []
        for _ in range(5):
            x = torch.zeros(100_000)
            dist.broadcast(x, 0)
            found.append(x.unique().tolist())
        return found

    assert ranks(2, run)[1] == [[float(i)] for i in range(5)]


def test_callbacks_of_works_that_are_held_back_come_when_they_end(ranks, limits):
    limits(UNREAD_BYTES=2 * CELL_BYTES)

    def run(rank, size):
        if rank:
            passed("rank 0 has looked")
        came = threading.Event()
        works = [dist.broadcast(torch.ones(100_000), 0, async_op=True) for _ in range(2)]
        works[1].get_future().then(lambda done: came.set())
        early = came.wait(0.2)
        if rank == 0:
            tell("rank 0 has looked")
        return early, came.wait(60)

    assert ranks(2, run)[0] == (False, True)
