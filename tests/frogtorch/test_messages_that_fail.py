"""Messages that do not fit what is received, whose peers die, or that are waited for in vain."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from helpers import LONG, SMALL, brief_timeout, eventually, failure, group

from frogtorch.memory.faults import Mismatch, PeerGaveUp, PeerLost, RoundTimeout


@pytest.mark.parametrize("count", [SMALL, LONG])
@pytest.mark.parametrize("early", [True, False])
def test_another_dtype_or_size(ranks, count, early):
    def run(rank, size):
        if rank == 0:
            time.sleep(0.3 if early else 0)
            dist.send(torch.ones(count, dtype=torch.int32), 1, tag=3)
            dist.send(torch.ones(count), 1, tag=4)
            dist.send(torch.full((count,), 5.0), 1, tag=3)
            dist.barrier()
            return eventually(lambda: not group()._memory.published.cells)
        time.sleep(0 if early else 0.3)
        texts = [failure(lambda: dist.recv(torch.zeros(count), 0, tag=3), Mismatch),
                 failure(lambda: dist.recv(torch.zeros(count + 1), 0, tag=4), Mismatch)]
        x = torch.zeros(count)
        dist.recv(x, 0, tag=3)  # the next of that tag
        dist.barrier()
        return texts, x.unique().tolist()

    left, ((dtype, size), after) = ranks(2, run)
    assert left  # nothing
    assert after == [5.0]
    assert f"message 0 with tag 3 to rank 1 is int32 of {4 * count} bytes as rank 0 at 127.0.0.1:" in dtype
    assert f"sent it, but rank 1 receives float32 of {4 * count} bytes" in dtype
    assert "recv (float32), tag 3, from rank 0 of " in dtype
    assert f"float32 of {4 * count} bytes as rank 0" in size
    assert f"rank 1 receives float32 of {4 * count + 4} bytes" in size


@pytest.mark.parametrize(("sent", "expected"), [(SMALL, LONG), (LONG, SMALL)])
def test_a_small_one_for_a_long_one(ranks, sent, expected):
    def run(rank, size):
        if rank == 0:
            dist.send(torch.ones(sent), 1)
            return None
        return failure(lambda: dist.recv(torch.zeros(expected), 0), Mismatch)

    text = ranks(2, run, timeout=10.0)[1]
    assert f"of {4 * sent} bytes" in text
    assert f"of {4 * expected} bytes" in text


def test_a_peer_that_dies(world):
    def run(rank, size):
        if rank == 2:
            time.sleep(0.5)
            os._exit(1)
        if rank == 1:
            time.sleep(1.5)
            dist.send(torch.tensor([1.0]), 0, tag=9)
            return None
        x = torch.zeros(1)
        anyone = group().recv_anysource([x], 9)
        text = failure(lambda: dist.recv(torch.zeros(1), 2, tag=3), PeerLost)
        behind = failure(lambda: dist.recv(torch.zeros(1), 2, tag=9), PeerLost)  # behind one of any source
        anyone.wait()  # rank 1 may send, and does
        return text, behind, x.item(), failure(lambda: dist.send(x, 2, tag=3), PeerLost)

    text, behind, value, sending = world(3, run).results(expected_dead=[2])[0]
    assert "recv (float32), tag 3, from rank 2 of " in text
    assert "rank 2 at 127.0.0.1:" in text
    assert " closed " in text
    assert "tag 9, from rank 2" in behind
    assert value == 1.0
    assert "send (float32), tag 3, to rank 2 of " in sending


def test_any_source_ends_when_nobody_is_left(world):
    def run(rank, size):
        if rank:
            dist.send(torch.tensor([float(rank)]), 0)
            time.sleep(0.3 * rank)
            os._exit(1)
        time.sleep(1)
        # What came before they died is there to be received, from either.
        x, y = torch.zeros(1), torch.zeros(1)
        sources = {dist.recv(x), dist.recv(y)}
        return sources, {x.item(), y.item()}, failure(lambda: dist.recv(torch.zeros(1)), PeerLost)

    sources, values, text = world(3, run, timeout=20).results(expected_dead=[1, 2])[0]
    assert sources == values == {1, 2}
    assert "tag 0, from any rank of " in text
    assert " closed " in text


def test_any_source_that_waits_when_the_last_one_dies(world):
    def run(rank, size):
        if rank:
            time.sleep(0.3 * rank)
            os._exit(1)
        return failure(lambda: dist.recv(torch.zeros(1)), PeerLost)

    assert "tag 0, from any rank of " in world(3, run, timeout=20).results(expected_dead=[1, 2])[0]


def test_a_small_receive_that_timed_out_leaves_its_message_to_the_next(ranks):
    def run(rank, size):
        if rank == 0:
            dist.barrier()
            dist.send(torch.tensor([7.0]), 1, tag=2)
            return None
        brief_timeout(0.3)
        x = torch.zeros(1)
        texts = [failure(lambda: dist.recv(x, 0, tag=2), RoundTimeout),
                 failure(lambda: dist.recv(x, tag=2), RoundTimeout)]
        brief_timeout(20)
        dist.barrier()
        dist.recv(x, 0, tag=2)
        return texts, x.item()

    (of_one, of_any), value = ranks(2, run)[1]
    assert "timeout of 0.3 s passed" in of_one
    assert "msg.2.0.1, rank 0) of rank 0 at 127.0.0.1" in of_one
    assert "waiting for a message with tag 2 from rank 0 at 127.0.0.1:" in of_any
    assert value == 7.0


@pytest.mark.parametrize("count", [SMALL, LONG])
def test_a_receive_that_timed_out_in_vain_fails_its_send_and_no_other(ranks, count):
    # Two receives of small ones: the first cannot give its number back, since the second has the next.
    def run(rank, size):
        if rank == 0:
            dist.barrier()
            texts = [failure(lambda i=i: dist.send(torch.full((count,), float(i)), 1), PeerGaveUp) for i in range(3)]
            dist.barrier()
            return texts, eventually(lambda: not len(group()._memory.published) + sum(
                len(peer.gave_up) for peer in group()._memory.peers.values()))
        brief_timeout(0.3)
        first = dist.irecv(torch.zeros(count), 0)
        brief_timeout(20)
        into, last = torch.zeros(count), torch.zeros(count)
        second = dist.irecv(into, 0)
        text = failure(first.wait, RoundTimeout)
        dist.barrier()
        second.wait()
        dist.recv(last, 0)
        dist.barrier()
        return text, into.unique().tolist(), last.unique().tolist()

    (texts, nothing_left), (text, into, last) = ranks(2, run)
    assert "timeout of 0.3 s" in text
    assert "rank 1 at 127.0.0.1" in texts[0]
    assert "gave up message 0 with tag 0 to rank 1" in texts[0]
    assert texts[1:] == [None, None]
    assert (into, last) == ([1.0], [2.0])
    assert nothing_left


def test_a_wait_with_a_timeout_of_its_own(ranks):
    def run(rank, size):
        if rank == 0:
            dist.barrier()
            dist.send(torch.ones(1), 1)
            return None
        x = torch.zeros(1)
        work = dist.irecv(x, 0)
        text = failure(lambda: work.wait(timedelta(seconds=0.2)), RoundTimeout)
        dist.barrier()
        work.wait()
        return text, x.item()

    text, value = ranks(2, run)[1]
    assert "timeout of 0.2 s" in text
    assert value == 1.0
