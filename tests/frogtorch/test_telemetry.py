"""Records, the ring, its dumps and the three formats, and the profiler's ranges."""

import argparse
import faulthandler
import gc
import io
import json
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir
from torch.nn.parallel import DistributedDataParallel

import frogtorch
from frogtorch.memory.cells import Reading, Span, Tally
from frogtorch.memory.endpoint import Endpoint
from frogtorch.telemetry import GroupInfo, Record, chrome, dump, flight
from frogtorch.telemetry.record import wall_ns
from frogtorch.telemetry.ring import Ring

GIVE_UP = 30.0
"""Seconds after which something that was to come counts as missing."""


def eventually(condition):
    """Whether `condition` becomes true."""
    until = time.monotonic() + GIVE_UP
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def lines(directory, rank):
    """A dump's head, its groups, and its records."""
    found = [json.loads(line) for line in (Path(directory) / f"rank{rank}.jsonl").read_text().splitlines()]
    return found[0], [one for one in found[1:] if "space" in one], [one for one in found[1:] if "id" in one]


def record(**fields):
    return Record(**{"group": "0", "rank": 0, "world_size": 3, "collective": "all_reduce", "algorithm": "shard",
                     "op": "sum", "dtype": "float32", "nbytes": 12, "start": 100.0} | fields)


def reading(name, owner, first, last, nbytes, head):
    one = Reading(7, name, owner, b"", memoryview(bytes(nbytes)), Tally(), lambda reading, error: None)
    one.first, one.last, one.got, one.head = first, last, nbytes, head
    return one


# Records --------------------------------------------------------------------------------------------------------


def test_a_rate_is_of_what_came_after_the_first_bytes():
    seen = record()
    # 1000 bytes over two seconds, of which 200 were there when the clock began to run: 400 B/s.
    seen.read(reading(b"ars.0.0", 1, 100.5, 102.5, 1000, 200))
    seen.read(reading(b"arr.0.1", 1, 103.0, 104.0, 600, 100))
    seen.read(reading(b"ars.0.0", 2, 101.0, 101.0, 50, 50))
    seen.end = 105.0
    seen.finish(None)
    shown = seen.as_dict()
    assert shown["peers"]["1"] == {
        "wait": 0.5, "transfer": 3.5, "bytes": 1600, "rate": pytest.approx(400.0),
        "phase1": {"wait": 0.5, "transfer": 2.0, "bytes": 1000, "rate": pytest.approx(400.0)},
        "phase2": {"wait": 3.0, "transfer": 1.0, "bytes": 600, "rate": pytest.approx(500.0)}}
    assert shown["peers"]["2"]["rate"] is None
    assert (shown["seconds"], shown["phase2"], shown["state"], shown["error"]) == (5.0, 2.0, "completed", None)


def test_several_reads_of_a_peer_are_one_span():
    span = Span(5.0, 6.0, 100, 10)
    span.add(4.0, 4.5, 30, 7)
    span.add(5.5, 8.0, 1, 1)
    assert (span.first, span.last, span.bytes, span.head) == (4.0, 8.0, 131, 7)


def test_sends_of_one_moment_are_its_head():
    tally = Tally()
    for count, now in ((10, 1.0), (20, 1.0), (40, 3.0)):
        tally.sends(2, count, now)
    span = tally.sent[2]
    assert (span.first, span.last, span.bytes, span.head, tally.payload_sent) == (1.0, 3.0, 70, 30, 70)


def test_what_is_offered_and_sent_to_whom(ranks):
    def run(rank, size):
        dist.all_reduce(torch.ones(1_000_000))
        dist.broadcast(torch.ones(300), 1)
        dist.barrier()
        time.sleep(0.2)  # the kernel has the last bytes, here too
        telemetry = dist.distributed_c10d._get_default_group().telemetry
        return telemetry.take()[:2]

    for rank, (reduced, sent) in enumerate(ranks(4, run, options=frogtorch.Options(all_reduce="shard"))):
        # A quarter of 4 MB to each of three peers, then our sum of a quarter to the same three.
        assert reduced["payload_offered"] == reduced["payload_sent"] == 6_000_000
        others = sorted(str(peer) for peer in range(4) if peer != rank)
        assert {peer: span["bytes"] for peer, span in reduced["sent"].items()} == dict.fromkeys(others, 2_000_000)
        assert {peer: span["bytes"] for peer, span in reduced["peers"].items()} == dict.fromkeys(others, 2_000_000)
        assert reduced["waiting"] == {}
        assert (reduced["input_sizes"], reduced["output_sizes"]) == ([[1_000_000]], [[1_000_000]])
        assert all(span["rate"] > 0 for span in reduced["peers"].values())
        assert sent["payload_offered"] == (3600 if rank == 1 else 0)


def test_a_message_has_a_record(ranks):
    def run(rank, size):
        if rank == 0:
            dist.send(torch.ones(50_000), 1, tag=4)
        else:
            dist.recv(torch.ones(50_000), tag=4)
        dist.barrier()
        return dist.distributed_c10d._get_default_group().telemetry.take()[0]

    sent, received = ranks(2, run)
    for seen, name, peer in ((sent, "send", 1), (received, "recv", 0)):
        assert (seen["collective"], seen["peer"], seen["tag"], seen["number"]) == (name, peer, 4, 0)
        assert (seen["state"], seen["nbytes"]) == ("completed", 200_000)
    assert sent["payload_offered"] == sent["payload_sent"] == sent["sent"]["1"]["bytes"] == 200_000
    assert received["payload_received"] == received["peers"]["0"]["bytes"] == 200_000


def test_a_collective_that_failed_has_a_record(world):
    def run(rank, size):
        group = dist.distributed_c10d._get_default_group()
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(10 + rank))
        group.abort()
        with pytest.raises(RuntimeError, match="aborted"):
            dist.all_reduce(torch.ones(4))
        return group.telemetry.take()

    for rank, (different, refused) in enumerate(world(2, run).results()):
        assert different["state"] == refused["state"] == "failed"
        assert "round 0" in different["error"]
        assert f"rank {rank}" in different["error"]
        assert f"aborted on rank {rank}" in refused["error"]
        assert min(different["seconds"], refused["seconds"]) >= 0


# The ring -------------------------------------------------------------------------------------------------------


def test_the_ring_keeps_the_last_and_whatever_is_under_way():
    ring = Ring()
    begun = [record(nbytes=i) for i in range(1500)]
    for one in begun:
        ring.begin(one)
        if one.nbytes not in (3, 1499):
            one.finish(None)
            ring.end(one)
    kept = ring.records()
    assert [one.nbytes for one in kept] == [3, *range(499, 1500)]
    assert [one.state for one in kept if one.state != "completed"] == ["started", "started"]


def test_nothing_is_dumped_and_no_signal_taken_unless_asked(ranks, tmp_path):
    def run(rank, size):
        os.chdir(tmp_path)
        dist.all_reduce(torch.ones(3))
        return (signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, signal.set_wakeup_fd(-1),
                [thread.name for thread in threading.enumerate() if "dump" in thread.name])

    assert ranks(2, run) == [(True, -1, [])] * 2
    assert list(tmp_path.iterdir()) == []


# Dumps ----------------------------------------------------------------------------------------------------------


def counted():
    """A list that gets a reason for each dump that this process writes."""
    reasons = []
    write = dump._dumper._write
    dump._dumper._write = lambda reason: (write(reason), reasons.append(reason))
    return reasons


def test_failures_of_one_cause_are_one_dump(world, tmp_path):
    def run(rank, size):
        dist.all_reduce(torch.ones(4))
        reasons = counted()
        if rank == 2:
            time.sleep(0.5)
            os._exit(0)
        works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(20)]
        failed = 0
        for work in works:
            try:
                work.wait()
            except RuntimeError:
                failed += 1
        assert eventually(lambda: reasons)
        time.sleep(1.5)
        return failed, reasons

    found = world(3, run, options=frogtorch.Options(dump=tmp_path)).results(expected_dead=[2])
    assert found[:2] == [(20, ["failure"])] * 2
    for rank in (0, 1):
        head, groups, records = lines(tmp_path, rank)
        assert (head["dump"], head["global_rank"]) == ("failure", rank)
        assert [one["state"] for one in records] == ["completed"] + ["failed"] * 20
        assert all("rank 2 at 127.0.0.1:" in one["error"] for one in records[1:])
        assert [group["global_ranks"] for group in groups] == [[0, 1, 2]]
        assert all(end.startswith("127.0.0.1:") for ends in groups[0]["endpoints"].values() for end in ends.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "flight_0", "flight_1", "rank0.jsonl", "rank0.trace.json", "rank1.jsonl", "rank1.trace.json"]


def test_a_signal_dumps_what_hangs_also_while_the_main_thread_is_in_cpp(ranks, tmp_path):
    def run(rank, size):
        pids = [None] * size
        dist.all_gather_object(pids, os.getpid())
        if rank == 0:
            # As DDP waits: Python's own handlers do not run before it is over.
            dist.all_reduce(torch.ones(100_000), async_op=True).get_future().wait()
            return None
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


def test_telemetry_that_cannot_be_written_is_a_warning(ranks, tmp_path):
    (tmp_path / "file").write_text("")

    def run(rank, size):
        log = io.StringIO()
        logging.getLogger("frogtorch").addHandler(logging.StreamHandler(log))
        group = dist.new_group(backend="frogtorch", pg_options=frogtorch.Options(telemetry=tmp_path / "file" / "down"))
        dist.all_reduce(torch.ones(3), group=group)
        dist.destroy_process_group(group)
        return log.getvalue(), [seen["state"] for seen in group.telemetry.take()]

    for text, states in ranks(2, run):
        assert f"is written to {tmp_path}" in text
        assert states == ["completed"]


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


# The Chrome trace -----------------------------------------------------------------------------------------------


def spans(trace):
    """The complete events by track: name, start and duration in microseconds."""
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in trace["traceEvents"]
             if event["name"] == "thread_name"}
    found = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault((event["pid"], event["tid"], names[event["pid"], event["tid"]]), []).append(
                (event["name"], event["ts"], event["dur"]))
    return found


def test_a_chrome_trace_of_one_collective():
    info = GroupInfo("0", "0#abc", 0, (4, 6, 8), ends={1: (Endpoint("10.0.0.1", 5), Endpoint("10.0.0.2", 6))})
    seen = record(info=info, round=7, combined=102.75)
    seen.read(reading(b"ars.0.0", 1, 100.5, 102.5, 1000, 200))
    seen.read(reading(b"arr.0.1", 1, 103.0, 104.0, 600, 100))
    seen.tally.sends(2, 10, 101.0)
    seen.tally.sends(2, 10, 101.5)
    seen.end = 105.0
    seen.finish(None)
    trace = chrome.trace([seen], 4, 200.0)
    zero = wall_ns(100.0) / 1e3

    def at(seconds):
        return pytest.approx(zero + seconds * 1e6, abs=1)

    found = {track: events for (pid, _, track), events in spans(trace).items() if pid == 4}
    assert found == {
        "collectives": [("all_reduce 7", at(0), 5e6)],
        "phases": [("all_reduce 7: phase 1", at(0), 2.75e6), ("all_reduce 7: phase 2", at(3), 2e6)],
        "from rank 6": [("all_reduce 7: wait", at(0), 0.5e6), ("all_reduce 7: transfer", at(0.5), 3.5e6)],
        "to rank 8": [("all_reduce 7: transfer", at(1), 0.5e6)],
    }
    assert abs(zero * 1e3 + (time.monotonic() - 100) * 1e9 - time.time_ns()) < 1e9  # the wall clock's
    (received,) = [event for event in trace["traceEvents"] if event.get("args", {}).get("local")]
    assert received["args"] == {"bytes": 1600, "local": "10.0.0.1:5", "remote": "10.0.0.2:6"}


def test_what_overlaps_is_on_two_tracks_and_what_is_under_way_ends_now():
    info = GroupInfo("0", "0#abc", 0, (0, 1, 2))
    trace = chrome.trace([record(info=info, round=0), record(info=info, round=1, start=101.0)], 0, 104.0)
    found = [(track, [(name, dur) for name, _, dur in events]) for (_, _, track), events in spans(trace).items()]
    assert found == [("collectives", [("all_reduce 0", 4e6)]), ("collectives", [("all_reduce 1", 3e6)])]


def test_traces_of_all_ranks_merge_into_one_whose_spans_nest(ranks, tmp_path):
    def run(rank, size):
        works = [dist.all_reduce(torch.ones(200_000), async_op=True) for _ in range(8)]
        for work in works:
            work.wait()
        dump.after_failure()
        return eventually((tmp_path / f"flight_{rank}").exists)

    assert ranks(3, run, options=frogtorch.Options(all_reduce="pipelined", chunk_bytes=50_000, dump=tmp_path)) == [
        True] * 3
    run = subprocess.run([sys.executable, "-m", "frogtorch.telemetry", str(tmp_path)], capture_output=True, text=True)
    assert "3 ranks" in run.stdout
    trace = json.loads((tmp_path / "trace.json").read_text())
    tracks = spans(trace)
    assert {(pid, name) for pid, _, name in tracks} >= {(0, "from rank 1"), (0, "to rank 2"), (2, "collectives")}
    assert sum(len(events) for (_, _, name), events in tracks.items() if name == "collectives") == 24
    for events in tracks.values():
        ended = 0.0
        for _, start, duration in sorted(events, key=lambda event: event[1]):
            assert start >= ended - 0.5  # a wall-clock time in microseconds has a quarter of one to spare in a double
            ended = start + duration


# The Flight Recorder --------------------------------------------------------------------------------------------


def verdict(directory):
    """What torch's analyzer makes of the dumps in a directory: its collectives, in order."""
    try:
        arguments = JobConfig().parse_args([str(directory)])
        assert isinstance(arguments, argparse.Namespace)
        details, version = read_dir(arguments)
        # It takes the first for the one that is right, and those of a directory as they come.
        return build_db(dict(sorted(details.items())), arguments, version).collectives
    finally:
        gc.enable()  # the analyzer turns it off


def dumped(rank, tmp_path):
    """Dump now, and wait until it is done."""
    dump.after_failure()
    return eventually((tmp_path / f"flight_{rank}").exists)


def test_the_analyzer_merges_what_all_ranks_did_alike(ranks, tmp_path):
    def run(rank, size):
        dist.all_reduce(torch.ones(10, 3))
        dist.broadcast(torch.ones(7), 1)
        dist.all_gather([torch.ones(2, 2) for _ in range(size)], torch.ones(2, 2))
        dist.all_gather([torch.ones(r + 1) for r in range(size)], torch.ones(rank + 1))
        dist.all_gather_into_tensor(torch.ones(6, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
        dist.reduce(torch.ones(5), 2)
        dist.gather(torch.ones(3), [torch.ones(3) for _ in range(size)] if rank == 1 else None, 1)
        dist.scatter(torch.ones(4), [torch.ones(4) for _ in range(size)] if rank == 0 else None, 0)
        dist.reduce_scatter(torch.ones(2), [torch.ones(2) for _ in range(size)])
        dist.reduce_scatter(torch.ones(rank + 1), [torch.ones(r + 1) for r in range(size)])
        dist.reduce_scatter_tensor(torch.ones(2, 2), torch.ones(6, 2))
        dist.all_to_all([torch.ones(r + 1) for r in range(size)], [torch.ones(rank + 1) for _ in range(size)])
        dist.all_to_all_single(torch.ones(3), torch.ones(3))
        group = dist.distributed_c10d._get_default_group()
        group.allreduce_coalesced([torch.ones(2), torch.ones(3, 3)]).wait()
        group.all_gather_single_coalesced([torch.ones(6), torch.ones(9)], [torch.ones(2), torch.ones(3)]).wait()
        group.allgather_coalesced([[torch.ones(2), torch.ones(3)] for _ in range(size)],
                                  [torch.ones(2), torch.ones(3)]).wait()
        group.monitored_barrier()
        if rank:
            dist.send(torch.ones(5), 0, tag=rank)
        else:
            dist.recv(torch.ones(5), tag=2)  # from any rank
            dist.recv(torch.ones(5), 1, tag=1)
        dist.barrier()
        pair = dist.new_group([0, 2], backend="frogtorch")
        if rank != 1:
            dist.all_reduce(torch.ones(4), group=pair)
        dist.barrier()
        return dumped(rank, tmp_path)

    assert ranks(3, run, options=frogtorch.Options(dump=tmp_path)) == [True] * 3
    found = verdict(tmp_path)
    assert all(one.pass_check for one in found)
    assert [one.collective_name.removeprefix("gloo:") for one in found if one.expected_ranks == {0, 1, 2}] == [
        "all_reduce", "broadcast", "all_gather", "all_gather_v", "all_gather", "reduce", "gather", "scatter",
        "reduce_scatter", "reduce_scatter_v", "reduce_scatter", "all_to_all", "all_to_all", "all_reduce", "all_gather",
        "all_gather", "barrier", "barrier", "barrier"]
    assert sorted((one.pg_desc.partition(", ")[2], one.expected_ranks) for one in found if len(
        one.expected_ranks) == 2) == [
        ("", {0, 2}), ("messages from 1 to 0 with tag 1:default_pg", {0, 1}),
        ("messages from 2 to 0 with tag 2:default_pg", {0, 2})]
    assert found[0].input_sizes == [[10, 3]]
    assert found[0].collective_state == "completed"


@pytest.mark.parametrize(("third", "kind", "culprits"), [
    (lambda: dist.broadcast(torch.ones(4), 1), "COLLECTIVE_TYPE_MISMATCH", {2}),
    (lambda: dist.all_reduce(torch.ones(5)), "SIZE_OR_SYNTAX_MISMATCH", {2}),
    (lambda: dist.all_reduce(torch.ones(4).int()), "COLLECTIVE_DTYPE_MISMATCH", {2}),
])
def test_the_analyzer_finds_the_rank_that_did_something_else(ranks, tmp_path, third, kind, culprits):
    def run(rank, size):
        dist.all_reduce(torch.ones(3))
        with pytest.raises(RuntimeError):
            third() if rank == 2 else dist.all_reduce(torch.ones(4))
        return dumped(rank, tmp_path)

    assert ranks(3, run, options=frogtorch.Options(dump=tmp_path)) == [True] * 3
    good, bad = verdict(tmp_path)
    assert good.pass_check
    assert not bad.pass_check
    assert {rank: one.type_of_mismatch.state.name for rank, one in bad.mismatch_collectives.items()} == dict.fromkeys(
        culprits, kind)


def test_the_analyzer_finds_the_rank_that_did_not_come(world, tmp_path, caplog):
    def run(rank, size):
        dist.all_reduce(torch.ones(3))
        if rank == 1:
            time.sleep(2.5)
        else:
            with pytest.raises(RuntimeError, match="timeout"):
                dist.all_reduce(torch.ones(4))
        return dumped(rank, tmp_path)

    assert world(3, run, timeout=1.0, options=frogtorch.Options(dump=tmp_path)).results() == [True] * 3
    try:
        fr_trace.main([str(tmp_path)])  # what `python -m torch.distributed.flight_recorder.fr_trace` calls
    finally:
        gc.enable()
    assert "Not all ranks joining collective, sequence number: 1" in caplog.text
    assert "collective: gloo:all_reduce" in caplog.text
    assert "missing ranks: {1}" in caplog.text
    good, bad = verdict(tmp_path)
    assert (good.pass_check, good.missing_ranks, bad.missing_ranks) == (True, None, {1})


def test_messages_are_matched_pair_by_pair():
    def member(rank, *records):
        info = GroupInfo("0", "0#abc", rank, (0, 1, 2))
        for number, one in enumerate(records):
            one.info, one.rank, one.id = info, rank, number
        return flight.trace(records)

    def message(kind, peer, number, count=5, state="completed"):
        return record(collective=kind, algorithm=None, op=None, peer=peer, tag=3, number=number, state=state,
                      input_sizes=[[count]] if kind == "send" else [], output_sizes=[[count]])

    def reduced(number):
        return record(round=number, state="completed", input_sizes=[[4]], output_sizes=[[4]])

    dumps = [member(0, reduced(0), message("send", 1, 0), message("send", 1, 1), message("recv", 2, 0), reduced(1)),
             member(1, reduced(0), message("recv", 0, 0), message("recv", 0, 1, state="started"), reduced(1)),
             member(2, reduced(0), message("send", 0, 0), reduced(1), message("send", 1, 0))]
    arguments = JobConfig().parse_args(["."])
    details = {str(rank): {"rank": rank, "entries": one["entries"], "version": one["version"],
                           "pg_config": one["pg_config"]} for rank, one in enumerate(dumps)}
    found = {(one.pg_desc.removesuffix(":undefined"), one.collective_seq_id): (one.pass_check, one.missing_ranks)
             for one in build_db(details, arguments, "2.10").collectives}
    assert found == {
        ("0#abc", 0): (True, None), ("0#abc", 1): (True, None),
        ("0#abc, messages from 0 to 1 with tag 3", 0): (True, None),
        ("0#abc, messages from 0 to 1 with tag 3", 1): (True, None),
        ("0#abc, messages from 2 to 0 with tag 3", 0): (True, None),
        ("0#abc, messages from 2 to 1 with tag 3", 0): (True, {1}),  # the one that nobody received
    }


def test_a_flight_recorder_dump_has_the_fields_of_torchs_own(ranks, tmp_path):
    # torch's own: of gloo, which torch records itself.
    def run(rank, size):
        dist.all_reduce(torch.ones(4))
        dumped(rank, tmp_path)
        os.environ["TORCH_FR_BUFFER_SIZE"] = "10"
        gloo = dist.new_group(backend="gloo")
        dist.all_reduce(torch.ones(4), group=gloo)
        ours = pickle.loads((tmp_path / f"flight_{rank}").read_bytes())
        theirs = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(True, False, False))
        return ours, theirs

    for ours, theirs in ranks(2, run, options=frogtorch.Options(dump=tmp_path)):
        assert ours["version"] == theirs["version"]
        assert set(theirs) - {"entries"} <= set(ours)
        assert set(ours["entries"][0]) >= set(theirs["entries"][-1]) - {"thread_id", "thread_name", "duration_ms"}


# The profiler ---------------------------------------------------------------------------------------------------


def test_the_profiler_sees_the_collectives_of_ddp(ranks):
    def run(rank, size):
        model = DistributedDataParallel(torch.nn.Linear(300, 200))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model(torch.ones(8, 300)).sum().backward()
        return {event.key: event.count for event in profile.key_averages() if event.key.startswith("frogtorch:")}

    assert ranks(2, run) == [{"frogtorch:all_reduce": 1}] * 2


def test_a_range_lasts_until_its_collective_has_ended(ranks):
    def run(rank, size):
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            if rank == 1:
                time.sleep(0.5)
            dist.all_reduce(torch.ones(3))
        (event,) = [event for event in profile.events() if event.name == "frogtorch:all_reduce"]
        return event.time_range.elapsed_us()

    waited, _ = ranks(2, run)
    assert waited > 400_000


def test_a_range_of_what_fails_or_outlives_the_profiler(ranks):
    def run(rank, size):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(rank + 1))
            x = torch.ones(3)
            if rank == 0:
                late = dist.all_reduce(x, async_op=True)
        if rank == 1:
            time.sleep(0.3)
            late = dist.all_reduce(x, async_op=True)
        late.wait()
        return x.tolist(), sum(event.name == "frogtorch:all_reduce" for event in profile.events())

    (first, _), (second, seen) = ranks(2, run)
    assert first == second == [2.0, 2.0, 2.0]
    assert seen == 1


def test_without_a_profiler_no_range_is_made(ranks, monkeypatch):
    def refuse(name):
        raise AssertionError(name)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", refuse)

    def run(rank, size):
        x = torch.ones(3)
        dist.all_reduce(x)
        return x.tolist()

    assert ranks(2, run) == [[2.0, 2.0, 2.0]] * 2


# What it costs --------------------------------------------------------------------------------------------------


def test_recording_costs_little_beside_the_smallest_collective(ranks, capsys):
    def run(rank, size):
        telemetry = dist.distributed_c10d._get_default_group().telemetry
        x = torch.ones(1)
        times = []
        for _ in range(400):
            begin = time.perf_counter()
            dist.all_reduce(x)
            times.append(time.perf_counter() - begin)
        collective = sorted(times)[200]
        # The same calls that a collective of this group makes of it: a read and a send for each phase.
        one = reading(b"ars.0.0", 1, 100.5, 102.5, 4, 4)
        other = reading(b"arr.0.1", 1, 103.0, 104.0, 4, 4)
        begin = time.thread_time()  # without what the machine did meanwhile
        for _ in range(2000):
            seen = record(input_sizes=[x.shape], output_sizes=[x.shape])
            telemetry.begin(seen)
            seen.read(one)
            seen.read(other)
            seen.tally.sends(1, 4, time.monotonic())
            seen.tally.sends(1, 4, time.monotonic())
            seen.end = time.monotonic()
            telemetry.end(seen)
        return collective, (time.thread_time() - begin) / 2000

    for collective, recording in ranks(2, run):
        with capsys.disabled():
            print(f"\n  recording {recording * 1e6:.1f} us of an all-reduce of 4 B, W=2, {collective * 1e6:.0f} us")
        assert recording < collective / 4
