"""The simulator's description of Gloo's ring, run on real tensors: its bits are those of the real Gloo."""

import pytest
import torch
import torch.distributed as dist

import frogtorch
from emulator.sim.gloo import ring
from frogtorch.collectives import ALL_REDUCE


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_the_ring_that_is_simulated_sums_in_gloos_order(ranks, monkeypatch, size):
    # The ring has its order by itself, and takes none.
    monkeypatch.setitem(ALL_REDUCE, "shard", lambda group, tensor, op, *order: ring(group, tensor, op))
    # From less than an element a segment to segments of 1 MiB; sums of normal variates show any other order.
    counts = (1, 3, 1000, 100_003, 1_050_625)

    def run(rank, size):
        ours = dist.new_group(backend="frogtorch", pg_options=frogtorch.Options(all_reduce="shard"))
        differing = []
        for count in counts:
            x = torch.randn(count, generator=torch.Generator().manual_seed(rank))
            y = x.clone()
            dist.all_reduce(x)
            dist.all_reduce(y, group=ours)
            if not torch.equal(x.view(torch.int32), y.view(torch.int32)):
                differing.append(count)
        return differing

    assert ranks(size, run, backend="gloo") == [[]] * size
