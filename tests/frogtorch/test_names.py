"""Names: written once, and of one run of a group."""

from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist

from frogtorch.process_group import create


def test_a_name_is_written_once(ranks):
    class Round:
        what, deadline = b"kind/x/float32", float("inf")

    def run(rank, size):
        group = dist.distributed_c10d._get_default_group()
        memory, gone, texts = group._memory, [], []
        with group._engine.loop.lock:
            first, second = memory.begin(Round()), memory.begin(Round())
            for number in (first, second, first):
                try:
                    memory.publish(number, ("arr", 7), memoryview(b"abc"), 0, lambda: gone.append(1))
                except ValueError as error:
                    texts.append(str(error))
            kept = len(memory.published.cells)
            memory.end(first)
            memory.end(second)
        return kept, len(gone), texts

    # Of a group of one nobody reads: a cell is gone at once, and its name is taken all the same.
    kept, gone, (text,) = ranks(1, run)[0]
    assert (kept, gone) == (0, 2)
    assert "arr.0.7, rank 0) is published already; a name is written once" in text


def test_a_reader_is_never_served_by_a_dead_run(ranks, tmp_path):
    # Process 0 is rank 0 of an old run and lives on; process 1, rank 1 of both, comes again; 2 is the new rank 0.
    def run(rank, size):
        def join(as_rank):
            store = dist.PrefixStore("run", dist.FileStore(str(tmp_path / "store"), -1))
            return create(SimpleNamespace(store=store, group_rank=as_rank, group_size=2, timeout=timedelta(seconds=20),
                                          group_id="run", global_ranks_in_group=[]), None)

        old = join(rank) if rank < 2 else None
        if rank == 0:
            old.broadcast([torch.ones(100_000)]).wait()  # in the memory from now on
        dist.barrier()
        x = torch.full((100_000,), 2.0 * (rank == 2))
        if rank:
            new = join(rank % 2)
            new.broadcast([x]).wait()
        kept = len(old._memory.published.cells) if rank == 0 else None
        dist.barrier()
        spaces = [group._memory.space for group in (old, new if rank else None) if group is not None]
        for group in (old, new if rank else None):
            if group is not None:
                group.abort()
        return x.unique().tolist(), kept, spaces

    (_, kept, (old,)), (values, _, (also_old, new)), (_, _, (also_new,)) = ranks(3, run)
    assert kept == 1
    assert values == [2.0]
    assert old == also_old != new == also_new
