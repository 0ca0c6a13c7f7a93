"""Functional collectives: eager, compiled, differentiated."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable

WORLDS = pytest.mark.parametrize("size", [2, 3])


def mine(rank, rows=2):
    return torch.arange(rows * 3, dtype=torch.float64).view(rows, 3) + 100 * rank


def every(x):
    """Each functional collective once, on a tensor of 2·W rows; all but sums keep what they move."""
    size = dist.get_world_size()
    group = dist.group.WORLD
    total = functional.all_reduce(x, "sum", group)
    largest = functional.all_reduce(x * 2, "max", group)
    gathered = functional.all_gather_tensor(x, 0, group)
    wide = functional.all_gather_tensor(x, 1, group)
    own = functional.reduce_scatter_tensor(x, "sum", 0, group)
    moved = functional.all_to_all_single(x, [2] * size, [2] * size, group)
    first = functional.broadcast(x + 1, 0, group)
    pair = functional.all_reduce_coalesced([x, x + 1], "avg", group)
    pieces = functional.all_gather_into_tensor_coalesced([x, x[:1] + 1], group)
    shares = functional.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group)
    return [t + 0 for t in (total, largest, gathered, wide, own, moved, first, *pair, *pieces, *shares)]


def expected(rank, size):
    rows = 2 * size
    all_of = [mine(r, rows) for r in range(size)]
    total = sum(all_of)
    return [
        total, 2 * all_of[-1], torch.cat(all_of), torch.cat(all_of, 1), total[2 * rank:2 * rank + 2],
        torch.cat([x[2 * rank:2 * rank + 2] for x in all_of]), all_of[0] + 1, total / size, total / size + 1,
        torch.cat(all_of), torch.cat([x[:1] + 1 for x in all_of]), total[2 * rank:2 * rank + 2],
        total[2 * rank:2 * rank + 2] + size,
    ]


def compare(found, size):
    for rank, results in enumerate(found):
        for number, (result, right) in enumerate(zip(results, expected(rank, size), strict=True)):
            torch.testing.assert_close(result, right, rtol=1e-12, atol=0,
                                       msg=lambda text, rank=rank, number=number: f"rank {rank}, {number}: {text}")


@WORLDS
def test_eager(ranks, size):
    def run(rank, size):
        x = mine(rank, 2 * size)
        results = every(x)
        assert torch.equal(x, mine(rank, 2 * size))  # functions leave their input as it was
        return results

    compare(ranks(size, run), size)


@pytest.mark.slow
def test_compiled(ranks):
    import torch._dynamo

    def run(rank, size):
        return torch.compile(every, backend="aot_eager", fullgraph=True)(mine(rank, 2 * size))

    compare(ranks(2, run), 2)


@pytest.mark.slow
def test_compiled_to_machine_code(ranks):
    # Inductor gathers into a buffer of its own choice, by an op that C++ knows no way from to a Python group.
    import torch._inductor.compile_fx

    def some(x):
        group = dist.group.WORLD
        total = functional.all_reduce(x, "sum", group)
        gathered = functional.all_gather_tensor(x * 2, 0, group)
        return gathered + 1, functional.reduce_scatter_tensor(total, "sum", 0, group)

    def run(rank, size):
        return torch.compile(some, fullgraph=True)(mine(rank))

    total = mine(0) + mine(1)
    for rank, (gathered, part) in enumerate(ranks(2, run)):
        assert torch.equal(gathered, 2 * torch.cat([mine(0), mine(1)]) + 1)
        assert torch.equal(part, 2 * total[rank:rank + 1])


@pytest.mark.slow
def test_compiled_collectives_of_torch_distributed(ranks):
    # Dynamo rewrites these to functional ones.
    import torch._dynamo

    def both(x):
        y = x * 2
        dist.all_reduce(y)
        out = torch.empty(x.shape[0] * dist.get_world_size(), x.shape[1], dtype=x.dtype)
        dist.all_gather_into_tensor(out, x)
        part = torch.empty(2, 3, dtype=x.dtype)
        dist.reduce_scatter_tensor(part, x)
        return y, out, part

    def run(rank, size):
        return torch.compile(both, backend="aot_eager")(mine(rank, 4))

    total = mine(0, 4) + mine(1, 4)
    for rank, (y, out, part) in enumerate(ranks(2, run)):
        assert torch.equal(y, 2 * total)
        assert torch.equal(out, torch.cat([mine(0, 4), mine(1, 4)]))
        assert torch.equal(part, total[2 * rank:2 * rank + 2])


def test_a_result_is_waited_for_when_it_is_used(ranks):
    def run(rank, size):
        result = functional.all_reduce(torch.full((4,), rank + 1.0), "sum", dist.group.WORLD)
        assert isinstance(result, functional.AsyncCollectiveTensor)
        return (result * 10).tolist(), functional.all_reduce(mine(rank), "sum", [0, 1]).wait()

    for tens, whole in ranks(2, run):
        assert tens == [30.0] * 4
        assert torch.equal(whole, mine(0) + mine(1))


def test_an_error_is_raised_where_the_result_is_used(world):
    def run(rank, size):
        if rank == 0:
            try:
                result = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
                (result * 2).tolist()
            except RuntimeError as error:
                return str(error)
        return None

    (text, _) = world(2, run).results()
    assert "all_reduce" in text
    assert "rank 1" in text


def test_permutations(ranks):
    def run(rank, size):
        row = mine(rank).flatten()  # torch permutes vectors alone
        return functional.permute_tensor(row, [(r + 1) % size for r in range(size)], dist.group.WORLD) + 0

    found = ranks(3, run)
    for rank in range(3):
        assert torch.equal(found[rank], mine((rank - 1) % 3).flatten())


@WORLDS
def test_gradients_flow_back_through_collectives(ranks, size):
    # Each rank's loss is w·(what it got), w = 1 + rank: the gradient at a source is the sum of the weights it went to.
    weights = torch.arange(1.0, size + 1).double()

    def leaf(rank):
        return mine(rank, size).requires_grad_()

    def run(rank, size):
        group = dist.group.WORLD
        grads = {}

        def back(name, make):
            x = leaf(rank)
            (weights[rank] * make(x)).sum().backward()
            grads[name] = x.grad

        back("all_reduce", lambda x: differentiable.all_reduce(x))
        back("all_gather", lambda x: torch.cat(differentiable.all_gather(x)))
        back("broadcast", lambda x: differentiable.broadcast(x, 0))
        back("all_to_all", lambda x: differentiable.all_to_all_single(torch.empty_like(x), x))
        back("reduce_scatter", lambda x: differentiable.reduce_scatter(torch.empty_like(x[:1]), list(x.split(1))))
        back("reduce", lambda x: differentiable.reduce(x, 1))
        back("gather", lambda x: torch.cat(differentiable.gather(x, 1)))
        back("scatter", lambda x: differentiable.scatter(list(x.split(1)), 1))
        back("functional all_gather", lambda x: functional.all_gather_tensor_autograd(x, 0, group))
        back("functional reduce_scatter", lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group))
        back("functional all_to_all",
             lambda x: functional.all_to_all_single_autograd(x, [1] * size, [1] * size, group))
        return grads

    per_row = weights.view(size, 1).expand(size, 3)
    total = weights.sum().expand(size, 3)
    nothing = torch.zeros(size, 3).double()
    for rank, grads in enumerate(ranks(size, run)):
        right = {
            "all_reduce": total, "all_gather": total, "broadcast": total if rank == 0 else nothing,
            "all_to_all": per_row, "reduce_scatter": per_row,
            "reduce": weights[1].expand(size, 3), "gather": weights[1].expand(size, 3),
            "scatter": per_row if rank == 1 else nothing, "functional all_gather": total,
            "functional reduce_scatter": per_row, "functional all_to_all": per_row,
        }
        for name, grad in grads.items():
            torch.testing.assert_close(grad, right[name], rtol=1e-12, atol=0, msg=f"{name} on rank {rank}: {grad}")


def test_a_group_that_is_not_the_world(ranks):
    def run(rank, size):
        group = dist.new_group([2, 0])
        if rank == 1:
            return None
        return functional.all_gather_tensor(torch.tensor([rank]), 0, group).tolist()

    assert ranks(3, run) == [[0, 2], None, [0, 2]]
