"""DistributedDataParallel in all its modes: parameters end where training in one process takes them."""

import threading
import time
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

RATE = 0.1
STEPS = 4


class Branches(nn.Module):
    """Every rank but the last takes the left branch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(6, 8).double()
        self.left = nn.Linear(8, 3).double()
        self.right = nn.Linear(8, 3).double()

    def forward(self, x, rank=None, size=None):
        return (self.right if rank == size - 1 else self.left)(torch.tanh(self.first(x)))


def plain():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch(rank, step, size=6, samples=4):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return (torch.randn(samples, size, generator=generator, dtype=torch.float64),
            torch.randn(samples, 3, generator=generator, dtype=torch.float64))


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def train(model, loss_of, steps=STEPS):
    """Gradient descent; ``loss_of(model, step)`` is the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return flat(model)


def together(size, loss=lambda model, rank, step: mse_loss(model(batch(rank, step)[0]), batch(rank, step)[1])):
    """The mean of what the ranks lose: its gradient is the mean of theirs."""
    return lambda model, step: sum(loss(model, rank, step) for rank in range(size)) / size


def alone(rank):
    return lambda model, step: mse_loss(model(batch(rank, step)[0]), batch(rank, step)[1])


def close(result, expected, tolerance=1e-12):
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [2, 3])
def test_ways_to_wrap(ranks, size):
    ways = [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True},
            {"bucket_cap_mb": 1e-4}, {"broadcast_buffers": False, "init_sync": False}]

    def run(rank, size):
        return [train(DistributedDataParallel(plain(), **way), alone(rank)) for way in ways]

    expected = train(plain(), together(size))
    for results in ranks(size, run):
        for result in results:
            close(result, expected)


@pytest.mark.parametrize("view", [False, True])
def test_parameters_that_a_rank_does_not_use(ranks, view):
    def loss(model, rank, step):
        x, y = batch(rank, step)
        return mse_loss(model(x, rank, 3), y)

    def run(rank, size):
        model = DistributedDataParallel(Branches(), find_unused_parameters=True, gradient_as_bucket_view=view)
        return train(model, lambda model, step: loss(model, rank, step))

    expected = train(Branches(), together(3, loss))
    for result in ranks(3, run):
        close(result, expected)


def test_gradients_that_add_up_before_they_are_exchanged(ranks):
    def run(rank, size):
        model = DistributedDataParallel(plain())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for step in range(6):
            with model.no_sync() if step % 2 == 0 else nullcontext():
                alone(rank)(model, step).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        return flat(model)

    both = together(2)
    expected = train(plain(), lambda model, step: both(model, 2 * step) + both(model, 2 * step + 1), 3)
    for result in ranks(2, run):
        close(result, expected)


def test_ranks_with_fewer_batches_join(ranks):
    def run(rank, size):
        model = DistributedDataParallel(plain())
        with model.join():
            train(model, alone(rank), steps=1 + rank)
        return flat(model)

    # A rank that has no more batches adds nothing, and the sum is divided by the whole world as before.
    expected = train(plain(), lambda model, step: sum(alone(rank)(model, step) for rank in range(step, 3)) / 3, 3)
    for result in ranks(3, run):
        close(result, expected)


def test_communication_hooks(ranks):
    def bf16(state, bucket):  # DDP refuses the hook itself on a CPU, by its name
        return default_hooks.bf16_compress_hook(state, bucket)

    hooks = [(default_hooks.allreduce_hook, 1e-12), (default_hooks.fp16_compress_hook, 2e-3), (bf16, 2e-2)]

    def run(rank, size):
        results = []
        for hook, _ in hooks:
            model = DistributedDataParallel(plain())
            model.register_comm_hook(None, hook)
            results.append(train(model, alone(rank)))
        return results

    expected = train(plain(), together(3))
    first, *others = ranks(3, run)
    for result, (_, tolerance) in zip(first, hooks, strict=True):
        close(result, expected, tolerance)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_power_sgd_waits_for_collectives_inside_callbacks(ranks):
    # One sample a rank: the mean gradient of a layer has rank 3, which an approximation of rank 3 holds exactly.
    def wide():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)).double()

    def loss(model, rank, step):
        x, y = batch(rank, step, size=40, samples=1)
        return mse_loss(model(x), y)

    def run(rank, size):
        model = DistributedDataParallel(wide())
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=3, start_powerSGD_iter=2,
                                            use_error_feedback=False)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        result = train(model, lambda model, step: loss(model, rank, step), steps=6)
        assert state.compression_stats()[0] > 1
        return result

    expected = train(wide(), together(3, loss), steps=6)
    for result in ranks(3, run):
        close(result, expected, 1e-9)


def test_sparse_gradients_also_of_a_rank_that_has_none(ranks):
    words = [[], [3, 3, 7], [7, 0]]

    def table():
        torch.manual_seed(4)
        return nn.EmbeddingBag(10, 5, sparse=True, mode="sum").double()

    def loss(model, rank, step):
        return (model(torch.tensor(words[rank], dtype=torch.long), torch.tensor([0])) ** 2).sum()

    def run(rank, size):
        model = DistributedDataParallel(table())
        result = train(model, lambda model, step: loss(model, rank, step))
        assert next(model.parameters()).grad.is_sparse
        return result

    expected = train(table(), together(3, loss))
    for result in ranks(3, run):
        close(result, expected)


def test_buffers_follow_rank_0(ranks):
    def run(rank, size):
        model = DistributedDataParallel(nn.BatchNorm1d(6).double())
        for step in range(3):
            model(batch(rank, step)[0]).sum().backward()
        model(batch(rank, 3)[0])  # begins with a broadcast of the buffers as they are on rank 0
        return model.module.running_mean

    norm = nn.BatchNorm1d(6).double()
    for step in range(3):
        norm(batch(0, step)[0])
    for rank, result in enumerate(ranks(2, run)):
        close(result, 0.9 * norm.running_mean + 0.1 * batch(rank, 3)[0].mean(0))


def test_models_of_different_shapes_are_refused(world):
    def run(rank, size):
        DistributedDataParallel(nn.Linear(3, 4 + rank))

    # Rank 0's shapes are the ones that count; it may be told, but need not be.
    assert "appears not to match" in str(world(2, run).results()[1])


def test_the_second_bucket_is_read_while_the_first_is_under_way(ranks):
    # Rank 2 comes to its backward only when rank 0 has got bytes of the second bucket, and the first cannot end without
    # rank 2: with one bucket at a time nobody would go on.
    def run(rank, size):
        group = dist.distributed_c10d._get_default_group()
        store = dist.distributed_c10d._get_default_store()
        model = DistributedDataParallel(nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600)), bucket_cap_mb=1)
        works = []

        def hook(state, bucket):
            works.append((dist.all_reduce(bucket.buffer(), async_op=True), group._memory.next_round - 1))
            return works[-1][0].get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, hook)
        model(torch.ones(2, 600)).sum().backward()  # after it, buckets are in the order of the backward pass
        works.clear()
        seen = []

        def watch():
            while not seen:
                if len(works) > 1:
                    (first, _), (_, second) = works[:2]
                    with group._engine.loop.lock:
                        if group._memory.tally(second).payload_received:
                            seen.append(first.is_completed())
                            store.set("second bucket came", "1")
                            return
                time.sleep(0.001)

        loss = model(torch.ones(2, 600)).sum()
        if rank == 0:
            thread = threading.Thread(target=watch)
            thread.start()
        if rank == 2:
            store.wait(["second bucket came"])
        loss.backward()
        if rank == 0:
            thread.join()
        return len(works), seen

    (buckets, seen), *_ = ranks(3, run)
    assert buckets >= 2
    assert seen == [False]


@pytest.mark.slow
def test_compiled(ranks):
    import torch._dynamo

    def run(rank, size):
        compiled = torch.compile(DistributedDataParallel(plain()), backend="aot_eager")
        return train(compiled, alone(rank))

    expected = train(plain(), together(2))
    for result in ranks(2, run):
        close(result, expected)
