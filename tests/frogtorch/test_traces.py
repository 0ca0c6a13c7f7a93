"""What a dump holds, as others read it: Perfetto's Chrome traces, and the analyzer of torch's Flight Recorder."""

import argparse
import gc
import json
import os
import pickle
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from helpers import brief_timeout, eventually, passed, reading, record, tell
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir

import frogtorch
from frogtorch.memory.endpoint import Endpoint
from frogtorch.telemetry import GroupInfo, chrome, dump, flight
from frogtorch.telemetry.record import wall_ns


def dumped(rank, tmp_path):
    """Dump now, and wait until it is done."""
    dump.after_failure()
    return eventually((tmp_path / f"flight_{rank}").exists)


# Chrome -----------------------------------------------------------------------------------------------------------


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
        return dumped(rank, tmp_path)

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


# The Flight Recorder ----------------------------------------------------------------------------------------------


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
            for other in (0, 2):
                passed(f"rank {other} is told")
        else:
            brief_timeout(1.0)
            with pytest.raises(RuntimeError, match="timeout"):
                dist.all_reduce(torch.ones(4))
            tell(f"rank {rank} is told")
        return dumped(rank, tmp_path)

    assert world(3, run, options=frogtorch.Options(dump=tmp_path)).results() == [True] * 3
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
