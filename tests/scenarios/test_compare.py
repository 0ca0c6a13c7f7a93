import math

import pytest

from scenarios.compare import BLIND, CLOSED_FORM, CompareError, Errors, errors, join
from scenarios.records import Measurement, Prediction

DIGEST = "5" * 64
HOSTS = ("a", "b")


def joined(predictions, measurements):
    return join(predictions, measurements, DIGEST)


def predictions(nbytes, seconds, closed=1.0, arm="shard", workload="all_reduce", hosts=HOSTS):
    point = {"arm": arm, "world_size": 2, "hosts": hosts, "workload": workload, "nbytes": nbytes}
    point |= {"date": "2026-01-02T03:04:05+00:00", "topology_sha256": "7" * 64}
    both = [Prediction(**point, basis="blind", seconds=seconds)]
    return both if closed is None else [*both, Prediction(**point, basis="closed form", seconds=closed)]


def measurements(nbytes, *seconds, arm="shard", workload="all_reduce", hosts=HOSTS, digest=DIGEST):
    return [Measurement(arm=arm, world_size=2, hosts=hosts, workload=workload, nbytes=nbytes, repetition=r, seconds=t,
                        clock_seconds=t, rank_seconds=(t, t), prediction=digest) for r, t in enumerate(seconds)]


def test_a_points_error_is_the_logarithm_of_measured_over_predicted():
    (row,) = joined(predictions(8, 2.0, 8.0), measurements(8, 5.0, 4.0, 1.0))
    assert row.measured.value == 4.0
    assert row.error(BLIND) == pytest.approx(math.log(2))
    assert row.error(CLOSED_FORM) == pytest.approx(-math.log(2))


def test_the_summary_by_hand():
    # |ln| of 1.1, 1/1.2, 1.3, 1.0, 1.5 against predictions of 1: 0.0953, 0.1823, 0.2624, 0, 0.4055.
    ratios = (1.1, 1 / 1.2, 1.3, 1.0, 1.5)
    rows = joined([p for n in range(5) for p in predictions(n, 1.0, 2.0)],
                [m for n, ratio in enumerate(ratios) for m in measurements(n, ratio)])
    blind, closed = errors(rows)
    assert blind == Errors("shard", "blind", 5, *(pytest.approx(v, abs=1e-4) for v in (0.1823, 0.4055, 0.4055)))
    # Against 2: ln of 1.818, 2.4, 1.538, 2, 1.333.
    assert closed == Errors("shard", "closed form", 5, *(pytest.approx(v, abs=1e-4) for v in (0.5978, 0.8755, 0.8755)))


def test_the_90th_percentile_is_the_error_of_a_point():
    # 20 points with errors 1 to 20 %: 18 of them do not exceed the 18th.
    rows = joined([p for n in range(1, 21) for p in predictions(n, 1.0)],
                [m for n in range(1, 21) for m in measurements(n, math.exp(n / 100))])
    assert errors(rows)[0].p90 == pytest.approx(0.18)


def test_arms_are_summarised_apart():
    rows = joined(predictions(8, 1.0, arm="gloo") + predictions(8, 1.0), measurements(8, 2.0, arm="gloo")
                + measurements(8, 4.0))
    assert {(e.arm, e.basis): round(e.median, 4) for e in errors(rows)} == {
        ("gloo", "blind"): 0.6931, ("gloo", "closed form"): 0.6931, ("shard", "blind"): 1.3863,
        ("shard", "closed form"): 1.3863, ("all arms", "blind"): 1.0397, ("all arms", "closed form"): 1.0397}


def test_measurements_that_answer_other_predictions_are_refused():
    with pytest.raises(CompareError, match=r"1 of 3 measurements answer other predictions: shard, W=2, all_reduce of "
                                           r"8 bytes, repetition 0, carries 666666666666…, .* is 555555555555…"):
        joined(predictions(8, 1.0), measurements(8, 1.0, 2.0) + measurements(8, 3.0, digest="6" * 64))


def test_every_gap_in_the_grid_is_named():
    with pytest.raises(CompareError) as refused:
        joined(predictions(8, 1.0) + predictions(16, 1.0) + predictions(64, 1.0, None),
             measurements(8, 1.0) + measurements(32, 1.0) + measurements(64, 1.0))
    assert str(refused.value).splitlines()[1:] == [
        "  not measured: shard, W=2, all_reduce of 16 bytes",
        "  not predicted (blind): shard, W=2, all_reduce of 32 bytes",
        "  not predicted (closed form): shard, W=2, all_reduce of 32 bytes",
        "  not predicted (closed form): shard, W=2, all_reduce of 64 bytes"]


def test_a_training_step_needs_no_closed_form():
    rows = joined(predictions(8, 1.0, None, workload="training"), measurements(8, 1.1, workload="training"))
    assert rows[0].error(CLOSED_FORM) is None
    assert [e.basis for e in errors(rows)] == ["blind"]


def test_other_hosts_are_another_point():
    with pytest.raises(CompareError, match="predicted on a, b, but measured on a, c"):
        joined(predictions(8, 1.0), measurements(8, 1.0, hosts=("a", "c")))


def test_two_predictions_of_one_basis_are_refused():
    with pytest.raises(CompareError, match="shard, W=2, all_reduce of 8 bytes has two predictions, blind"):
        joined(predictions(8, 1.0) + predictions(8, 2.0), measurements(8, 1.0))


def test_measurements_at_other_speed_ups_are_kept_apart():
    faster = [m.model_copy(update={"speedup": 5.0}) for m in measurements(8, 7.0, 9.0)]
    (row,) = joined(predictions(8, 1.0), measurements(8, 2.0) + faster)
    assert row.measured.value == 2.0
    assert [m.seconds for m in row.measurements] == [2.0]
    assert [m.seconds for m in row.scaled] == [7.0, 9.0]
    with pytest.raises(CompareError, match="not measured: shard, W=2, all_reduce of 8 bytes"):
        joined(predictions(8, 1.0), faster)
