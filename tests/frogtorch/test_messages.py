"""Messages: send, receive, tags and any source."""

import time

import pytest
import torch
import torch.distributed as dist
from helpers import LONG, SMALL, eventually, failure, group

from frogtorch.memory.faults import PeerLost


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("early", [True, False])
def test_between_all_pairs(ranks, size, early):
    counts = (0, 1, SMALL, 4096, 4097, LONG)  # 4096 x 4 B is the longest that goes unasked

    def run(rank, size):
        def send():
            for to in set(range(size)) - {rank}:
                for tag, count in enumerate(counts):
                    dist.send(torch.arange(count) * 1.0 + 1000 * rank + to, to, tag=tag)

        received = {(source, tag): torch.full((count,), -1.0) for source in range(size) if source != rank
                    for tag, count in enumerate(counts)}
        if not early:
            send()
            time.sleep(0.3)
        works = [dist.irecv(into, source, tag=tag) for (source, tag), into in reversed(received.items())]
        if early:
            time.sleep(0.3)
            send()
        for work in works:
            work.wait()
        return [into.equal(torch.arange(len(into)) * 1.0 + 1000 * source + rank)
                for (source, _), into in received.items()]

    assert ranks(size, run) == [[True] * 6 * (size - 1)] * size


def test_messages_of_one_tag_come_in_order_and_tags_do_not_wait_for_each_other(ranks):
    def run(rank, size):
        if rank == 0:
            for i in range(20):
                dist.send(torch.full((SMALL if i % 3 else LONG,), float(i)), 1, tag=7)
            dist.send(torch.tensor([99.0]), 1, tag=8)
            return None
        x = torch.zeros(1)
        dist.recv(x, 0, tag=8)
        seen = []
        for i in range(20):
            into = torch.zeros(SMALL if i % 3 else LONG)
            assert dist.recv(into, 0, tag=7) == 0
            seen.append(into.unique().tolist())
        return x.item(), seen

    assert ranks(2, run)[1] == (99.0, [[float(i)] for i in range(20)])


@pytest.mark.parametrize("make", [
    lambda: torch.arange(6, dtype=torch.bfloat16), lambda: torch.tensor([True, False, True]),
    lambda: torch.arange(4.0).to(torch.complex64), lambda: torch.arange(5).to(torch.uint16),
    lambda: torch.tensor(3.5), lambda: torch.arange(12.0).reshape(3, 4).t(), lambda: torch.arange(10.0)[::2],
    lambda: torch.arange(3.0).to(torch.float8_e4m3fn), lambda: torch.ones(3, requires_grad=True),
])
def test_any_tensor_that_is_dense(ranks, make):
    def run(rank, size):
        x = make()
        if rank == 0:
            dist.send(x, 1)
            return True
        into = torch.zeros_like(x, memory_format=torch.preserve_format)
        dist.recv(into, 0)
        return into.equal(x) if x.dtype != torch.float8_e4m3fn else into.float().equal(x.float())

    assert ranks(2, run) == [True, True]


def test_a_view_is_filled_and_its_neighbours_are_not(ranks):
    def run(rank, size):
        if rank == 0:
            dist.send(torch.tensor([1.0, 2.0, 3.0]), 1)
            return None
        x = torch.zeros(6)
        dist.recv(x[::2], 0)
        return x.tolist()

    assert ranks(2, run)[1] == [1, 0, 2, 0, 3, 0]


def test_a_message_may_be_overwritten_once_it_is_sent(ranks):
    def run(rank, size):
        if rank == 0:
            x = torch.ones(LONG)
            dist.send(x, 1)
            x.zero_()
            dist.barrier()
            return None
        dist.barrier()
        x = torch.zeros(LONG)
        dist.recv(x, 0)
        return x.unique().tolist()

    assert ranks(2, run)[1] == [1.0]


@pytest.mark.parametrize("count", [0, SMALL, LONG])
@pytest.mark.parametrize("early", [True, False])
def test_any_source(ranks, count, early):
    def run(rank, size):
        if rank:
            time.sleep(0.3 if early else 0)
            for i in range(3):
                dist.send(torch.full((count,), 10.0 * rank + i), 0, tag=5)
            return None
        time.sleep(0 if early else 0.3)
        seen = []
        for _ in range(9):
            x = torch.zeros(count)
            source = dist.recv(x, tag=5)
            seen.append((source, x.unique().tolist()))
        return seen

    seen = ranks(4, run)[0]
    # Of each source all, in its order.
    for source in (1, 2, 3):
        assert [values for of, values in seen if of == source] == [[10.0 * source + i] if count else []
                                                                  for i in range(3)]


def test_receives_are_matched_in_the_order_of_the_calls(ranks):
    def run(rank, size):
        if rank == 0:
            first, second, third = torch.zeros(1), torch.zeros(1), torch.zeros(1)
            works = [group().recv_anysource([first], 3), dist.irecv(second, 1, tag=3), dist.irecv(third, 1, tag=3)]
            other = torch.zeros(1)
            elsewhere = dist.irecv(other, 1, tag=4)  # not of this tag: it waits for nobody
            elsewhere.wait()
            dist.barrier()
            for work in works:
                work.wait()
            return works[0].source_rank(), [x.item() for x in (first, second, third, other)]
        if rank == 1:
            dist.send(torch.tensor([4.0]), 0, tag=4)
        dist.barrier()
        if rank == 1:
            for i in range(3):
                dist.send(torch.tensor([1.0 + i]), 0, tag=3)
        return None

    assert ranks(2, run)[0] == (1, [1.0, 2.0, 3.0, 4.0])


def test_a_receive_of_one_source_goes_on_when_any_source_before_it_is_served_by_another(ranks):
    def run(rank, size):
        if rank == 0:
            first, second = torch.zeros(1), torch.zeros(1)
            any_source, of_one = group().recv_anysource([first], 3), dist.irecv(second, 1, tag=3)
            dist.barrier()
            any_source.wait()
            of_one.wait()
            return any_source._source_rank(), first.item(), second.item()
        dist.barrier()
        if rank == 1:
            time.sleep(0.5)
        dist.send(torch.tensor([float(rank)]), 0, tag=3)
        return None

    assert ranks(3, run)[0] == (2, 2.0, 1.0)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_ring_in_one_batch(ranks, size):
    count = 1 << 20  # 4 MiB

    def run(rank, size):
        into = torch.zeros(count)
        for work in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, torch.full((count,), float(rank)), (rank + 1) % size),
                dist.P2POp(dist.irecv, into, (rank - 1) % size)]):
            work.wait()
        return into.unique().tolist()

    assert ranks(size, run) == [[float((rank - 1) % size)] for rank in range(size)]


def test_messages_and_collectives_at_one_time(ranks):
    def run(rank, size):
        works, sums, got = [], [], []
        for i in range(30):
            x, into = torch.full((LONG if i % 5 else SMALL,), float(rank + i)), torch.zeros(LONG if i % 4 else SMALL)
            sums.append(x)
            got.append(into)
            order = [lambda x=x: dist.all_reduce(x, async_op=True),
                     lambda into=into, i=i: dist.irecv(into, 1 - rank, tag=i % 3),
                     lambda into=into, i=i: dist.isend(torch.full_like(into, 100.0 * rank + i), 1 - rank, tag=i % 3)]
            works += [call() for call in (order if rank else reversed(order))]
        for work in works:
            work.wait()
        return ([x.unique().tolist() for x in sums], [x.unique().tolist() for x in got])

    for rank, (sums, got) in enumerate(ranks(2, run)):
        assert sums == [[1.0 + 2 * i] for i in range(30)]
        assert got == [[100.0 * (1 - rank) + i] for i in range(30)]


def test_ranks_are_those_of_the_group(ranks):
    def run(rank, size):
        some = dist.new_group([2, 0])
        if rank == 1:
            return None
        if rank == 2:
            dist.send(torch.tensor([2.0]), 0, group=some)
            return None
        x = torch.zeros(1)
        return dist.recv(x, group=some), x.item()

    assert ranks(3, run)[0] == (2, 2.0)


def test_objects(ranks):
    def run(rank, size):
        if rank == 0:
            dist.send_object_list([{"a": 1}, "b" * 50_000], 1)
            return None
        found = [None, None]
        dist.recv_object_list(found, 0)
        return found

    assert ranks(2, run)[1] == [{"a": 1}, "b" * 50_000]


def test_what_cannot_be_sent_or_received(ranks):
    def run(rank, size):
        x = torch.zeros(1)
        return [failure(call, ValueError) for call in (
            lambda: group().send([x], rank, 0), lambda: group().recv([x], rank, 0), lambda: group().send([x], 5, 0),
            lambda: group().recv([x], -1, 0), lambda: group().send([x], 1 - rank, -1),
            lambda: group().send([x, x], 1 - rank, 0))]

    for rank, (to_self, of_self, to_nobody, of_nobody, tag, two) in enumerate(ranks(2, run)):
        assert f"no send between rank {rank} of the group, which is this rank, and itself" in to_self
        assert f"no recv between rank {rank} of the group" in of_self
        assert "no send with rank 5: the group has ranks 0 to 1" in to_nobody
        assert "no recv with rank -1" in of_nobody
        assert "tag of a send is a whole number from 0 to 2**63 - 1, not -1" in tag
        assert two is not None


def test_alone(ranks):
    def run(rank, size):
        return failure(lambda: group().recv_anysource([torch.zeros(1)], 3).wait(), PeerLost)

    (text,) = ranks(1, run)
    assert "has no other rank" in text
    assert "tag 3, from any rank" in text


def test_what_was_sent_can_be_received_after_its_sender_has_left(ranks):
    def run(rank, size):
        if rank == 0:
            dist.send(torch.ones(LONG), 1)
            dist.send(torch.ones(SMALL), 1)
            return None
        time.sleep(0.5)
        x, y = torch.zeros(LONG), torch.zeros(SMALL)
        dist.recv(x, 0)
        time.sleep(0.3)
        dist.recv(y, 0)  # it has come, and rank 0 is gone
        return x.unique().tolist(), y.unique().tolist()

    assert ranks(2, run)[1] == ([1.0], [1.0])


def test_nothing_is_left_behind(ranks):
    def run(rank, size):
        other = 1 - rank
        for i in range(200):
            into = torch.zeros(LONG // 10 if i % 10 == 0 else SMALL)
            work = dist.irecv(into, other if i % 3 else None, tag=i % 7)
            dist.send(torch.ones_like(into), other, tag=i % 7)
            work.wait()
        dist.barrier()
        memory = group()._memory
        boxes = [memory.published, memory.published.unread, memory.operations, memory.mailbox, memory._tallies]
        boxes += [box for peer in memory.peers.values() for box in (peer.reads, peer.inbox, peer.gave_up)]

        def left():
            return [len(box) for box in boxes], [peer.standing for peer in memory.peers.values()]

        eventually(lambda: left() == ([0] * 8, [0]))
        return left()

    assert ranks(2, run) == [([0] * 8, [0])] * 2


def test_telemetry_of_messages(ranks):
    def run(rank, size):
        if rank == 0:
            dist.send(torch.ones(LONG), 1, tag=6)
        else:
            dist.recv(torch.zeros(LONG), tag=6)
        dist.barrier()
        return group().telemetry.take()[0]

    sent, received = ranks(2, run)
    for record, what, peer in ((sent, "send", 1), (received, "recv", 0)):
        assert (record["collective"], record["peer"], record["tag"], record["number"]) == (what, peer, 6, 0)
        assert (record["dtype"], record["nbytes"]) == ("float32", 4 * LONG)
    assert received["payload_received"] == 4 * LONG
    assert 4 * LONG < received["socket_received"] < 4.05 * LONG
    assert sent["payload_sent"] == 4 * LONG
    assert 4 * LONG < sent["socket_sent"] < 4.05 * LONG
