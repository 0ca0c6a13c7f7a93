"""The pure collectives, with ranks as generators over Python lists, in any order of events a network could have."""

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inmemory import LARGE, SMALL, Net, chooser, contribution, empty, play, read, regions

from frogtorch.collectives import (
    ALL_REDUCE,
    GLOO,
    RANK,
    all_gather,
    all_gather_entries,
    all_to_all,
    barrier,
    broadcast,
    gather,
    pipelined,
    reduce,
    reduce_scatter,
    scatter,
)
from frogtorch.effects import (
    Buffer,
    Group,
    Look,
    Publish,
    Read,
    Stage,
)


def in_rank_order(i, count, size):
    return range(size)


def in_gloos_order(i, count, size):
    """The ranks in whose order Gloo sums element i. A tensor of less than a MiB has 2W segments, two a chunk."""
    chunk = 2 * -(-count // (2 * size))
    return [(i // chunk - step) % size for step in range(1, size + 1)]


ORDERS = {"rank": (RANK, in_rank_order), "gloo": (GLOO, in_gloos_order)}


def summed(order, size, count):
    """What every element of a tensor adds up to: strings do not commute, so a sum shows its order."""
    return ["".join(f"{rank}.{i} " for rank in ORDERS[order][1](i, count, size)) for i in range(count)]


def owned(order, size, count):
    """How many elements each rank's slice has."""
    if order == "gloo":
        chunk = 2 * -(-count // (2 * size))
        return [min(chunk, max(0, count - k * chunk)) for k in range(size)]
    return [count // size + (k < count % size) for k in range(size)]


ALGORITHMS = {**ALL_REDUCE, "pipelined in chunks, two at a time": partial(pipelined, chunk_bytes=8, width=2)}


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 5), st.integers(0, 23))
def test_all_reduce(order, data, algorithm, size, count):
    def make(group):
        (tensor,) = regions(contribution(group.rank, count))
        return ALGORITHMS[algorithm](group, tensor, "sum", ORDERS[order][0]), [], [tensor]

    results, received = play(data, size, make)
    assert results == [[summed(order, size, count)]] * size
    for rank, own in enumerate(owned(order, size, count)):
        # Phase 1: my slice from W-1 peers. Phase 2: all slices but mine. Whole: all from W-1 peers.
        elements = (size - 1) * count if algorithm == "whole" else (size - 1) * own + count - own
        assert received[rank] == SMALL * elements


def test_gloos_slices_of_seven_elements_in_a_group_of_three():
    # 2W = 6 segments of ceil(7/6) = 2 elements; two segments a rank: 4, 3 and no elements.
    tensor = Buffer(9, 4)[1:8]
    assert [(part.lo, part.hi) for part in GLOO.slices(tensor, 3)] == [(1, 5), (5, 8), (8, 8)]
    assert [list(GLOO.fold(k, 3)) for k in range(3)] == [[2, 1, 0], [0, 2, 1], [1, 0, 2]]
    assert GLOO.pieces(tensor, 3) == [(0, 4, [2, 1, 0]), (4, 7, [0, 2, 1])]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("itemsize", [SMALL, LARGE])
@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(0, 17), st.integers(0, 4), st.booleans())
def test_reduce(order, itemsize, data, size, count, root, in_place):
    root %= size

    def make(group):
        (tensor,) = regions(contribution(group.rank, count), itemsize=itemsize)
        (into,) = [tensor] if in_place else empty(count, itemsize=itemsize)
        at_root = group.rank == root
        return (reduce(group, tensor, into if at_root else None, root, "sum", ORDERS[order][0]), [tensor],
                [into if at_root else tensor])

    results, received = play(data, size, make)
    for rank, own in enumerate(owned(order, size, count)):
        # The other ranks' tensors stay as they were.
        assert results[rank] == [summed(order, size, count) if rank == root else contribution(rank, count)]
        if itemsize == SMALL:
            elements = (size - 1) * count if rank == root else 0
        else:
            elements = (size - 1) * own + (count - own if rank == root else 0)
        assert received[rank] == itemsize * elements


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(st.integers(0, 6), min_size=1, max_size=5), st.booleans())
def test_reduce_scatter_of_uneven_parts(order, data, counts, in_place):
    size, count = len(counts), sum(counts)
    bounds = [sum(counts[:k]) for k in range(size + 1)]

    def make(group):
        values = contribution(group.rank, count)
        parts = regions(*(values[lo:hi] for lo, hi in pairwise(bounds)))
        (into,) = [parts[group.rank]] if in_place else empty(counts[group.rank])
        return reduce_scatter(group, parts, into, "sum", ORDERS[order][0]), parts, [into]

    results, received = play(data, size, make)
    whole = summed(order, size, count)
    assert results == [[whole[lo:hi]] for lo, hi in pairwise(bounds)]
    assert received == [SMALL * (size - 1) * counts[k] for k in range(size)]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(0, 9), st.integers(0, 4))
def test_broadcast(data, size, count, root):
    root %= size

    def make(group):
        (tensor,) = regions(contribution(group.rank, count))
        return broadcast(group, tensor, root), [], [tensor]

    results, received = play(data, size, make)
    assert results == [[contribution(root, count)]] * size
    assert received == [0 if rank == root else SMALL * count for rank in range(size)]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_all_gather_of_uneven_shares(data, counts):
    size = len(counts)

    def make(group):
        (mine,) = regions(contribution(group.rank, counts[group.rank]))
        into = empty(*counts)
        return all_gather(group, mine, into), [mine], into

    results, received = play(data, size, make)
    assert results == [[contribution(rank, count) for rank, count in enumerate(counts)]] * size
    assert received == [SMALL * (sum(counts) - count) for count in counts]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 4))
def test_gather_of_uneven_shares(data, counts, root):
    size = len(counts)
    root %= size

    def make(group):
        (mine,) = regions(contribution(group.rank, counts[group.rank]))
        into = empty(*counts) if group.rank == root else None
        return gather(group, mine, into, root), [mine], into or []

    results, received = play(data, size, make)
    assert results[root] == [contribution(rank, count) for rank, count in enumerate(counts)]
    assert received == [SMALL * (sum(counts) - counts[root]) if rank == root else 0 for rank in range(size)]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 4))
def test_scatter_of_uneven_parts(data, counts, root):
    size = len(counts)
    root %= size

    def make(group):
        parts = None
        if group.rank == root:
            parts = regions(*(contribution(root, count, f" to {k}") for k, count in enumerate(counts)))
        (into,) = empty(counts[group.rank])
        return scatter(group, parts, into, root), parts or [], [into]

    results, received = play(data, size, make)
    assert results == [[contribution(root, count, f" to {k}")] for k, count in enumerate(counts)]
    assert received == [0 if rank == root else SMALL * count for rank, count in enumerate(counts)]


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 5))
def test_all_to_all_of_uneven_parts(data, size):
    counts = [[data.draw(st.integers(0, 3)) for _ in range(size)] for _ in range(size)]  # from, to

    def make(group):
        rank = group.rank
        parts = regions(*(contribution(rank, counts[rank][k], f" to {k}") for k in range(size)))
        into = empty(*(counts[k][rank] for k in range(size)))
        return all_to_all(group, parts, into), parts, into

    results, received = play(data, size, make)
    assert results == [[contribution(k, counts[k][rank], f" to {rank}") for k in range(size)] for rank in range(size)]
    assert received == [SMALL * sum(counts[k][rank] for k in range(size) if k != rank) for rank in range(size)]


def table(rank, length):
    """A table of one index and two values an entry."""
    return [contribution(rank, length, "i"), contribution(rank, 2 * length, "v")]


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_all_gather_of_tables_whose_lengths_only_their_owners_know(data, lengths):
    size = len(lengths)
    gathered = [None] * size

    def make(group):
        length = lengths[group.rank]
        columns = regions(*table(group.rank, length))
        (number,) = regions([length], itemsize=8)

        def keep():
            found = yield from all_gather_entries(group, number, columns, [1, 2], 4)
            gathered[group.rank] = [(n, [read(column) for column in theirs]) for n, theirs in found]

        return keep(), [number, *columns], []

    _, received = play(data, size, make)
    assert gathered == [[(length, table(rank, length)) for rank, length in enumerate(lengths)]] * size
    assert received == [(size - 1) * 8 + SMALL * 3 * (sum(lengths) - length) for length in lengths]


@pytest.mark.parametrize("said", [-1, 5, 1 << 62])
def test_a_length_that_cannot_be_is_refused(said):
    generator = all_gather_entries(Group(0, 2), *regions([0], itemsize=8), empty(0), [1], 4)
    assert isinstance(next(generator), Publish)
    (lane,) = generator.send(None).lanes
    assert isinstance(next(lane), Stage)
    assert isinstance(lane.send(Buffer(1, 8, [said])), Read)
    assert isinstance(lane.send(None), Look)
    with pytest.raises(ValueError, match=f"rank 1 says to rank 0 that it has {said} entries: 0 to 4 can be"):
        lane.send(said)


def test_a_region_of_a_region():
    tensor = Buffer(10, 4)[2:8]
    assert (tensor[1:4].lo, tensor[1:4].hi, tensor[:].count) == (3, 6, 6)
    for wrong in (slice(0, 7), slice(-1, 2), slice(3, 2), slice(0, 6, 2)):
        with pytest.raises(IndexError, match="is no region of 6 elements"):
            tensor[wrong]


@settings(max_examples=20, deadline=None)
@given(st.data(), st.integers(1, 6))
def test_barrier_ends_for_nobody_before_all_have_come(data, size):
    order = []

    def come(rank):
        order.append("came")
        yield from barrier(Group(rank, size))
        order.append("went")

    Net(chooser(data)).run([come(rank) for rank in range(size)])
    assert order == ["came"] * size + ["went"] * size
