"""When the last collectives are dumped, who keeps the signal, and what a dump that cannot be written does."""

import faulthandler
import io
import json
import logging
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers import eventually, group

import frogtorch
from frogtorch.telemetry import dump


def lines(directory, rank):
    """A dump's head, its groups, and its records."""
    found = [json.loads(line) for line in (Path(directory) / f"rank{rank}.jsonl").read_text().splitlines()]
    return found[0], [one for one in found[1:] if "space" in one], [one for one in found[1:] if "id" in one]


def test_nothing_is_dumped_and_no_signal_taken_unless_asked(ranks, tmp_path):
    def run(rank, size):
        os.chdir(tmp_path)
        dist.all_reduce(torch.ones(3))
        return (signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, signal.set_wakeup_fd(-1),
                [thread.name for thread in threading.enumerate() if "dump" in thread.name])

    assert ranks(2, run) == [(True, -1, [])] * 2
    assert list(tmp_path.iterdir()) == []


def counted():
    """A list that gets a reason for each dump that this process writes."""
    reasons = []
    write = dump._dumper._write
    dump._dumper._write = lambda reason: (write(reason), reasons.append(reason))
    return reasons


def test_failures_of_one_cause_are_one_dump(world, tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "SETTLE", 1.0)  # on a busy machine what one cause brings down takes longer to come down
    issued = [tmp_path / "0", tmp_path / "1"]
    directory = tmp_path / "dumps"

    def run(rank, size):
        dist.all_reduce(torch.ones(4))
        reasons = counted()
        if rank == 2:
            eventually(lambda: all(path.exists() for path in issued))
            os._exit(0)
        works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(20)]
        issued[rank].touch()
        failed = 0
        for work in works:
            try:
                work.wait()
            except RuntimeError:
                failed += 1
        assert eventually(lambda: reasons)
        time.sleep(1.5)
        return failed, reasons

    found = world(3, run, options=frogtorch.Options(dump=directory)).results(expected_dead=[2])
    assert found[:2] == [(20, ["failure"])] * 2
    for rank in (0, 1):
        head, groups, records = lines(directory, rank)
        assert (head["dump"], head["global_rank"]) == ("failure", rank)
        assert [one["state"] for one in records] == ["completed"] + ["failed"] * 20
        assert all("rank 2 at 127.0.0.1:" in one["error"] for one in records[1:])
        assert [group["global_ranks"] for group in groups] == [[0, 1, 2]]
        assert all(end.startswith("127.0.0.1:") for ends in groups[0]["endpoints"].values() for end in ends.values())
    assert sorted(path.name for path in directory.iterdir()) == [
        "flight_0", "flight_1", "rank0.jsonl", "rank0.trace.json", "rank1.jsonl", "rank1.trace.json"]


def test_a_signal_dumps_what_hangs_also_while_the_main_thread_is_in_cpp(ranks, tmp_path):
    def run(rank, size):
        pids = [None] * size
        dist.all_gather_object(pids, os.getpid())
        if rank == 0:
            # As DDP waits: Python's own handlers do not run before it is over.
            dist.all_reduce(torch.ones(100_000), async_op=True).get_future().wait()
            return None
        # It has called, as it asks for its half of our slice and for its sum; and soon it waits.
        assert eventually(lambda: group()._memory.peers[0].standing == 2)
        time.sleep(0.3)
        os.kill(pids[0], signal.SIGUSR1)
        came = eventually((tmp_path / "flight_0").exists)
        dist.all_reduce(torch.ones(100_000))
        return came, lines(tmp_path, 0)

    _, (came, (head, _, records)) = ranks(2, run, options=frogtorch.Options(all_reduce="shard", dump=tmp_path))
    assert came
    assert head["dump"] == "SIGUSR1"
    assert (records[-1]["state"], records[-1]["seconds"]) == ("started", None)
    assert records[-1]["waiting"] == {"1": 400_000}  # its half of our slice, and its sum
    assert all(one["state"] == "completed" for one in records[:-1])


def test_a_handler_that_was_there_is_called_too_and_gets_the_signal_back(ranks, tmp_path):
    def run(rank, size):
        seen = []
        before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
        theirs = signal.getsignal(signal.SIGUSR1)
        group = dist.new_group(backend="frogtorch", pg_options=frogtorch.Options(dump=tmp_path))
        dist.all_reduce(torch.ones(2), group=group)
        os.kill(os.getpid(), signal.SIGUSR1)
        written = eventually((tmp_path / f"flight_{rank}").exists)
        pid = os.fork()
        if pid == 0:  # a child has neither our dumps nor our handler
            os._exit(signal.getsignal(signal.SIGUSR1) is not theirs or threading.active_count() != 1)
        _, status = os.waitpid(pid, 0)
        dump._close()
        return before is signal.SIG_DFL, seen, written, status, signal.getsignal(signal.SIGUSR1) is theirs

    assert ranks(2, run) == [(True, [signal.SIGUSR1], True, 0, True)] * 2


@pytest.mark.parametrize(("where", "said"), [
    ("faulthandler", "has a handler that is not Python's"), ("thread", "from the main thread alone")])
def test_a_signal_that_cannot_be_had_is_left_alone_and_said(ranks, tmp_path, where, said):
    def run(rank, size):
        log = io.StringIO()
        logging.getLogger("frogtorch").addHandler(logging.StreamHandler(log))
        options = frogtorch.Options(dump=tmp_path)
        if where == "faulthandler":
            with (tmp_path / f"traceback{rank}").open("w") as file:
                faulthandler.register(signal.SIGUSR1, file=file)
                dist.new_group(backend="frogtorch", pg_options=options)
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.1)
        else:
            thread = threading.Thread(target=dist.new_group,
                                      kwargs={"backend": "frogtorch", "pg_options": options})
            thread.start()
            thread.join()
        return log.getvalue(), signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL

    for text, untouched in ranks(2, run):
        assert said in text
        assert untouched
    if where == "faulthandler":
        assert "most recent call first" in (tmp_path / "traceback0").read_text()


def test_at_exit_if_asked(world, tmp_path):
    def run(rank, size):
        import atexit

        x = torch.ones(5)
        dist.all_reduce(x)
        atexit._run_exitfuncs()  # a forked child of the tests ends without them otherwise
        os._exit(0)

    environment = {"FROGTORCH_DUMP": str(tmp_path / "deep" / "down"), "FROGTORCH_DUMP_AT_EXIT": "1"}
    world(2, run, environment=environment).results()
    for rank in (0, 1):
        head, _, records = lines(tmp_path / "deep" / "down", rank)
        assert head["dump"] == "exit"
        assert [(one["collective"], one["state"]) for one in records] == [("all_reduce", "completed")]


@pytest.mark.parametrize("fault", ["no directory", "full disk"])
def test_a_dump_that_cannot_be_written_is_a_warning(ranks, tmp_path, fault):
    (tmp_path / "file").write_text("")

    def run(rank, size):
        log = io.StringIO()
        logging.getLogger("frogtorch").addHandler(logging.StreamHandler(log))
        if fault == "full disk":  # what write(2) says is another thing, what we do is the same
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        with pytest.raises(RuntimeError, match="round 0 of"):
            dist.all_reduce(torch.ones(10 + rank))
        said = eventually(lambda: "could not dump" in log.getvalue())
        x = torch.ones(3)
        dist.all_reduce(x)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return said, log.getvalue(), x.tolist()

    directory = tmp_path / "file" / "dumps" if fault == "no directory" else tmp_path / "dumps"
    for said, text, after in ranks(2, run, options=frogtorch.Options(dump=directory)):
        assert said
        assert "Traceback" not in text
        assert after == [2.0, 2.0, 2.0]
    assert not (tmp_path / "dumps").exists() or list((tmp_path / "dumps").iterdir()) == []


def test_options(tmp_path):
    settings = frogtorch.Options().resolved({"FROGTORCH_DUMP": str(tmp_path), "FROGTORCH_DUMP_AT_EXIT": "true"})
    assert (settings.dump, settings.dump_at_exit) == (tmp_path, True)
    assert frogtorch.Options(dump=tmp_path).resolved({}).dump_at_exit is False
    with pytest.raises(ValueError, match="is 1 or 0, not 'maybe'"):
        frogtorch.Options().resolved({"FROGTORCH_DUMP_AT_EXIT": "maybe"})
    with pytest.raises(ValueError, match="needs a directory"):
        frogtorch.Options(dump_at_exit=True).resolved({})
    with pytest.raises(ValueError, match="two directories"):
        frogtorch.Options(dump=tmp_path, telemetry=tmp_path).resolved({})


def test_one_directory_a_process(ranks, tmp_path):
    def run(rank, size):
        dist.new_group(backend="frogtorch", pg_options=frogtorch.Options(dump=tmp_path / "a"))
        with pytest.raises(ValueError, match="already"):
            dist.new_group(backend="frogtorch", pg_options=frogtorch.Options(dump=tmp_path / "b"))

    ranks(1, run)
