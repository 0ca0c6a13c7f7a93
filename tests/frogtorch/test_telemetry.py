"""Records of collectives, the ring of the last ones, and the profiler's ranges."""

import io
import logging
import time

import pytest
import torch
import torch.distributed as dist
from helpers import eventually, group, reading, record
from torch.nn.parallel import DistributedDataParallel

import frogtorch
from frogtorch.memory.cells import Span, Tally
from frogtorch.telemetry.ring import Ring

# Records ----------------------------------------------------------------------------------------------------------


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


def test_the_root_of_a_reduce_reads_sums_in_its_second_phase(ranks):
    def run(rank, size):
        dist.reduce(torch.ones(30_000), 1)
        (seen,) = dist.distributed_c10d._get_default_group().telemetry.take()
        return seen

    for rank, seen in enumerate(ranks(3, run)):
        # A third of 120 kB: contributions to our slice from both others; at the root the two sums of the others, too.
        phases = {phase: {int(peer): one[phase] and one[phase]["bytes"] for peer, one in seen["peers"].items()}
                  for phase in ("phase1", "phase2")}
        others = [peer for peer in range(3) if peer != rank]
        assert phases == {"phase1": dict.fromkeys(others, 40_000),
                          "phase2": dict.fromkeys(others, 40_000 if rank == 1 else None)}
        assert (seen["phase2"] is None) == (rank != 1)


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


# The ring ---------------------------------------------------------------------------------------------------------


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


# The profiler -----------------------------------------------------------------------------------------------------


def test_the_profiler_sees_the_collectives_of_ddp(ranks):
    def run(rank, size):
        model = DistributedDataParallel(torch.nn.Linear(300, 200))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model(torch.ones(8, 300)).sum().backward()
        return {event.key: event.count for event in profile.key_averages() if event.key.startswith("frogtorch:")}

    assert ranks(2, run) == [{"frogtorch:all_reduce": 1}] * 2  # DDP waits in C++


def test_the_profiler_sees_a_caller_wait(ranks):
    def run(rank, size):
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            if rank == 1:
                assert eventually(lambda: len(group()._memory.peers[0].inbox))  # rank 0 has begun
                time.sleep(1)
            dist.all_reduce(torch.ones(3))
        return {event.name: event.time_range.elapsed_us() for event in profile.events()
                if event.name.startswith("frogtorch:")}

    waited, _ = ranks(2, run)
    assert sorted(waited) == ["frogtorch:all_reduce", "frogtorch:all_reduce wait"]
    assert waited["frogtorch:all_reduce wait"] > 500_000  # of a second's microseconds


def test_a_profile_may_end_before_a_collective_and_a_collective_may_fail_in_it(ranks):
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

    assert ranks(2, run) == [([2.0, 2.0, 2.0], 2), ([2.0, 2.0, 2.0], 1)]


def test_without_a_profiler_no_range_is_made(ranks, monkeypatch):
    def refuse(name):
        raise AssertionError(name)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", refuse)

    def run(rank, size):
        x = torch.ones(3)
        dist.all_reduce(x)
        return x.tolist()

    assert ranks(2, run) == [[2.0, 2.0, 2.0]] * 2


# What it costs ----------------------------------------------------------------------------------------------------


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
        took = []
        for _ in range(20):  # of which the least is without what the machine did meanwhile
            begin = time.thread_time()
            for _ in range(100):
                seen = record(input_sizes=[x.shape], output_sizes=[x.shape])
                telemetry.begin(seen)
                seen.read(one)
                seen.read(other)
                seen.tally.sends(1, 4, time.monotonic())
                seen.tally.sends(1, 4, time.monotonic())
                seen.end = time.monotonic()
                telemetry.end(seen)
            took.append((time.thread_time() - begin) / 100)
        return collective, min(took)

    for collective, recording in ranks(2, run):
        with capsys.disabled():
            print(f"\n  recording {recording * 1e6:.1f} us of an all-reduce of 4 B, W=2, {collective * 1e6:.0f} us")
        assert recording < collective / 4
