"""Both directions of a path at once: an exchange takes no longer than a transfer one way."""

import multiprocessing
import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from emulator.hosts.netns import Network, down
from emulator.topology import load

RUN = f"l{os.getpid()}"
TOPOLOGY = """\
name: pair
sites: [s]
hosts:
  a: {site: s}
  b: {site: s}
paths:
  - {between: [s, s], delay: 10 ms, rate: 2 MB/s}
"""
COUNT = 250_000  # 1 MB: half a second at line rate
REPETITIONS = 5


@pytest.fixture
def network(tmp_path):
    file = tmp_path / "pair.yaml"
    file.write_text(TOPOLOGY)
    try:
        with Network(load(file), RUN) as up:
            yield up
    finally:
        down(RUN)


def serve(network, rank, store, pipe):
    """Be a rank: time transfers one way and all-gathers in turn; send the (start, end) of each."""
    host = "ab"[rank]
    network.enter(host)
    os.environ["FROGTORCH_ADDRESS"] = network.address(host)
    torch.set_num_threads(1)
    dist.init_process_group("frogtorch", store=dist.FileStore(store, 2), rank=rank, world_size=2,
                            timeout=timedelta(seconds=60))
    mine = torch.full((COUNT,), float(rank + 1))
    both = [torch.zeros(COUNT), torch.zeros(COUNT)]
    there = mine.clone()

    def timed(act):
        dist.barrier()
        start = time.monotonic()
        act()
        return start, time.monotonic()

    spans = {"one way": [], "both ways": []}
    for _ in range(1 + REPETITIONS):  # the first opens the windows
        spans["one way"].append(timed(lambda: dist.broadcast(there, 0)))
        spans["both ways"].append(timed(lambda: dist.all_gather(both, mine)))
    assert there[0] == there[-1] == 1
    assert [part[-1].item() for part in both] == [1, 2]
    pipe.send(spans)
    dist.destroy_process_group()


@pytest.mark.root
def test_an_all_gather_of_two_takes_as_long_as_a_transfer_one_way(network, tmp_path):
    context = multiprocessing.get_context("fork")
    pipes, ranks = [], []
    for rank in range(2):
        ours, theirs = context.Pipe(duplex=False)
        one = context.Process(target=serve, args=(network, rank, str(tmp_path / "store"), theirs), daemon=True)
        one.start()
        theirs.close()
        pipes.append(ours)
        ranks.append(one)
    try:
        assert all(pipe.poll(200) for pipe in pipes), "the ranks hang"
        seen = [pipe.recv() for pipe in pipes]
    finally:
        for one in ranks:
            one.join(60)
            one.kill()

    def least(what):
        """What a busy machine does comes on top."""
        spans = list(zip(*(rank[what] for rank in seen), strict=True))[1:]
        return min(max(end for _, end in pair) - min(start for start, _ in pair) for pair in spans)

    one_way, both_ways = least("one way"), least("both ways")
    assert one_way > 0.45  # the path is what limits it: 1 MB at 2 MB/s
    # Acknowledgements of the other direction take a few percent; one direction after the other, twice as long.
    assert both_ways / one_way < 1.2, (one_way, both_ways)
    print(f"one way {one_way:.3f} s, both ways {both_ways:.3f} s, ratio {both_ways / one_way:.3f}")
