"""How many one-way delays a collective takes, through a relay that delays what passes."""

import asyncio
import os
import signal
import socket
import statistics
import time

import pytest
import torch
import torch.distributed as dist

import frogtorch
from frogtorch.memory import rendezvous

DELAY = 0.15


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
    fetch = rendezvous._fetch

    def fetch_relay(store, key, *rest):
        found = fetch(store, key, *rest)
        if not key.endswith("endpoint/0"):
            return found
        directory.write_text(found)
        return f"127.0.0.1 {listener.getsockname()[1]}"

    monkeypatch.setattr(rendezvous, "_fetch", fetch_relay)
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
        for _ in range(3):
            # Both begin at one time, on the clock that they share.
            begin = torch.tensor([time.monotonic() + 3 * DELAY], dtype=torch.float64)
            dist.broadcast(begin, 0)
            time.sleep(max(0.0, begin.item() - time.monotonic()))
            dist.all_reduce(torch.ones(count))
            ends.append(time.monotonic() - begin.item())
        return ends

    both = ranks(2, run, options=frogtorch.Options(all_reduce=algorithm))
    took = statistics.median(max(ends) for ends in zip(*both, strict=True)) / DELAY
    assert delays - 0.1 < took < delays + 0.8
