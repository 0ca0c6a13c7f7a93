"""Work and Future: the rules that torch does not write down."""

import gc
import os
import signal
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from helpers import eventually
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from frogtorch.memory.faults import PeerLost, RoundTimeout
from frogtorch.work import Work


class Engine:
    """Completes futures on a thread of its own, as the real one does."""

    def __init__(self):
        self.threads = []

    def submit(self, function):
        thread = threading.Thread(target=function)
        self.threads.append(thread)
        thread.start()


@pytest.fixture
def engine():
    one = Engine()
    yield one
    for thread in one.threads:
        thread.join()


def test_success(engine):
    tensors = [torch.ones(2)]
    work = Work(tensors, engine.submit)
    future = work.get_future()
    assert not work.is_completed()
    assert not future.done()
    work.complete(None)
    assert work.wait()
    assert work.is_success()
    assert work.exception() is None
    assert work.result() is tensors
    assert future.wait() is tensors
    assert work.get_future() is future


def test_failure_raises_the_very_exception_and_reaches_futures_through_then(engine):
    work = Work([torch.ones(2)], engine.submit)
    early = work.get_future().then(lambda done: done.value())
    error = PeerLost("rank 3 is gone")
    work.complete(error)
    with pytest.raises(PeerLost) as caught:
        work.wait()
    assert caught.value is error
    assert work.is_completed()
    assert not work.is_success()
    # C++ sees it as an error, not as a value: a chain of callbacks carries it on.
    with pytest.raises(RuntimeError, match="rank 3 is gone"):
        early.wait()
    with pytest.raises(RuntimeError, match="rank 3 is gone"):
        torch.futures.collect_all([work.get_future()]).wait()


def test_a_future_that_is_asked_for_afterwards(engine):
    work = Work([torch.ones(2)], engine.submit)
    work.complete(None)
    assert work.get_future().done()
    assert engine.threads == []


def test_wait_with_a_timeout_leaves_the_work_going(engine):
    work = Work([], engine.submit)
    with pytest.raises(RoundTimeout, match=r" timeout of 0\.05 s"):
        work.wait(timedelta(seconds=0.05))
    work.complete(None)
    assert work.wait(timedelta(seconds=5))


def test_wait_can_be_interrupted(engine):
    work = Work([], engine.submit)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work.wait(timedelta(seconds=60))
    assert time.monotonic() - begin < 30


def test_callbacks_do_not_run_where_the_work_is_completed(engine):
    work = Work([torch.ones(1)], engine.submit)
    ran_on = Future()
    work.get_future().add_done_callback(lambda _: ran_on.set_result(threading.get_ident()))
    work.complete(None)
    assert ran_on.wait() != threading.get_ident()


def test_callbacks_may_start_and_wait_for_collectives_on_the_group(ranks):
    def run(rank, size):
        def again(done):
            y = done.value()[0] * 10
            dist.all_reduce(y)
            return [y]

        future = dist.all_reduce(torch.full((3,), rank + 1.0), async_op=True).get_future().then(again)
        return future.wait()[0].tolist()

    # (1 + 2) * 10, twice
    assert ranks(2, run) == [[60.0] * 3] * 2


def test_threads_are_joined_at_shutdown(ranks):
    from frogtorch import engine as module

    def run(rank, size):
        dist.all_reduce(torch.ones(3))
        names = {thread.name for thread in threading.enumerate()}
        dist.destroy_process_group()
        module._at_exit()
        after = [thread.name for thread in threading.enumerate() if thread.name == "frogtorch-io"]
        # The engine starts anew when it is asked for.
        dist.init_process_group("frogtorch", store=dist.HashStore(), rank=0, world_size=1)
        return "frogtorch-io" in names, after

    assert ranks(2, run) == [(True, [])] * 2


def test_a_joint_work_ends_with_the_last_and_fails_with_the_first(engine):
    works = [Work([torch.ones(1)], engine.submit) for _ in range(3)]
    joint = Work.joint(works, [torch.ones(3)], engine.submit)
    early, late = PeerLost("the first"), PeerLost("the second")
    works[2].complete(early)
    works[0].complete(None)
    assert not joint.is_completed()
    works[1].complete(late)
    with pytest.raises(PeerLost, match="the first"):
        joint.wait()
    # Of some that have ended, and of none.
    assert Work.joint([works[0]], [], engine.submit).wait()
    assert Work.joint([], [], engine.submit).is_success()


def test_only_a_receive_has_a_source(engine):
    with pytest.raises(RuntimeError, match="no receive"):
        Work([], engine.submit)._source_rank()


def test_every_method_returns_a_work(ranks):
    # C++ callers take None for one, and crash.
    def run(rank, size):
        group, x, both, four = dist.group.WORLD, torch.ones(2), [torch.ones(2), torch.ones(2)], torch.ones(4)
        peer = 1 - rank
        works = [
            group.allreduce([x]), group.allreduce_coalesced(both), group.broadcast([x], 0), group.reduce([x], 0),
            group.allgather([both], [x]), group.all_gather_single(four, x),
            group.all_gather_single_coalesced([four], [x]), group.allgather_coalesced([[x], [x.clone()]], [x.clone()]),
            group.gather([both] if rank == 0 else [], [x], 0), group.scatter([x], [both] if rank == 0 else [], 0),
            group.reduce_scatter([x], [both]),
            group.reduce_scatter_single(x, four), group.reduce_scatter_single_coalesced([x], [four]),
            group.alltoall(both, [x.clone(), x.clone()]), group.all_to_all_single(four, four.clone(), [], []),
            group.barrier(), group.send([x], peer, 0), group.recv([x.clone()], peer, 0),
            group.send([x], peer, 1), group.recv_anysource([x.clone()], 1), group.allreduce([torch.empty(0)]),
        ]
        group._start_coalescing(torch.device("cpu"))
        works.append(group._end_coalescing(torch.device("cpu")))
        assert all(isinstance(work, dist._Work) and work.wait(timedelta(0)) for work in works)
        # And the value of a future is a list of tensors.
        values = [work.get_future().wait() for work in works]
        return all(isinstance(value, list) and all(isinstance(one, torch.Tensor) for one in value) for value in values)

    assert ranks(2, run) == [True, True]


def test_tensors_live_until_the_end_and_not_longer(ranks):
    def run(rank, size):
        x = torch.full((100_000,), rank + 1.0)
        inputs = [torch.ones(50_000), torch.ones(50_000)]
        gone = [weakref.ref(x), *map(weakref.ref, inputs)]
        kept = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0].unique().tolist())
        dist.all_to_all([torch.empty(50_000) for _ in range(size)], inputs, async_op=True)
        del x, inputs
        result = kept.wait()
        dist.barrier()
        del kept

        def left():
            gc.collect()
            return [ref for ref in gone if ref() is not None]

        eventually(lambda: not left())  # a thread that has just ended it may be at its last lines
        return result, left()

    assert ranks(2, run) == [([3.0], [])] * 2


def test_an_error_keeps_its_type_through_cpp(world):
    def run(rank, size):
        if rank == 1:
            os._exit(0)
        texts = []
        for call in (lambda: dist.all_reduce(torch.ones(2)),
                     lambda: functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).wait()):
            with pytest.raises(PeerLost) as caught:
                call()
            texts.append(str(caught.value))
        return texts

    texts, _ = world(2, run).results(expected_dead=[1])
    assert all("rank 1" in text and "all_reduce" in text for text in texts)


def test_as_many_callbacks_may_wait_as_there_are(ranks):
    def run(rank, size):
        store = dist.distributed_c10d._get_default_store()
        meeting = threading.Barrier(20, timeout=30)

        def meet(done):
            meeting.wait()  # all of them at a time: each has a thread
            return done.value()[0].item() * 10

        if rank == 1:
            store.wait(["the callbacks are there"])
        works = [dist.all_reduce(torch.tensor([float(i)]), async_op=True) for i in range(20)]
        if rank == 1:
            return None
        futures = [work.get_future().then(meet) for work in works]
        store.set("the callbacks are there", "1")
        return torch.futures.wait_all(futures)

    assert ranks(2, run)[0] == [20.0 * i for i in range(20)]


def test_a_method_that_raises_in_backward_raises_there_with_its_type(ranks):
    def run(rank, size):
        def refuse(*args):
            raise LookupError("not today")

        ddp = DistributedDataParallel(torch.nn.Linear(2, 1))
        loss = ddp(torch.ones(1, 2)).sum()
        type(dist.group.WORLD).allreduce = refuse
        with pytest.raises(LookupError, match="not today"):
            loss.backward()

    assert ranks(2, run) == [None, None]


def test_hooks_in_cpp_do_not_crash(ranks):
    def run(rank, size):
        found = []
        for hook in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
            ddp = DistributedDataParallel(torch.nn.Linear(2, 1))
            ddp._register_builtin_comm_hook(hook)
            try:
                ddp(torch.full((1, 2), rank + 1.0)).sum().backward()
            except RuntimeError as error:
                found.append(str(error))
            else:
                found.append(ddp.module.weight.grad.tolist())
        return found

    for plain, compressed in ranks(2, run):
        assert plain == [[1.5, 1.5]]
        # It takes the future's value for a typed list, which that of a Python future is not; fp16_compress_hook works.
        assert "TensorList" in compressed


def test_the_store_is_needed_for_the_rendezvous_only(ranks):
    def run(rank, size):
        dist.barrier()
        store = dist.distributed_c10d._get_default_store()
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        if rank == 0:
            os.remove(store.path)
        dist.barrier()
        x = torch.ones(50_000)
        dist.all_reduce(x)
        objects = [None] * size
        dist.all_gather_object(objects, rank)
        return os.path.exists(store.path), x.unique().tolist(), objects

    assert ranks(2, run) == [(False, [2.0], [0, 1])] * 2
