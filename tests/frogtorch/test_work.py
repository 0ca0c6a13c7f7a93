"""Work and Future: the rules that torch does not write down."""

import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
from torch.futures import Future

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
    import torch.distributed as dist

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
    import torch.distributed as dist

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
