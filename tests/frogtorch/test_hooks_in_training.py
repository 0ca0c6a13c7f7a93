"""Comm hooks under DDP: training ends where the same in one process does."""

import time

import pytest
import torch
import torch.distributed as dist
from helpers import loss, model
from torch.nn.parallel import DistributedDataParallel

from frogtorch.hooks import EveryK, Faithful, FreshOnly, every_k, faithful, fresh_only


def train(net, loss_of, steps=6):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def under_ddp(state, hook, rank, view, after_step=lambda: None):
    """Parameters at the end of training with a hook, in buckets that DDP changes after the first step."""
    net = DistributedDataParallel(model(), bucket_cap_mb=1e-4, gradient_as_bucket_view=view)
    net.register_comm_hook(state, hook)

    def loss_of(net, step):
        if step:
            after_step()
        return loss(net, rank, step)

    return train(net, loss_of)


@pytest.mark.parametrize("view", [False, True])
def test_training_with_faithful_ends_where_training_on_all_data_does(ranks, view):
    expected = train(model(), lambda net, step: sum(loss(net, rank, step) for rank in range(3)) / 3)
    results = ranks(3, lambda rank, size: under_ddp(Faithful(), faithful, rank, view))
    torch.testing.assert_close(results[0], expected, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("view", [False, True])
def test_training_with_fresh_only_in_step_is_training_with_faithful(ranks, view):
    # In step: nobody begins a step before all have ended the last, and with bound 0 nobody is skipped.
    def run(rank, size):
        state = FreshOnly(bound=0)
        result = under_ddp(state, fresh_only, rank, view, dist.barrier)
        return result, [(one.step, one.bucket, one.ages) for one in state.taken], under_ddp(
            Faithful(), faithful, rank, view)

    for rank, (result, taken, same) in enumerate(ranks(3, run)):
        assert torch.equal(result, same)
        assert {step for step, _, _ in taken} == set(range(6))
        assert all(ages == dict.fromkeys(set(range(3)) - {rank}, 0) for _, _, ages in taken)


def test_training_with_every_k_ends_where_ranks_that_meet_in_every_kth_step_do(ranks):
    # The same in one process: a model a rank, whose gradients are averaged in steps 0, 2 and 4.
    nets = [model() for _ in range(2)]
    for step in range(6):
        for rank, net in enumerate(nets):
            net.zero_grad()
            loss(net, rank, step).backward()
        gradients = [[p.grad.clone() for p in net.parameters()] for net in nets]
        for own, net in zip(gradients, nets, strict=True):
            with torch.no_grad():
                for p, mine, *both in zip(net.parameters(), own, *gradients, strict=True):
                    p -= 0.1 * (mine if step % 2 else sum(both) / 2)
    results = ranks(2, lambda rank, size: under_ddp(EveryK(2), every_k, rank, True))
    for net, result in zip(nets, results, strict=True):
        torch.testing.assert_close(result, torch.cat([p.detach().reshape(-1) for p in net.parameters()]), rtol=1e-12,
                                   atol=1e-12)
    assert not torch.equal(*results)


def test_ranks_that_run_at_their_own_pace_come_to_their_ends(ranks):
    # Rank 0 is ten times as fast, and leaves when it is done; nobody waits, and nobody fails.
    def run(rank, size):
        state = FreshOnly()
        result = under_ddp(state, fresh_only, rank, True, lambda: time.sleep(0.02 * rank))
        assert [one.step for one in state.taken if one.bucket == 0] == list(range(6))
        return bool(result.isfinite().all())

    assert ranks(3, run) == [True] * 3
