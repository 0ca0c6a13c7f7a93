"""What a collective cannot do with its tensors is refused, before anything was changed."""

import pytest
import torch
import torch.distributed as dist

REFUSED = [
    (torch.int32, "AVG", "avg"), (torch.uint8, "AVG", "avg"), (torch.bool, "AVG", "avg"),
    (torch.float32, "BXOR", "bxor"), (torch.float64, "BAND", "band"), (torch.float16, "BOR", "bor"),
    (torch.float8_e4m3fn, "SUM", "sum"), (torch.float8_e5m2, "MAX", "max"),
]


def test_what_cannot_be_reduced_is_refused_by_every_reduction(ranks):
    def run(rank, size):
        group = dist.group.WORLD
        found = []
        cases = [(dtype, getattr(dist.ReduceOp, op), word) for dtype, op, word in REFUSED]
        cases += [(torch.complex64, dist.ReduceOp.MIN, "min"), (torch.complex128, dist.ReduceOp.MAX, "max")]
        for dtype, op, word in cases:
            def make(count=2, dtype=dtype):
                return torch.ones(count).to(dtype)

            for name, call in {
                "all_reduce": lambda x, out: group.allreduce([x], op=op),  # noqa: B023 - called here
                "reduce": lambda x, out: group.reduce(x, 0, op),  # noqa: B023
                "reduce_scatter": lambda x, out: dist.reduce_scatter(out, [x] * size, op),  # noqa: B023
                "reduce_scatter of one": lambda x, out: dist.reduce_scatter_tensor(out, x.repeat(size), op),  # noqa: B023
            }.items():
                x, out = make(), make()
                with pytest.raises(TypeError) as caught:
                    call(x, out)
                text = str(caught.value)
                parts = (str(dtype).removeprefix("torch."), word, name.split()[0], f"rank {rank}")
                if not all(part in text for part in parts):
                    found.append((text, parts))
                if not torch.equal(x.view(torch.uint8), make().view(torch.uint8)):
                    found.append(("changed", name, dtype))
        x = torch.ones(2)
        dist.all_reduce(x)  # and no rank has gone ahead of the others
        return found, x.tolist()

    assert ranks(2, run) == [([], [2.0, 2.0])] * 2


def test_arguments_that_do_not_match_are_refused_before_anything_was_changed(ranks):
    def run(rank, size):
        group = dist.group.WORLD
        one, four, ints = torch.ones(2), torch.ones(4), torch.ones(2, dtype=torch.int32)
        out = [torch.zeros(2) for _ in range(size)]
        calls = {
            "two for one": lambda: group.allreduce([one, one]),
            "no tensors": lambda: group.allreduce_coalesced([]),
            "expanded": lambda: dist.all_reduce(torch.ones(1).expand(4)),
            "overlapping": lambda: dist.all_reduce(torch.ones(6).as_strided((3, 3), (1, 1))),
            "an expanded output": lambda: dist.all_gather([torch.ones(1).expand(2)] * size, one),
            "meta": lambda: dist.all_reduce(torch.ones(2, device="meta")),
            "sparse output": lambda: dist.broadcast(torch.ones(2).to_sparse(), 1 - rank),
            "compressed": lambda: dist.all_reduce(torch.eye(2).to_sparse_csr()),
            "root": lambda: group.broadcast(one, size),
            "negative root": lambda: group.reduce(one, -1),
            "too few outputs": lambda: dist.all_gather(out[1:], one),
            "too small an output": lambda: dist.all_gather([torch.zeros(1)] * size, one),
            "outputs of several dtypes": lambda: group.allgather([[one, ints]], [one]),
            "another dtype": lambda: dist.all_gather_into_tensor(torch.zeros(4, dtype=torch.int32), one),
            "no room": lambda: dist.all_gather_into_tensor(torch.zeros(5), one),
            "not shares": lambda: dist.reduce_scatter_tensor(one, torch.zeros(5)),
            "a part of another size": lambda: dist.reduce_scatter(one, [four, four]),
            "too few parts": lambda: dist.reduce_scatter(one, [one]),
            "outputs, and not the root": lambda: group.gather([out], [one], dist.GatherOptions()) if rank else fail(),
            "inputs, and not the root": lambda: group.scatter(one, [one, one], 0) if rank else fail(),
            "too few at the root": lambda: dist.gather(one, [one], 0) if not rank else fail(),
            "splits that do not add up": lambda: dist.all_to_all_single(four, torch.ones(4), [2, 2], [1, 2]),
            "negative splits": lambda: dist.all_to_all_single(four, torch.ones(4), [2, 2], [5, -1]),
            "splits for one rank": lambda: dist.all_to_all_single(four, torch.ones(4), [4], [4]),
            "rows that do not divide": lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)),
            "another size for itself": lambda: dist.all_to_all_single(four, torch.ones(4), [1, 3], [2, 2]),
            "pairs": lambda: group.all_gather_single_coalesced([four], [one, one]),
            "the second of two": lambda: group.reduce_scatter_single_coalesced([one, ints], [four, torch.ones(4)]),
        }

        def fail():
            raise ValueError(f"rank {rank} has nothing to refuse here")

        found = []
        for name, call in calls.items():
            try:
                call()
            except (TypeError, ValueError) as error:
                if f"rank {rank}" not in str(error):
                    found.append((name, str(error)))
            else:
                found.append((name, "was not refused"))
        changed = (one.tolist(), four.tolist(), [part.tolist() for part in out]) != (
            [1.0] * 2, [1.0] * 4, [[0.0] * 2] * size)
        x = torch.ones(2)
        dist.all_reduce(x)
        return found, changed, x.tolist()

    assert ranks(2, run) == [([], False, [2.0, 2.0])] * 2
