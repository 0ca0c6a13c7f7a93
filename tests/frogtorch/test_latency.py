"""How many one-way delays a collective takes, through a relay that delays what passes."""

import asyncio
import os
import signal
import socket
import time

import pytest
import torch
import torch.distributed as dist
from patience import assert_becomes

import frogtorch
from frogtorch.memory import rendezvous
from frogtorch.memory.endpoint import Endpoint

DELAY = 0.15
TURNS = 3
"""The fastest counts: what a busy machine does comes on top, and no byte comes earlier."""


def between(delays):
    """So many delays, and of what else there is less than one."""
    return pytest.approx(delays + 0.35, abs=0.45)


def relay(listener, directory):
    """Pass every connection on to rank 0, each byte DELAY seconds later, both ways."""

    async def passed(reader, writer):
        loop = asyncio.get_running_loop()
        while data := await reader.read(1 << 20):
            loop.call_later(DELAY, writer.write, data)
        loop.call_later(DELAY, writer.close)

    async def connected(reader, writer):
        with open(directory, encoding="utf-8") as file:
            address, port = file.read().split()
        there = await asyncio.open_connection(address, int(port))
        await asyncio.gather(passed(reader, there[1]), passed(there[0], writer))

    async def serve():
        server = await asyncio.start_server(connected, sock=listener)
        await server.serve_forever()

    asyncio.run(serve())


@pytest.fixture
def far_apart(tmp_path, monkeypatch):
    """Rank 1 reaches rank 0 through the relay."""
    listener = socket.create_server(("127.0.0.1", 0))
    directory = tmp_path / "endpoint"
    find = rendezvous._Visit._directory

    def find_relay(visit):
        found = find(visit)
        if 0 in found:
            directory.write_text(f"{found[0][0].address} {found[0][0].port}")
            found[0] = [Endpoint("127.0.0.1", listener.getsockname()[1])]
        return found

    monkeypatch.setattr(rendezvous._Visit, "_directory", find_relay)
    pid = os.fork()
    if pid == 0:
        relay(listener, directory)
        os._exit(0)
    yield
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    listener.close()


@pytest.mark.parametrize(("algorithm", "count", "delays"), [
    ("shard", 1024, 2),  # contributions go unasked, and so do sums
    ("whole", 1024, 1),
    ("shard", 20_000, 3),  # requests, contributions, and sums for which the requests stand
    ("whole", 20_000, 2),
])
def test_all_reduce(ranks, far_apart, algorithm, count, delays):
    def run(rank, size):
        ends = []
        for _ in range(TURNS):
            # Both begin at one time, on the clock that they share.
            begin = torch.tensor([time.monotonic() + 3 * DELAY], dtype=torch.float64)
            dist.broadcast(begin, 0)
            time.sleep(max(0.0, begin.item() - time.monotonic()))
            dist.all_reduce(torch.ones(count))
            ends.append(time.monotonic() - begin.item())
        return ends

    def took():
        both = ranks(2, run, options=frogtorch.Options(all_reduce=algorithm))
        return min(max(ends) for ends in zip(*both, strict=True)) / DELAY

    assert_becomes(between(delays), took)


@pytest.mark.parametrize("source", [0, None])
@pytest.mark.parametrize(("count", "early", "delays"), [
    (1024, True, 1), (1024, False, 1),  # goes unasked
    (20_000, True, 1),  # the read stands when it is sent; one of any source waits for the offer, and asks
    (20_000, False, 2),  # request and answer, both from the start
])
def test_a_message(ranks, far_apart, source, count, early, delays):
    def run(rank, size):
        ends = []
        for _ in range(TURNS):
            begin = torch.tensor([time.monotonic() + 5 * DELAY], dtype=torch.float64)
            dist.broadcast(begin, 0)
            received = torch.zeros(count)
            if rank == 1 and early:  # two delays before
                time.sleep(max(0.0, begin.item() - 2 * DELAY - time.monotonic()))
                work = dist.irecv(received, source)
            time.sleep(max(0.0, begin.item() - time.monotonic()))
            if rank == 0:
                dist.send(torch.ones(count), 1)
                continue
            if not early:
                work = dist.irecv(received, source)
            work.wait()
            ends.append(time.monotonic() - begin.item())
            assert received.eq(1).all()
        return ends

    if source is None and count > 4096:
        delays = 3  # offer, request, answer
    assert_becomes(between(delays), lambda: min(ranks(2, run)[1]) / DELAY)
