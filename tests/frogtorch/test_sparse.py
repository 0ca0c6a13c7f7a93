"""All-reduce of sparse tensors, beside the real Gloo and against values worked out by hand."""

import itertools

import pytest
import torch
import torch.distributed as dist


def entries(rank, count, shape, dims, dtype):
    """A COO tensor of `count` entries of rank `rank`, not coalesced: some of them at one place."""
    random = torch.Generator().manual_seed(100 * rank + count)
    indices = torch.stack([torch.randint(length, (count,), generator=random) for length in shape[:dims]])
    values = torch.randn(count, *shape[dims:], generator=random)
    if not dtype.is_floating_point:
        values = (values * 10).round()
    return torch.sparse_coo_tensor(indices, values.to(dtype), shape)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_it_has_gloos_entries_and_bits(ranks, size):
    # One and two dimensions of indices, with and without dense ones behind; entries at a few places and at many, more
    # than the 16 KiB that go unasked; on one rank, on all, as many as its number, and on none.
    shapes = [((7,), 1), ((40, 30), 2), ((50, 3), 1), ((20, 30, 2, 2), 2)]
    counts = [lambda rank: 0, lambda rank: 5 * (rank == 1), lambda rank: 3 * rank, lambda rank: 3000]
    dtypes = [torch.float32, torch.float64, torch.int64]

    def run(rank, size):
        ours = dist.new_group(backend="frogtorch")
        differing = []
        for (shape, dims), (i, count), dtype in itertools.product(shapes, enumerate(counts), dtypes):
            real = entries(rank, count(rank), shape, dims, dtype)
            x = entries(rank, count(rank), shape, dims, dtype)
            dist.all_reduce(real)
            dist.all_reduce(x, group=ours)
            same = (x.is_coalesced() == real.is_coalesced() and torch.equal(x._indices(), real._indices())
                    and torch.equal(x._values(), real._values()) and x.dtype == real.dtype and x.shape == real.shape)
            if not same:
                differing.append((shape, i, dtype))
        return differing

    assert ranks(size, run, backend="gloo") == [[]] * size


def test_values_worked_out_by_hand(ranks):
    def run(rank, size):
        # Rank 0: 1 at [0], 10 at [4]; rank 1 nothing; rank 2: 2 + 3 at [4], not coalesced.
        indices, values = [([0, 4], [1.0, 10.0]), ([], []), ([4, 4], [2.0, 3.0])][rank]
        x = torch.sparse_coo_tensor([indices], torch.tensor(values), (6,))
        before = x.clone()
        dist.all_reduce(x)
        once = x._indices().tolist(), x._values().tolist(), x.is_coalesced(), before._nnz()
        # It is an ordinary tensor, of its own memory, and can be summed again.
        x.mul_(2)
        x._values().add_(1)
        dist.all_reduce(x)
        return (*once, x.to_dense().tolist())

    found = ranks(3, run)
    assert [result[3] for result in found] == [2, 0, 2]
    assert [(*result[:3], result[4]) for result in found] == [
        ([[0, 4]], [1.0, 15.0], True, [9.0, 0.0, 0.0, 0.0, 93.0, 0.0])] * 3


def test_half_precision_is_summed_in_single_and_integers_stay_so(ranks):
    def run(rank, size):
        found = []
        for values, dtype in (([2048.0, 1.0, 1.0], torch.float16), ([256.0, 1.0, 1.0], torch.bfloat16),
                              ([100, 100, 100], torch.int8)):
            x = torch.sparse_coo_tensor([[1]], torch.tensor([values[rank]], dtype=dtype), (2,))
            dist.all_reduce(x)
            found.append((x.dtype == dtype, x._values().tolist()))
        return found

    # 2048 + 1 rounds to 2048 in float16; in single the sum is 2050. 300 in eight bits is 44.
    assert ranks(3, run) == [[(True, [2050.0]), (True, [258.0]), (True, [44])]] * 3


def test_inference_mode_leaves_and_a_group_of_one(ranks):
    def run(rank, size):
        with torch.inference_mode():
            inference = torch.sparse_coo_tensor([[rank]], torch.tensor([1.0]), (3,))
            dist.all_reduce(inference)
        leaf = torch.sparse_coo_tensor([[rank]], torch.tensor([2.0]), (3,)).requires_grad_()
        dist.all_reduce(leaf)
        alone = torch.sparse_coo_tensor([[2, 2]], torch.tensor([1.0, 2.0]), (3,))
        groups = [dist.new_group([r]) for r in range(size)]
        dist.all_reduce(alone, group=groups[rank])
        return (inference.to_dense().tolist(), leaf.detach().to_dense().tolist(), leaf.requires_grad,
                alone._values().tolist(), alone.is_coalesced())

    assert ranks(2, run) == [([1.0, 1.0, 0.0], [2.0, 2.0, 0.0], True, [3.0], True)] * 2


def test_an_embedding_of_which_one_rank_used_nothing(ranks):
    # What DistributedDataParallel does with Embedding(sparse=True): the mean over ranks of a sparse gradient.
    def run(rank, size):
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(10, 3, sparse=True))
        used = [torch.zeros(0, dtype=torch.int64), torch.tensor([2, 2, 7]), torch.tensor([7])][rank]
        model(used).sum().backward()
        gradient = model.module.weight.grad.coalesce()
        return gradient.indices().tolist(), (gradient.values() * size).round().tolist()

    assert ranks(3, run) == [([[2, 7]], [[2.0] * 3, [2.0] * 3])] * 3


def test_what_cannot_be_is_refused(ranks):
    def run(rank, size):
        texts = []
        coo = torch.sparse_coo_tensor([[0]], torch.tensor([1.0]), (2,))
        for attempt in (
            lambda: dist.all_reduce(coo.clone(), dist.ReduceOp.MAX),
            lambda: dist.all_reduce(torch.eye(2).to_sparse_csr()),
            lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], torch.tensor([True]), (2,))),
        ):
            with pytest.raises(TypeError) as caught:
                attempt()
            texts.append(str(caught.value))
        dist.all_reduce(coo)  # None of them took a round: the group goes on.
        return texts, coo.to_dense().tolist()

    for texts, after in ranks(2, run):
        largest, csr, truth = texts
        assert "sparse torch.float32 with max" in largest
        assert "torch.sparse_csr" in csr
        assert "sparse torch.bool with sum" in truth
        assert after == [2.0, 0.0]


def test_another_shape_on_another_rank_is_an_error_on_both(ranks):
    def run(rank, size):
        x = torch.sparse_coo_tensor([[0]], torch.tensor([1.0]), (2 + rank,))
        with pytest.raises(Exception, match=r"sparse 1 of 2\b.*sparse 1 of 3\b|sparse 1 of 3\b.*sparse 1 of 2\b"):
            dist.all_reduce(x)
        return x.to_dense().tolist()

    assert ranks(2, run) == [[1.0, 0.0], [1.0, 0.0, 0.0]]
