"""Every arm trains, in small: what has to be alike on all ranks is, and as many bytes travel as theory says."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from scenarios.arms import ARMS, Keeps
from scenarios.predict import predict
from scenarios.ranks import Place, Ranks
from scenarios.scenario import load
from scenarios.workloads import DIGITS

W = 3
STEPS = 4
K = 2
GRADIENTS = DIGITS.gradient_bytes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What each arm's ranks ended with, by arm and bucket view: four steps of digits on three ranks."""
    store = tmp_path_factory.mktemp("arms") / "store"
    with Ranks([Place(rank=rank, world_size=W, host="here", store=str(store), arms=tuple(ARMS), timeout=60.0)
                for rank in range(W)]) as ranks:
        return {(arm, view): ranks.tell("train", arm=arm, steps=STEPS, bucket_view=view, workload="digits",
                                        **({"k": K} if arm == "every_k" else {}))
                for view in (False, True) for arm in ARMS}


def named(keeps):
    return [arm.name for arm in ARMS.values() if arm.keeps is keeps]


def test_the_founding_experiments_arms_are_here_and_what_they_keep():
    assert {"gloo", "shard", "direct", "faithful", "gloo2", "gloo4"} <= set(named(Keeps.SUM))
    assert set(named(Keeps.SYNCHRONY)) == {"fp16-gloo", "fp16-shard", "powersgd-gloo", "powersgd-shard"}
    assert named(Keeps.NOTHING) == ["fresh_only", "every_k"]


@pytest.mark.slow
def test_ranks_are_alike_in_every_arm_but_those_that_skip(trained):
    for (arm, view), ranks in trained.items():
        hashes = {rank["parameters_sha256"] for rank in ranks}
        if ARMS[arm].keeps is not Keeps.NOTHING:
            assert len(hashes) == 1, (arm, view)
    # Steps 0 and 2 are everybody's, steps 1 and 3 each rank's own.
    assert len({rank["parameters_sha256"] for rank in trained["every_k", False]}) == W


@pytest.mark.slow
def test_arms_that_keep_the_sum_end_with_one_loss_with_and_without_bucket_view(trained):
    losses = {round(rank["held_out_loss"], 4) for (arm, view), ranks in trained.items()
              if ARMS[arm].keeps is Keeps.SUM for rank in ranks}
    assert len(losses) == 1
    # Sums in rank order have the same bits, however they came about. (Here W = 3: not so DDP's own, which divides
    # before it adds, and a hook's, which divides after.)
    for view in (False, True):
        in_rank_order = {trained[arm, view][0]["parameters_sha256"]
                         for arm in ("shard", "pipelined", "whole", "direct")}
        assert len(in_rank_order) == 1
        assert trained["gloo", view][0]["parameters_sha256"] == trained["gloo4", view][0]["parameters_sha256"]
    # Half precision is another sum, if not by much.
    halved = trained["fp16-gloo", False][0]
    assert halved["parameters_sha256"] != trained["gloo", False][0]["parameters_sha256"]
    assert halved["held_out_loss"] == pytest.approx(trained["gloo", False][0]["held_out_loss"], rel=0.01)


@pytest.mark.slow
def test_bytes_are_as_theory_says(trained):
    # In gradients that a rank receives in the four steps; every_k exchanges in two of them.
    by_slices, whole = STEPS * 2 * (W - 1) / W, STEPS * (W - 1)
    expected = {"shard": by_slices, "pipelined": by_slices, "direct": by_slices, "fp16-shard": by_slices / 2,
                "whole": whole, "faithful": whole, "every_k": whole / K}
    for (arm, view), ranks in trained.items():
        for rank in ranks:
            received = sum(seen["payload_received"] for seen in rank["telemetry"]
                           if seen["collective"] in ("all_reduce", "faithful", "fresh_only", "every_k"))
            if arm in expected:
                assert received == pytest.approx(expected[arm] * GRADIENTS, rel=1e-4), (arm, view)
            elif arm == "fresh_only":  # one bucket a step and peer that was taken, and nothing for one that was not
                assert received == GRADIENTS * sum(count - 1 for count in rank["incorporated"])


@pytest.mark.slow
def test_what_was_incorporated_is_recorded(trained):
    for view in (False, True):
        assert all(rank["incorporated"] == [W] * STEPS for rank in trained["faithful", view])
        assert all(rank["incorporated"] == [W, 1, W, 1] for rank in trained["every_k", view])
        assert all(rank["incorporated"] is None for rank in trained["gloo", view])
        for rank in trained["fresh_only", view]:
            assert len(rank["incorporated"]) == STEPS
            assert all(1 <= count <= W for count in rank["incorporated"])
            assert [1 + len(seen["incorporated"]) for seen in rank["telemetry"]
                    if seen["collective"] == "fresh_only"] == rank["incorporated"]


@pytest.mark.slow
def test_half_precision_is_predicted_with_half_the_bytes():
    # Buckets whose bytes are no multiple of four once they are halved, as the founding workload's first.
    ten = load(Path(__file__).parents[2] / "scenarios/ten-arms.yaml")
    predicted = {p.arm: p for p in predict(ten)}
    for arm in ("gloo", "shard"):
        half, whole = predicted[f"fp16-{arm}"], predicted[arm]
        assert [2 * received for received in half.received_bytes] == pytest.approx(whole.received_bytes, abs=16)
        assert half.seconds == pytest.approx(whole.seconds / 2, rel=0.02)


def test_gloos_connections_are_as_many_as_the_arm_says(tmp_path):
    # Of a pair of ranks, over what the default group and the first arm have.
    counted = {}
    for arms in (("gloo",), ("gloo", "gloo4")):
        with Ranks([Place(rank=rank, world_size=2, host="here", store=str(tmp_path / str(len(arms))), arms=arms,
                          timeout=60.0) for rank in range(2)]) as ranks:
            ranks.tell("all_reduce", arm="gloo", nbytes=4, repetition=0)
            counted[len(arms)] = established(ranks._processes[0].pid)
    assert counted[2] - counted[1] == 4


def established(pid):
    """Established TCP connections of a process: Gloo's, as its c10d store is a file."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):      # closed meanwhile
            inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[3] == "01" and fields[9] in inodes for fields in lines)  # 01: TCP_ESTABLISHED
