"""Groups beside and inside one another, and their ends."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
import torch.distributed as dist
from helpers import eventually
from torch.distributed.device_mesh import init_device_mesh


def total(value, group=None):
    x = torch.tensor([float(value)])
    dist.all_reduce(x, group=group)
    return x.item()


def test_groups_of_some_ranks(ranks):
    def run(rank, size):
        assert dist.get_backend() == "frogtorch"
        odd = dist.new_group([3, 1])
        even = dist.new_group([0, 2], backend="frogtorch", group_desc="the even ones")
        ours = odd if rank % 2 else even
        other = even if rank % 2 else odd
        assert dist.get_backend(ours) == "frogtorch"
        assert dist.get_process_group_ranks(ours) == [rank % 2, rank % 2 + 2]
        assert dist.get_rank(ours) == rank // 2
        assert dist.get_group_rank(ours, rank) == rank // 2
        assert dist.get_rank(other) == -1
        # Roots are ranks of the world.
        x = torch.tensor([rank])
        dist.broadcast(x, 2 + rank % 2, group=ours)
        assert x.item() == 2 + rank % 2
        # In whichever order, and at once: each group has its own memory.
        mine = torch.tensor([1.0 + rank])
        both = torch.tensor([1.0 + rank])
        works = [dist.all_reduce(both, async_op=True), dist.all_reduce(mine, group=ours, async_op=True)]
        for work in works[::-1 if rank % 2 else 1]:
            work.wait()
        assert both.item() == 10
        assert mine.item() == (6 if rank % 2 else 4)
        dist.destroy_process_group(ours)
        return total(1)

    assert ranks(4, run) == [4.0] * 4


def test_a_rank_outside_gets_no_group_and_does_nothing_in_one(ranks):
    def run(rank, size):
        group = dist.new_group([0, 1])
        x = torch.tensor([1.0])
        if rank == 2:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
            with pytest.warns(UserWarning, match="does not belong"):
                dist.all_reduce(x, group=group)
        else:
            dist.all_reduce(x, group=group)
        return x.item()

    assert ranks(3, run) == [2.0, 2.0, 1.0]


def test_groups_that_only_their_members_make(ranks):
    def run(rank, size):
        if rank == 2:
            return None
        group = dist.new_group([0, 1], use_local_synchronization=True)
        return total(rank + 1, group)

    assert ranks(3, run) == [3.0, 3.0, None]


def test_subgroups(ranks):
    def run(rank, size):
        pairs, everybody = dist.new_subgroups(2)
        assert len(everybody) == 2
        crossed, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
        found = total(rank, pairs), total(rank, crossed)
        for group in (crossed, pairs):
            dist.destroy_process_group(group)
        return found

    assert ranks(4, run) == [(1, 3), (1, 3), (5, 3), (5, 3)]


def test_a_group_is_split(ranks):
    def run(rank, size):
        # PyTorch's front wants a device that the default group is bound to, which a CPU never is, for gloo as for us.
        with pytest.raises(RuntimeError, match="No device associated"):
            dist.split_group(split_ranks=[[0, 1], [2, 3]])
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
        rows = mesh._unflatten(0, (2, 2), ("row", "column"))
        return total(rank, rows.get_group("row")), total(rank, rows.get_group("column"))

    assert ranks(4, run) == [(2, 1), (4, 1), (2, 5), (4, 5)]


def test_meshes(ranks):
    def run(rank, size):
        line = init_device_mesh("cpu", (4,))
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
        assert line.get_group().name() == "frogtorch"
        assert list(square.get_coordinate()) == [rank // 2, rank % 2]
        flat = square[("row", "column")]._flatten("both")
        return [total(rank, mesh.get_group()) for mesh in (line, square["row"], square["column"], flat)]

    assert ranks(4, run) == [[6, 2, 1, 6], [6, 4, 1, 6], [6, 2, 5, 6], [6, 4, 5, 6]]


def test_gloo_beside_us(ranks):
    def run(rank, size):
        theirs = dist.new_group(backend="gloo")
        ours, other = torch.full((1000,), rank + 1.0), torch.full((1000,), rank + 1.0)
        works = [dist.all_reduce(ours, async_op=True), dist.all_reduce(other, group=theirs, async_op=True)]
        for work in works:
            work.wait()
        assert dist.get_backend(theirs) == "gloo"
        assert torch.equal(ours, other)
        return ours.unique().tolist()

    assert ranks(3, run) == [[6.0]] * 3


def test_us_beside_gloo(ranks):
    def run(rank, size):
        ours = dist.new_group([1, 2], backend="frogtorch")
        return total(rank + 1), total(rank + 1, ours) if rank else None

    assert ranks(3, run, backend="gloo") == [(6, None), (6, 5), (6, 5)]


def test_the_world_is_made_anew(ranks):
    def run(rank, size):
        results = [total(1)]
        for again in range(2):
            store = dist.PrefixStore(f"again {again}", dist.distributed_c10d._get_default_store())
            dist.destroy_process_group()
            dist.init_process_group("frogtorch", store=store, rank=size - 1 - rank, world_size=size)
            results.append(total(10 * (again + 1)))
        return results

    assert ranks(2, run) == [[2, 20, 40]] * 2


def test_a_group_that_was_destroyed_is_refused(ranks):
    def run(rank, size):
        group = dist.new_group()
        dist.destroy_process_group(group)
        with pytest.raises((ValueError, RuntimeError)):
            dist.all_reduce(torch.ones(1), group=group)
        return total(1)

    assert ranks(2, run) == [2.0] * 2


@pytest.mark.slow
def test_threads_and_descriptors_stay_few(ranks):
    def count():
        return threading.active_count(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def run(rank, size):
        for number in range(60):
            group = dist.new_group()
            assert total(number, group) == 2 * number
            dist.destroy_process_group(group)
            if number == 19:
                early = count()
        # What ends, ends soon.
        few = eventually(lambda: all(now <= then for now, then in zip(count(), early, strict=True)))
        dist.barrier()
        return few, early, count()

    for few, early, late in ranks(2, run, timeout=60.0):
        assert few, (early, late)


# Ends of processes, in interpreters of their own ------------------------------------------------------------------

BEGIN = """
import os, sys, threading, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
rank, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("frogtorch", init_method=f"file://{path}", rank=rank, world_size=size)
"""


@pytest.fixture
def interpreters(tmp_path):
    """Start `size` interpreters with a program; those that still run are ended after the test."""
    started = []

    def start(size, program):
        for rank in range(size):
            command = [sys.executable, "-c", BEGIN + textwrap.dedent(program), str(rank), str(size),
                       str(tmp_path / "store")]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                            env={**os.environ, "FROGTORCH_ADDRESS": "127.0.0.1"}))
        return started

    yield start
    for one in started:
        one.kill()
        one.communicate()


def ends(processes):
    found = [one.communicate(timeout=250) for one in processes]
    return [(one.returncode, out, error) for one, (out, error) in zip(processes, found, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("last", [
    # No group is destroyed, and what is under way is not waited for.
    """
        dist.new_group()
        dist.new_group(backend="gloo")
        dist.all_reduce(torch.ones(100_000), async_op=True)
        dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: done.value())
    """,
    "    dist.destroy_process_group()",
])
def test_an_interpreter_ends_well_whatever_is_left(interpreters, last):
    for code, _, error in ends(interpreters(2, f"dist.all_reduce(torch.ones(3))\n{textwrap.dedent(last)}")):
        assert code == 0, error
        assert "terminate called" not in error
        assert "Traceback" not in error


@pytest.mark.slow
def test_ctrl_c_ends_a_wait(interpreters):
    first, second = interpreters(2, """
        if rank == 1:
            time.sleep(1000)  # it never comes
        try:
            print("waits", flush=True)
            dist.all_reduce(torch.ones(3))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(0)
    """)
    assert first.stdout.readline() == "waits\n"
    time.sleep(0.3)
    first.send_signal(signal.SIGINT)
    assert first.stdout.readline() == "interrupted\n"  # the group's timeout is half an hour
    second.kill()


@pytest.mark.slow
def test_a_thousand_steps_leave_nothing_behind(interpreters):
    text = """
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel
        def state():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/task")), \\
                    len(os.listdir("/proc/self/fd"))
        torch.manual_seed(1)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)),
                                        bucket_cap_mb=0.03)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(1000):
            optimizer.zero_grad()
            model(torch.randn(8, 100)).square().mean().backward()
            optimizer.step()
            if step in (299, 999):
                print(*state(), flush=True)
                dist.barrier()  # the one that ends first takes its connection with it
    """
    for code, out, error in ends(interpreters(2, text)):
        assert code == 0, error
        assert "terminate called" not in error
        early, late = (tuple(map(int, line.split())) for line in out.splitlines())
        assert late[0] - early[0] < 4 << 20
        assert late[1] <= early[1] + 2  # as many complete futures as ever were to be completed at one moment
        assert late[2] == early[2]
