"""What is used does not grow: memory over many collectives, threads and descriptors over many groups.

The short forms run with every change. The long ones take minutes, so they are run by name: ``pytest -m soak -s`` prints
what it saw.
"""

import gc
import os

import pytest
import torch
import torch.distributed as dist
from helpers import eventually

LARGE = 16_867_332 // 4
"""Elements of the founding workload's gradients."""

MEBIBYTE = 1 << 20


def resident():
    """Bytes of this process that are in memory."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reduced(count, elements, warm):
    """All-reduce `count` times after `warm`; resident bytes at the start, in the middle and at the end."""
    def run(rank, size):
        x = torch.zeros(elements)
        seen = []
        for i in range(-warm, count):
            if i in (0, count // 2):
                seen.append(resident())
            dist.all_reduce(x)
        return [*seen, resident()]
    return run


def made_and_left(cycles):
    """Make a group, use it, leave it, `cycles` times after a few; threads and descriptors before and after."""
    def run(rank, size):
        def used():
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        def cycle():
            group = dist.new_group(backend="frogtorch")
            x = torch.full((1000,), float(rank))
            dist.all_reduce(x, group=group, async_op=True).get_future().wait()
            assert x[0] == sum(range(size))
            dist.destroy_process_group(group)

        for _ in range(3):
            cycle()
        start, before = used(), resident()
        for _ in range(cycles):
            cycle()
        eventually(lambda: all(now <= then for now, then in zip(used(), start, strict=True)))  # what ends, ends soon
        return start, used(), resident() - before
    return run


def check_memory(seen, bound):
    for rank, (start, middle, end) in enumerate(seen):
        print(f"rank {rank}: resident {start / 1e6:.1f}, {middle / 1e6:.1f}, {end / 1e6:.1f} MB")
        assert middle - start < bound
        assert end - middle < bound


def check_groups(seen, bound):
    for rank, (start, end, grown) in enumerate(seen):
        print(f"rank {rank}: threads and descriptors {start}, then {end}; resident {grown / 1e6:+.1f} MB")
        assert end <= start
        assert grown < bound


def test_memory_over_small_collectives(ranks):
    # What is kept of the latest collectives is all there after the warm-up. The bound is 1 kB a collective.
    check_memory(ranks(2, reduced(2000, 16, warm=1200)), MEBIBYTE)


def test_memory_over_large_collectives(ranks):
    check_memory(ranks(2, reduced(30, LARGE, warm=6)), LARGE)  # a quarter of one tensor


def test_threads_and_descriptors_over_groups(ranks):
    check_groups(ranks(2, made_and_left(15)), 2 * MEBIBYTE)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 4])
def test_memory_over_a_hundred_thousand_small_collectives(ranks, size):
    check_memory(ranks(size, reduced(100_000, 16, warm=2000), guard=800.0), MEBIBYTE)


@pytest.mark.soak
def test_memory_over_three_hundred_large_collectives(ranks):
    check_memory(ranks(4, reduced(300, LARGE, warm=20), guard=240.0), LARGE)


@pytest.mark.soak
def test_threads_and_descriptors_over_two_hundred_groups(ranks):
    check_groups(ranks(3, made_and_left(200), guard=240.0), 2 * MEBIBYTE)
