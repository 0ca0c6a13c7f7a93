"""What collectives leave in tensors of every layout and dtype; values are worked out from rank and world size."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from frogtorch import engine
from frogtorch.memory.faults import Mismatch, PeerGaveUp, RoundTimeout

NEIGHBOUR = 77


class Tensors:
    """Makes tensors of one layout, and knows what of the memory around them nobody may touch."""

    def __init__(self, n, shape, view, dtype=torch.float32):
        self.n, self.shape, self.view, self.dtype = n, shape, view, dtype
        self.around = []

    def __call__(self, values):
        big = torch.full(self.shape(len(values)), NEIGHBOUR).to(self.dtype)
        neighbours = torch.ones(big.shape, dtype=torch.bool)
        self.view(neighbours).fill_(False)
        self.around.append((big, neighbours))
        tensor = self.view(big)
        tensor.copy_(torch.tensor(values).to(self.dtype).view(tensor.shape))
        return tensor

    def blank(self, count):
        return self([0] * count)

    def untouched(self):
        return all(bool((big[neighbours] == NEIGHBOUR).all()) for big, neighbours in self.around)


LAYOUTS = {
    "in one run": (4, lambda n: (n,), lambda big: big),
    "between neighbours": (4, lambda n: (n + 2,), lambda big: big[1:-1]),
    "every second": (4, lambda n: (2 * n,), lambda big: big[::2]),
    "turned": (4, lambda n: (2, n // 2), lambda big: big.t()),
    "two columns of four": (4, lambda n: (n // 2, 4), lambda big: big[:, 1:3]),
    "a single number": (1, lambda n: (n,) if n > 1 else (), lambda big: big),
    "nothing": (0, lambda n: (n,), lambda big: big),
}


def mine(rank, n, times=1):
    """A rank's input: its rank and one more, and so on."""
    return [rank + 1 + i for i in range(n * times)]


def total(size, n, times=1):
    """The sum over ranks of what is :func:`mine`."""
    return [size * (size + 1) // 2 + size * i for i in range(n * times)]


# Each makes tensors with `t`, runs its collective, and returns pairs of a tensor and what has to be in it: inputs too,
# which stay as they were.


def all_reduce(t, rank, size):
    x = t(mine(rank, t.n))
    dist.all_reduce(x)
    return [(x, total(size, t.n))]


def all_reduce_coalesced(t, rank, size):
    x, y = t(mine(rank, t.n)), t(mine(rank, t.n, 2))
    dist.all_reduce_coalesced([x, y])
    return [(x, total(size, t.n)), (y, total(size, t.n, 2))]


def reduce(t, rank, size):
    x = t(mine(rank, t.n))
    dist.reduce(x, 1)
    return [(x, total(size, t.n) if rank == 1 else mine(rank, t.n))]


def reduce_scatter(t, rank, size):
    parts = [t(mine(rank + k, t.n)) for k in range(size)]
    out = t.blank(t.n)
    dist.reduce_scatter(out, parts)
    return [(out, [s + rank * size for s in total(size, t.n)])] + [
        (part, mine(rank + k, t.n)) for k, part in enumerate(parts)]


def reduce_scatter_tensor(t, rank, size):
    x, out = t(mine(rank, t.n, size)), t.blank(t.n)
    dist.reduce_scatter_tensor(out, x)
    return [(out, total(size, t.n, size)[rank * t.n:(rank + 1) * t.n]), (x, mine(rank, t.n, size))]


def broadcast(t, rank, size):
    x = t(mine(rank, t.n))
    dist.broadcast(x, 1)
    return [(x, mine(1, t.n))]


def all_gather(t, rank, size):
    x, into = t(mine(rank, t.n)), [t.blank(t.n) for _ in range(size)]
    dist.all_gather(into, x)
    return [(part, mine(r, t.n)) for r, part in enumerate(into)] + [(x, mine(rank, t.n))]


def all_gather_into_tensor(t, rank, size):
    x, into = t(mine(rank, t.n)), t.blank(t.n * size)
    dist.all_gather_into_tensor(into, x)
    return [(into, [v for r in range(size) for v in mine(r, t.n)]), (x, mine(rank, t.n))]


def all_gather_coalesced(t, rank, size):
    x, y = t(mine(rank, t.n)), t(mine(10 + rank, t.n, 2))
    into = [[t.blank(t.n), t.blank(2 * t.n)] for _ in range(size)]
    dist.all_gather_coalesced(into, [x, y])
    return [pair for r, (one, other) in enumerate(into)
            for pair in ((one, mine(r, t.n)), (other, mine(10 + r, t.n, 2)))]


def gather(t, rank, size):
    x, into = t(mine(rank, t.n)), [t.blank(t.n) for _ in range(size)] if rank == 1 else None
    dist.gather(x, into, 1)
    return [(part, mine(r, t.n)) for r, part in enumerate(into or [])] + [(x, mine(rank, t.n))]


def scatter(t, rank, size):
    parts = [t(mine(10 * k, t.n)) for k in range(size)] if rank == 1 else None
    out = t.blank(t.n)
    dist.scatter(out, parts, 1)
    return [(out, mine(10 * rank, t.n))] + [(part, mine(10 * k, t.n)) for k, part in enumerate(parts or [])]


def all_to_all(t, rank, size):
    parts, into = [t(mine(10 * rank + k, t.n)) for k in range(size)], [t.blank(t.n) for _ in range(size)]
    dist.all_to_all(into, parts)
    return [(part, mine(10 * r + rank, t.n)) for r, part in enumerate(into)] + [
        (part, mine(10 * rank + k, t.n)) for k, part in enumerate(parts)]


def all_to_all_single(t, rank, size):
    x, into = t([v for k in range(size) for v in mine(10 * rank + k, t.n)]), t.blank(t.n * size)
    dist.all_to_all_single(into, x)
    return [(into, [v for r in range(size) for v in mine(10 * r + rank, t.n)])]


def message(t, rank, size):
    x, into = t(mine(rank, t.n)), t.blank(t.n)
    work = dist.isend(x, (rank + 1) % size)
    dist.recv(into, (rank - 1) % size)
    work.wait()
    return [(into, mine((rank - 1) % size, t.n)), (x, mine(rank, t.n))]


REDUCTIONS = (all_reduce, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_tensor)
MOVEMENTS = (broadcast, all_gather, all_gather_into_tensor, all_gather_coalesced, gather, scatter, all_to_all,
             all_to_all_single, message)


def wrong(collectives, make, rank, size, results=lambda tensor: tensor.flatten().tolist()):
    """The names of collectives that leave other values than they should, or touch what lies beside a tensor."""
    found = []
    for collective in collectives:
        t = make()
        pairs = [(results(tensor), right) for tensor, right in collective(t, rank, size)]
        if any(got != right for got, right in pairs) or not t.untouched():
            found.append((collective.__name__, pairs, t.untouched()))
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_collective_on_every_layout(ranks, layout, size):
    def run(rank, size):
        alone = () if size > 1 else (reduce, broadcast, gather, scatter, message)  # their root, or peer, is rank 1
        return wrong([one for one in REDUCTIONS + MOVEMENTS if one not in alone],
                     lambda: Tensors(*LAYOUTS[layout]), rank, size)

    assert ranks(size, run) == [[]] * size


class Standing(Tensors):
    """Makes tensors that have a standing with torch beside their layout."""

    def __init__(self, become):
        super().__init__(*LAYOUTS["in one run"])
        self.become = become

    def __call__(self, values):
        return self.become(super().__call__(values))


STANDINGS = {
    "leaves that require a gradient": lambda tensor: tensor.clone().requires_grad_(),
    "parameters": lambda tensor: torch.nn.Parameter(tensor),
    "inference tensors": lambda tensor: tensor,
    "shared memory": lambda tensor: tensor.share_memory_(),
}


@pytest.mark.parametrize("standing", STANDINGS)
def test_every_collective_on_tensors_of_every_standing(ranks, standing):
    def run(rank, size):
        with torch.inference_mode(standing == "inference tensors"):
            return wrong(REDUCTIONS + MOVEMENTS, lambda: Standing(STANDINGS[standing]), rank, size)

    assert ranks(2, run) == [[]] * 2


DTYPES = [dtype for name in (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu") for dtype in [getattr(torch, name)]]


def test_every_dtype_is_moved_bit_by_bit(ranks):
    def run(rank, size):
        found = {}
        for dtype in DTYPES:
            def make(dtype=dtype):
                return Tensors(*LAYOUTS["in one run"], dtype)

            def bits(tensor):
                return tensor.contiguous().view(torch.uint8).tolist()

            def moved(collective, dtype=dtype):
                def run(t, rank, size):
                    return [(tensor, bits(torch.tensor(right).to(dtype))) for tensor, right in
                            collective(t, rank, size)]
                run.__name__ = collective.__name__
                return run

            bad = wrong([moved(one) for one in MOVEMENTS], make, rank, size, bits)
            if bad:
                found[dtype] = bad
        return found

    assert ranks(2, run) == [{}] * 2


def test_half_precision_is_summed_in_single_by_every_reduction(ranks):
    # 2048 + 1 rounds to 2048 in float16, and 256 + 1 to 256 in bfloat16: twice over. Both have the sums in single.
    def run(rank, size):
        found = []
        for dtype, first, right in ((torch.float16, 2048, 2050), (torch.bfloat16, 256, 258)):
            def make(count, dtype=dtype, first=first):
                return torch.full((count,), first if rank == 0 else 1, dtype=dtype)

            x, y, out, part = make(5), make(5), make(2), make(2)
            dist.all_reduce(x)
            dist.reduce(y, 2)
            dist.reduce_scatter(out, [make(2) for _ in range(size)])
            dist.reduce_scatter_tensor(part, make(2 * size))
            found += [(tensor.unique().tolist(), right) for tensor in (x, out, part, *([y] if rank == 2 else []))]
        return [pair for pair in found if pair[0] != [pair[1]]]

    assert ranks(3, run) == [[]] * 3


def test_complex_numbers(ranks):
    def run(rank, size):
        group = dist.group.WORLD
        found = []
        for dtype in (torch.complex64, torch.complex128):
            z = torch.tensor([1 + 2j, 3 - 1j], dtype=dtype) * (rank + 1)
            for op, right in ((dist.ReduceOp.SUM, [6 + 12j, 18 - 6j]), (dist.ReduceOp.AVG, [2 + 4j, 6 - 2j])):
                x, y, out, part = z.clone(), z.clone(), torch.empty_like(z), torch.empty_like(z)
                dist.all_reduce(x, op)
                dist.reduce(y, 0, op)
                dist.reduce_scatter(out, [z] * size, op)
                dist.reduce_scatter_tensor(part, z.repeat(size), op)
                found += [(tensor.tolist(), right) for tensor in (x, out, part, *([y] if rank == 0 else []))]
            # A product of complex numbers is one, which their parts alone do not give; torch's own front refuses it.
            product = z.clone()
            group.allreduce([product], op=dist.ReduceOp.PRODUCT).wait()
            found.append((product.tolist(), [6 * (1 + 2j) ** 3, 6 * (3 - 1j) ** 3]))
            # Tensors that are conjugate, or negative, in name only: the bits in memory are others.
            conjugate = z.conj()
            group.allreduce([conjugate]).wait()
            found += [(conjugate.tolist(), [6 - 12j, 18 + 6j]), (z.tolist(), [6 + 12j, 18 - 6j])]
            z = torch.tensor([1 + 2j, 3 - 1j], dtype=dtype) * (rank + 1)
            negative = z.conj().imag
            assert negative.is_neg()
            gathered = torch.empty(2 * size, dtype=negative.dtype)
            dist.all_gather_into_tensor(gathered, negative)
            found.append((gathered.tolist(), [-2.0, 1.0, -4.0, 2.0, -6.0, 3.0]))
            dist.broadcast(negative, 2)
            found.append((z.tolist(), [rank + 1 + 6j, 3 * (rank + 1) - 3j]))
        return [pair for pair in found if pair[0] != pair[1]]

    assert ranks(3, run) == [[]] * 3


def test_premul_sum_multiplies_each_ranks_part(ranks):
    def run(rank, size):
        found = []
        for factor in (0.5 * (rank + 1), torch.tensor(0.5 * (rank + 1)), torch.tensor([0.5 * (rank + 1)])):
            op = dist._make_nccl_premul_sum(factor)
            x, y, out, part = torch.full((3,), 4.0), torch.full((3,), 4.0), torch.empty(1), torch.empty(1)
            dist.all_reduce(x, op)
            dist.reduce(y, 1, op)
            dist.reduce_scatter(out, [torch.tensor([4.0]), torch.tensor([6.0])], op)
            dist.reduce_scatter_tensor(part, torch.tensor([4.0, 6.0]), op)
            # 4 · 0.5 + 4 · 1
            found += [(x.tolist(), [6.0] * 3), (y.tolist(), [6.0 if rank == 1 else 4.0] * 3),
                      (out.tolist(), [[6.0], [9.0]][rank]), (part.tolist(), [[6.0], [9.0]][rank])]
        with pytest.raises(TypeError, match=r"int32.*premul_sum"):
            dist.all_reduce(torch.ones(2, dtype=torch.int32), dist._make_nccl_premul_sum(0.5))
        return [pair for pair in found if pair[0] != pair[1]]

    assert ranks(2, run) == [[]] * 2


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


def test_an_expanded_tensor_is_as_good_an_input_as_any(ranks):
    def run(rank, size):
        one = torch.tensor([rank + 1.0]).expand(2)
        into, part, x = torch.zeros(2 * size), torch.zeros(2), one if rank == 0 else torch.zeros(2)
        dist.all_gather_into_tensor(into, one)
        dist.reduce_scatter(part, [one] * size)
        dist.broadcast(x, 0)
        return into.tolist(), part.tolist(), x.tolist()

    assert ranks(2, run) == [([1.0, 1.0, 2.0, 2.0], [3.0, 3.0], [1.0, 1.0])] * 2


def test_inputs_that_share_memory_with_outputs(ranks):
    def run(rank, size):
        found = []
        # As FSDP has it: a rank's share is its place in the whole.
        whole = torch.zeros(2 * size)
        share = whole[2 * rank:2 * rank + 2].fill_(rank + 1)
        dist.all_gather_into_tensor(whole, share)
        found.append((whole.tolist(), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]))
        whole = torch.arange(2.0 * size)
        share = whole[2 * rank:2 * rank + 2]
        dist.reduce_scatter_tensor(share, whole)
        found.append((share.tolist(), [6.0 * rank, 6.0 * rank + 3]))
        # In the place of another's, and askew.
        for shift in (2, 1):
            whole = torch.zeros(2 * size + 2)
            share = whole[(2 * rank + shift) % (2 * size):][:2].fill_(rank + 1)
            dist.all_gather_into_tensor(whole[:2 * size], share)
            found.append((whole[:2 * size].tolist(), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]))
        whole = torch.arange(2.0 * size)
        askew = whole[1:3]
        dist.reduce_scatter_tensor(askew, whole)
        found.append((askew.tolist(), [6.0 * rank, 6.0 * rank + 3]))
        # All-to-all in place: rank r gets the r-th of everybody.
        x = torch.arange(float(size)) + 10 * rank
        dist.all_to_all_single(x, x)
        found.append((x.tolist(), [10.0 * r + rank for r in range(size)]))
        parts = [torch.tensor([10.0 * rank + k]) for k in range(size)]
        dist.all_to_all(parts[::-1], parts)
        found.append(([part.item() for part in parts[::-1]], [10.0 * r + rank for r in range(size)]))
        return [pair for pair in found if pair[0] != pair[1]]

    assert ranks(3, run) == [[]] * 3


# Sizes that differ ----------------------------------------------------------------------------------------------


def test_all_to_all_with_one_sender_and_empty_parts(ranks):
    def run(rank, size):
        # Rank 1 alone sends: nothing to rank 0, two rows to rank 1, three to rank 2.
        x = torch.arange(10.0).view(5, 2) if rank == 1 else torch.empty(0, 2)
        into = torch.zeros(rank + 1 if rank else 0, 2)
        dist.all_to_all_single(into, x, [0, len(into), 0], [0, 2, 3] if rank == 1 else [0, 0, 0])
        parts = [torch.full((rank * k,), 10.0 * rank + k) for k in range(size)]
        lists = [torch.zeros(r * rank) for r in range(size)]
        dist.all_to_all(lists, parts)
        return into.flatten().tolist(), [part.tolist() for part in lists]

    assert ranks(3, run) == [
        ([], [[], [], []]),
        ([0.0, 1.0, 2.0, 3.0], [[], [11.0], [21.0] * 2]),
        ([4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [[], [12.0] * 2, [22.0] * 4]),
    ]


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


# Sparse gradients, timeouts -------------------------------------------------------------------------------------


def test_an_embedding_with_sparse_gradients_of_which_one_is_empty(ranks):
    def run(rank, size):
        model = torch.nn.Embedding(6, 2, sparse=True)
        with torch.no_grad():
            model.weight.zero_()
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        # Rank 0 has no words in this batch; rank 1 has word 1 twice and 4 once, rank 2 has 4 once.
        words = [[], [1, 1, 4], [4]][rank]
        ddp(torch.tensor(words, dtype=torch.long)).sum().backward()
        gradient = model.weight.grad
        return gradient.is_sparse, gradient.to_dense()[:, 0].mul(3).tolist()

    assert ranks(3, run) == [(True, [0.0, 2.0, 0.0, 0.0, 2.0, 0.0])] * 3


def timed(rank, size):
    """Calls of every collective that cannot end without rank 1, with options that have a timeout of their own."""
    def options(kind, **fields):
        made = kind()
        made.timeout = timedelta(seconds=0.15)
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    group, x = dist.group.WORLD, torch.ones(2)
    both, four = [torch.ones(2), torch.ones(2)], torch.ones(4)
    from torch._C import _distributed_c10d as c10d

    return [
        lambda: group.allreduce([x], options(c10d.AllreduceOptions)),
        lambda: group.allreduce_coalesced([x], options(c10d.AllreduceCoalescedOptions)),
        lambda: group.reduce([x], options(c10d.ReduceOptions, rootRank=0)),
        lambda: group.reduce_scatter([x], [both], options(c10d.ReduceScatterOptions)),
        lambda: group.reduce_scatter_single(x, four, options(c10d.ReduceScatterOptions)),
        lambda: group.broadcast([x], options(c10d.BroadcastOptions, rootRank=1)),
        lambda: group.allgather([both], [x], options(c10d.AllgatherOptions)),
        lambda: group.all_gather_single(four, x, options(c10d.AllgatherOptions)),
        lambda: group.gather([both] if rank == 0 else [], [x], options(c10d.GatherOptions, rootRank=0)),
        lambda: group.scatter([x], [both] if rank == 1 else [], options(c10d.ScatterOptions, rootRank=1)),
        lambda: group.alltoall(both, both, options(c10d.AllToAllOptions)),
        lambda: group.all_to_all_single(four, four, [], [], options(c10d.AllToAllOptions)),
        lambda: group.barrier(options(c10d.BarrierOptions)),
    ]


def test_each_collective_takes_a_timeout_of_its_own(ranks):
    def run(rank, size):
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["all have run out"])
        found = []
        for number, call in enumerate(timed(rank, size)):
            try:
                call().wait()
            except RoundTimeout as error:
                if rank == 0 and ("timeout of 0.15 s" not in str(error) or "rank 1" not in str(error)):
                    found.append((number, str(error)))
            except PeerGaveUp as error:
                if rank == 0:
                    found.append((number, str(error)))
            else:
                if rank == 0:
                    found.append((number, "did not run out"))
        if rank == 0:
            store.set("all have run out", "1")
        x = torch.ones(2)
        dist.all_reduce(x)
        return found, x.tolist()

    assert ranks(2, run, timeout=30) == [([], [2.0, 2.0])] * 2


def test_the_timeouts_of_a_wait_and_of_what_begins_later(ranks):
    def run(rank, size):
        store = dist.distributed_c10d._get_default_store()
        x = torch.ones(2)
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            with pytest.raises(RoundTimeout, match=r"timeout of 0\.1 s"):
                work.wait(timedelta(seconds=0.1))
            assert not work.is_completed()
            store.set("the wait has run out", "1")
            work.wait()
            assert x.tolist() == [2.0, 2.0]
            dist.group.WORLD.set_timeout(timedelta(seconds=0.1))
            with pytest.raises(RoundTimeout, match=r"timeout of 0\.1 s"):
                dist.all_reduce(torch.ones(2))
            store.set("the second too", "1")
            return dist.group.WORLD.options._timeout.total_seconds()
        store.wait(["the wait has run out"])
        dist.all_reduce(x)
        store.wait(["the second too"])
        return x.tolist()

    assert ranks(2, run, timeout=30) == [0.1, [2.0, 2.0]]
