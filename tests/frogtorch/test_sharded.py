"""Models, tensors, optimisers and checkpoints that are spread over the ranks."""

import copy
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from helpers import batch, loss, model
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.slow

STEPS = 3


def train(model, loss, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
    return model


def alone(rank):
    return lambda model, step: loss(model, rank, step)


def together(size):
    return lambda model, step: sum(loss(model, rank, step) for rank in range(size)) / size


def state(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def close(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_fully_sharded_in_both_generations(ranks, size):
    def run(rank, size):
        results = []
        for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
            for keep in (False, True):
                one = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), sharding_strategy=strategy,
                                               use_orig_params=keep)
                train(one, alone(rank))
                with FullyShardedDataParallel.summon_full_params(one):
                    results.append(state(one.module))
        mesh = init_device_mesh("cpu", (size,))
        for again in (False, True):
            two = model()
            for layer in (two[0], two[2], two):
                fully_shard(layer, mesh=mesh, reshard_after_forward=again)
            train(two, alone(rank))
            results.append({name: value.full_tensor() for name, value in two.state_dict().items()})
        return results

    expected = state(train(model(), together(size)))
    for results in ranks(size, run):
        assert len(results) == 6
        for result in results:
            close(result, expected)


def test_fully_sharded_in_mixed_precision(ranks):
    def run(rank, size):
        two = model().float()
        fully_shard(two, mesh=init_device_mesh("cpu", (size,)),
                    mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        for step in range(STEPS):
            x, y = batch(rank, step)
            mse_loss(two(x.bfloat16()), y.bfloat16()).backward()
            with torch.no_grad():
                for p in two.parameters():
                    p.sub_(0.1 * p.grad)
                    p.grad = None
        return {name: value.full_tensor() for name, value in two.state_dict().items()}

    expected = state(train(model(), together(2)))
    first, second = ranks(2, run)
    for name in expected:
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name].double(), expected[name], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("size", [2, 3])
def test_a_tensor_goes_from_layout_to_layout(ranks, size):
    whole = torch.arange(70, dtype=torch.float64).view(7, 10)

    def run(rank, size):
        mesh = init_device_mesh("cpu", (size,))
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(rows.to_local(), whole.chunk(size)[rank])
        columns = rows.redistribute(mesh, [Shard(1)])
        assert torch.equal(columns.to_local(), whole.chunk(size, dim=1)[rank])
        for spread in (rows, columns):
            assert torch.equal(spread.full_tensor(), whole)
            assert torch.equal(spread.redistribute(mesh, [Replicate()]).to_local(), whole)
        part = DTensor.from_local(whole * (rank + 1), mesh, [Partial()])
        total = whole * (size * (size + 1) // 2)
        assert torch.equal(part.full_tensor(), total)
        assert torch.equal(part.redistribute(mesh, [Shard(0)]).to_local(), total.chunk(size)[rank])
        mean = DTensor.from_local(whole * (rank + 1), mesh, [Partial("avg")]).full_tensor()
        close(mean, total / size)
        turned = distribute_tensor(whole.T.contiguous(), mesh, [Replicate()])
        assert torch.equal((rows @ turned).full_tensor(), whole @ whole.T)
        assert rows.sum().full_tensor().item() == whole.sum().item()
        assert torch.equal(DTensor.from_local(whole.chunk(size)[rank], mesh, [Shard(0)], shape=whole.shape,
                                              stride=whole.stride()).full_tensor(), whole)

    ranks(size, run)


def test_two_dimensional_parallelism(ranks):
    # Two by two: layers are split over one dimension of the mesh and sharded over the other.
    def build():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()

    def run(rank, size):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        one = build()
        parallelize_module(one, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(one, mesh=mesh["data"])
        train(one, alone(mesh["data"].get_local_rank()))
        return {name: value.full_tensor() for name, value in one.state_dict().items()}

    expected = state(train(build(), together(2)))
    for result in ranks(4, run):
        close(result, expected)


@pytest.mark.parametrize("overlap", [False, True])
def test_optimizer_whose_state_is_spread(ranks, overlap):
    def run(rank, size):
        one = DistributedDataParallel(model())
        optimizer = ZeroRedundancyOptimizer(one.parameters(), optimizer_class=torch.optim.Adam, lr=0.01,
                                            parameters_as_bucket_view=overlap)
        train(one, alone(rank), optimizer)
        optimizer.consolidate_state_dict(to=1)
        momenta = optimizer.state_dict()["state"] if rank == 1 else None
        return state(one.module), momenta

    expected = model()
    reference = torch.optim.Adam(expected.parameters(), lr=0.01)
    train(expected, together(3), reference)
    results = ranks(3, run)
    for result, _ in results:
        close(result, state(expected))
    momenta = results[1][1]
    for index, values in reference.state_dict()["state"].items():
        close(momenta[index]["exp_avg"], values["exp_avg"])


def test_checkpoints_are_saved_and_loaded_by_another_world(ranks, tmp_path):
    def sharded(size):
        one = model()
        fully_shard(one, mesh=init_device_mesh("cpu", (size,)))
        return one

    def save(rank, size):
        one = train(sharded(size), alone(rank))
        checkpoint.save({"model": get_model_state_dict(one), "step": torch.tensor(STEPS)}, checkpoint_id=tmp_path)
        return {name: value.full_tensor() for name, value in one.state_dict().items()}

    def load(rank, size):
        one = sharded(size)
        found = {"model": get_model_state_dict(one), "step": torch.tensor(0)}
        checkpoint.load(found, checkpoint_id=tmp_path)
        set_model_state_dict(one, found["model"])
        return {name: value.full_tensor() for name, value in one.state_dict().items()}, found["step"].item()

    expected = state(train(model(), together(2)))
    for result in ranks(2, save):
        close(result, expected)
    for result, step in ranks(3, load):
        close(result, expected)
        assert step == STEPS


def test_models_are_averaged_now_and_then(ranks):
    def run(rank, size):
        one = model()
        averager = PeriodicModelAverager(period=2, warmup_steps=0)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(one, rank, step).backward()
            optimizer.step()
            averager.average_parameters(one.parameters())
        return state(one)

    models = [model() for _ in range(2)]
    for step in range(STEPS):
        for rank, one in enumerate(models):
            train_step = torch.optim.SGD(one.parameters(), lr=0.1)
            train_step.zero_grad()
            loss(one, rank, step).backward()
            train_step.step()
        if step % 2 == 0:
            mean = [sum(p.detach() for p in both) / 2 for both in zip(*(m.parameters() for m in models), strict=True)]
            for one in models:
                for p, value in zip(one.parameters(), mean, strict=True):
                    p.data.copy_(value)
    for rank, result in enumerate(ranks(2, run)):
        close(result, state(models[rank]))


def test_models_are_averaged_by_levels(ranks):
    def run(rank, size):
        one = nn.Linear(1, 1, bias=False)
        one.weight.grad = torch.zeros(1, 1)  # what has no gradient is not averaged
        averager = HierarchicalModelAverager(period_group_size_dict=OrderedDict([(1, 2), (2, 4)]))
        seen = []
        for _ in range(2):
            one.weight.data.fill_(rank)
            averager.average_parameters(one.parameters())
            seen.append(one.weight.item())
        return seen

    # The first step is due for both periods, of which the longer wins: all four; the second for pairs alone.
    assert ranks(4, run) == [[1.5, 0.5], [1.5, 0.5], [1.5, 2.5], [1.5, 2.5]]


def test_a_model_is_broadcast_with_its_copy(ranks):
    def run(rank, size):
        one = model()
        for p in one.parameters():
            p.data.add_(rank)
        other = copy.deepcopy(one)
        dist._broadcast_coalesced(dist.group.WORLD, [p.detach() for p in other.parameters()], 64, 1)
        return state(other)

    expected = model()
    for p in expected.parameters():
        p.data.add_(1)
    for result in ranks(3, run):
        assert all(torch.equal(result[name], value) for name, value in state(expected).items())
