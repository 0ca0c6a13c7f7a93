"""What collectives leave in tensors of every layout and dtype; values are worked out from rank and world size."""


import pytest
import torch
import torch.distributed as dist

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
