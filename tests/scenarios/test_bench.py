"""The benchmark beside gloo: what it computes of what it timed, and one small run."""

import json

import pytest

from scenarios import bench, cli
from scenarios.fit import FitError, ratio_of_medians


def answers(*, seconds, cpu, publish=()):
    """One block's answers: the same of every one of two ranks, but for their seconds."""
    return [{"seconds": times, "cpu": cpu,
             "telemetry": [{"collective": "all_reduce", "publish": p} for p in publish]} for times in seconds]


def test_a_time_is_the_mean_over_ranks_and_the_median_over_operations():
    samples = {(4_000_000, arm): bench._Samples() for arm in ("gloo", "shard")}
    for _ in range(6):
        samples[4_000_000, "gloo"].add(answers(seconds=[[0.020, 0.030, 0.090], [0.040, 0.050, 0.110]], cpu=0.06))
        samples[4_000_000, "shard"].add(answers(seconds=[[0.010, 0.018, 0.5], [0.010, 0.022, 0.5]], cpu=0.03,
                                                publish=[0.001, 0.002, 0.009]))
    gloo, shard = (bench._result(2, arm, 4_000_000, samples, False) for arm in ("gloo", "shard"))
    assert (gloo.seconds, shard.seconds) == (pytest.approx(0.040), pytest.approx(0.020))
    assert gloo.operations == shard.operations == 18
    assert (gloo.ratio, shard.ratio) == (None, pytest.approx(0.5))
    assert shard.ratio_interval == pytest.approx((0.5, 0.5))  # all blocks are alike
    assert (gloo.cpu_seconds, shard.cpu_seconds) == (pytest.approx(0.04), pytest.approx(0.02))  # two ranks, three times
    assert (gloo.publish_seconds, shard.publish_seconds) == (None, 0.002)
    assert shard.algbw == pytest.approx(200e6)
    assert shard.busbw == pytest.approx(200e6)  # 2 (W-1) / W is 1 at W = 2
    four = bench._result(4, "shard", 4_000_000, samples, False)
    assert four.busbw == pytest.approx(300e6)


def test_the_ratios_interval_holds_the_true_ratio_and_widens_with_noise():
    quiet = [[1.0 + 0.001 * i] for i in range(20)]
    noisy = [[1.0 + 0.2 * (i % 5 - 2)] for i in range(20)]
    reference = [[2.0]] * 20
    of_quiet, of_noisy = ratio_of_medians(quiet, reference), ratio_of_medians(noisy, reference)
    for found in (of_quiet, of_noisy):
        low, high = found.interval
        assert low <= found.value <= high
    assert of_noisy.value == pytest.approx(0.5)
    assert of_quiet.interval[1] - of_quiet.interval[0] < of_noisy.interval[1] - of_noisy.interval[0]


def test_a_ratio_needs_the_same_blocks_of_both_arms():
    with pytest.raises(FitError, match="same blocks"):
        ratio_of_medians([[1.0]], [[1.0], [2.0]])


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--world", "1"], "2 to 64"),
    (["--sizes", "6B"], "whole number of fp32"),
    (["--sizes", "16"], "write a size"),
    (["--repetitions", "1"], "2 or more"),
    (["--ddp", "--sizes", "4B"], "not allowed with"),
])
def test_bad_arguments_are_refused_with_what_to_write(arguments, complaint, capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", *arguments])
    assert complaint in capsys.readouterr().err


def test_a_small_run_writes_a_line_a_result(tmp_path, capsys):
    file = tmp_path / "bench.jsonl"
    assert cli.main(["bench", "--world", "2", "--sizes", "4B", "64KiB", "--arm", "shard", "whole", "--repetitions", "2",
                     "--json", str(file)]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["nbytes"], line["arm"]) for line in lines] == [
        (nbytes, arm) for nbytes in (4, 65536) for arm in ("gloo", "shard", "whole")]
    for line in lines:
        assert line["operations"] == 2 * 50
        assert line["cpu_seconds"] > 0
        assert line["algbw"] == pytest.approx(line["nbytes"] / line["seconds"])
        if line["arm"] != "gloo":
            assert line["ratio"] > 0
            assert line["publish_seconds"] < line["seconds"]
    assert "64 KiB" in capsys.readouterr().out
