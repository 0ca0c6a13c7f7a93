"""Ranks that call for different things: they find out, and say who asked for what."""


import pytest
import torch
import torch.distributed as dist

from frogtorch import engine
from frogtorch.memory.faults import Mismatch, PeerGaveUp


def lists(counts):
    return [torch.zeros(count) for count in counts]


# What rank 0 and rank 1 call: they believe in different sizes of what goes from rank 0 to rank 1, `sent` and `taken`.
DISAGREEMENTS = {
    "all_to_all": (lambda sent, taken: dist.all_to_all(lists([1, 1]), lists([1, sent])),
                   lambda sent, taken: dist.all_to_all(lists([taken, 1]), lists([1, 1]))),
    "all_to_all_single": (
        lambda sent, taken: dist.all_to_all_single(torch.zeros(2), torch.zeros(1 + sent), [1, 1], [1, sent]),
        lambda sent, taken: dist.all_to_all_single(torch.zeros(1 + taken), torch.zeros(2), [taken, 1], [1, 1])),
    "all_gather": (lambda sent, taken: dist.all_gather(lists([sent, 1]), torch.zeros(sent)),
                   lambda sent, taken: dist.all_gather(lists([taken, 1]), torch.zeros(1))),
    "gather": (lambda sent, taken: dist.gather(torch.zeros(sent), None, 1),
               lambda sent, taken: dist.gather(torch.zeros(1), lists([taken, 1]), 1)),
    "scatter": (lambda sent, taken: dist.scatter(torch.zeros(1), lists([1, sent]), 0),
                lambda sent, taken: dist.scatter(torch.zeros(taken), None, 0)),
    "broadcast": (lambda sent, taken: dist.broadcast(torch.zeros(sent), 0),
                  lambda sent, taken: dist.broadcast(torch.zeros(taken), 0)),
    "reduce": (lambda sent, taken: dist.reduce(torch.zeros(sent), 1),
               lambda sent, taken: dist.reduce(torch.zeros(taken), 1)),
    "reduce_scatter": (lambda sent, taken: dist.reduce_scatter(torch.zeros(1), lists([1, sent])),
                       lambda sent, taken: dist.reduce_scatter(torch.zeros(taken), lists([1, taken]))),
    "reduce_scatter_tensor": (
        lambda sent, taken: dist.reduce_scatter_tensor(torch.zeros(sent), torch.zeros(2 * sent)),
        lambda sent, taken: dist.reduce_scatter_tensor(torch.zeros(taken), torch.zeros(2 * taken))),
    "all_gather_into_tensor": (
        lambda sent, taken: dist.all_gather_into_tensor(torch.zeros(2 * sent), torch.zeros(sent)),
        lambda sent, taken: dist.all_gather_into_tensor(torch.zeros(2 * taken), torch.zeros(taken))),
    "all_reduce": (lambda sent, taken: dist.all_reduce(torch.zeros(sent)),
                   lambda sent, taken: dist.all_reduce(torch.zeros(taken))),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_believe_in_different_sizes_find_out(ranks, name, monkeypatch):
    # One after the other in one group: few and many, and what one of them takes for nothing.
    sizes = [(5, 3), (3, 5), (50_000, 3), (3, 50_000), (50_000, 40_000), (5, 0), (0, 5), (50_000, 0), (0, 50_000)]

    def run(rank, size):
        errors = []
        for sent, taken in sizes:
            try:
                DISAGREEMENTS[name][rank](sent, taken)
            except (Mismatch, PeerGaveUp) as error:
                errors.append(str(error))
            else:
                errors.append(None)
        dist.barrier()  # so that none leaves before the other has asked
        return errors

    monkeypatch.setattr(engine, "DOUBT", 0.3)
    # Nor does anything that was never read keep a rank from leaving, until the timeout: this one is beyond the world's.
    for (sent, taken), first, second in zip(sizes, *ranks(2, run, timeout=1000), strict=True):
        texts = [text for text in (first, second) if text is not None]
        assert texts, (sent, taken)
        for text in texts:
            assert "rank 0" in text
            assert "rank 1" in text


def test_ranks_with_other_dtypes_ops_or_shapes_find_out(ranks):
    calls = [
        (lambda: dist.all_gather_into_tensor(torch.zeros(4), torch.zeros(2)),
         lambda: dist.all_gather_into_tensor(torch.zeros(4).int(), torch.zeros(2).int()), ("float32", "int32")),
        (lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(4)),
         lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(4), dist.ReduceOp.MAX), ("sum", "max")),
        (lambda: dist.all_to_all_single(torch.zeros(2), torch.zeros(2)),
         lambda: dist.all_to_all_single(torch.zeros(2).long(), torch.zeros(2).long()), ("float32", "int64")),
        (lambda: dist.all_reduce(torch.zeros(4)), lambda: dist.all_reduce(torch.zeros(5)),
         ("/4 elements/", "/5 elements/")),
    ]

    def run(rank, size):
        errors = []
        for *both, words in calls:
            try:
                both[rank]()
            except (Mismatch, PeerGaveUp) as error:
                errors.append(all(word in str(error) for word in ("rank 0", "rank 1", *words)) or str(error))
            else:
                errors.append(None)
        return errors

    for first, second in zip(*ranks(2, run), strict=True):
        assert True in (first, second)
        assert {first, second} <= {True, None}
