import random

import pytest
from scipy import stats

from scenarios import fit
from scenarios.records import Measurement

SIZES = (2_100_000, 4_200_000, 8_400_000, 16_900_000)


def measurement(nbytes, repetition, seconds, arm="shard", campaign=0, speedup=10.0):
    return Measurement(arm=arm, world_size=4, hosts=("a", "b", "c", "d"), workload="all_reduce", nbytes=nbytes,
                       speedup=speedup, repetition=repetition, seconds=seconds, clock_seconds=seconds / speedup,
                       rank_seconds=(seconds / speedup,) * 4, campaign=campaign, prediction="0" * 64)


def exact(a=0.5, b=1e-6, repetitions=6, **fields):
    return [measurement(n, r, a + b * n, **fields) for r in range(repetitions) for n in SIZES]


def noisy(seed, a=0.5, b=1e-6, arm="shard", repetitions=8):
    """A block shares a factor, as repetitions on one state of the machine do; each time has noise of its own."""
    rng = random.Random(seed)
    return [measurement(n, r, (a + b * n) * block * rng.gauss(1, 0.01), arm)
            for r in range(repetitions) for block in [rng.gauss(1, 0.02)] for n in SIZES]


def test_exact_times_give_exactly_a_and_b():
    line = fit.line(exact(), SIZES)
    assert line.slope.value == pytest.approx(1e-6, rel=1e-12)
    assert line.slope.interval == pytest.approx((1e-6, 1e-6), rel=1e-12)
    assert line.intercept == pytest.approx(0.5)
    assert line.slope.n == 24
    assert [residual.seconds for residual in line.residuals] == pytest.approx([0] * 24, abs=1e-9)


def test_a_residual_is_what_the_line_leaves_of_its_own_measurement():
    times = exact()
    times[5] = measurement(SIZES[1], 1, times[5].seconds + 3)
    left = [(r.nbytes, r.repetition, round(r.seconds, 6)) for r in fit.line(times, SIZES).residuals if r.seconds > 1]
    assert left == [(SIZES[1], 1, 3.0)]


def test_an_outlier_does_not_move_the_slope():
    times = exact()
    times[-1] = measurement(SIZES[-1], 5, 100 * times[-1].seconds)
    assert fit.line(times, SIZES).slope.value == pytest.approx(1e-6, rel=1e-9)


def test_small_sizes_are_in_no_slope():
    small = [measurement(4096, r, 9.0, speedup=1.0) for r in range(6)]
    assert fit.line(exact() + small, SIZES).slope.value == pytest.approx(1e-6)


def test_the_slope_is_the_median_of_the_pairs():
    # Slopes by hand: (3-1)/1, (9-1)/2, (9-3)/1 = 2, 4, 6.
    assert fit.predicted({1: 1.0, 2: 3.0, 3: 9.0}, (1, 2, 3)) == 4
    times = [measurement(n, 0, t) for n, t in ((1, 1.0), (2, 3.0), (3, 9.0))]
    assert fit.line(times, (1, 2, 3)).slope == fit.Estimate(4.0, None, 3)  # one block


def test_a_is_the_median_at_life_size():
    times = [measurement(4096, r, t, speedup=1.0) for r, t in enumerate((5.0, 1.0, 2.0, 3.0, 4.0, 6.0))]
    faster = [measurement(4096, r, 99.0, speedup=10.0) for r in range(6)]
    assert fit.intercept(times + faster + exact(), 4096) == fit.Estimate(3.5, (1.0, 6.0), 6)
    with pytest.raises(fit.FitError, match="4096 bytes at speed-up 1"):
        fit.intercept(faster, 4096)


# Ranks of the order statistics for a 95 % interval of the median, as published tables of the binomial have them.
@pytest.mark.parametrize(("n", "low", "high"),
                         [(6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15), (40, 14, 27)])
def test_the_interval_of_a_median_is_a_pair_of_order_statistics(n, low, high):
    values = [float(value) for value in range(n, 0, -1)]
    assert fit.median(values).interval == (low, high)


def test_five_values_have_no_95_percent_interval():
    assert fit.median([1.0, 2.0, 3.0, 4.0, 5.0]) == fit.Estimate(3.0, None, 5)  # min to max covers 93.75 %


def test_five_blocks_have_none_either():
    assert fit.line(noisy(1, repetitions=5), SIZES).slope.interval is None
    low, high = fit.line(noisy(1, repetitions=6), SIZES).slope.interval
    assert low < high


def test_the_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    covered = sum(low <= 1e-6 <= high for seed in range(25)
                  for low, high in [fit.line(noisy(seed), SIZES).slope.interval])
    assert covered >= 19  # 24 if it were exact; a percentile bootstrap of 8 blocks is a little narrow


def test_the_bootstrap_repeats_with_its_seed():
    times = noisy(1)
    assert fit.line(times, SIZES, seed=7) == fit.line(times, SIZES, seed=7)
    assert fit.line(times, SIZES, seed=7).slope.interval != fit.line(times, SIZES, seed=8).slope.interval


def test_the_slope_agrees_with_scipy():
    times = noisy(3)
    assert fit.line(times, SIZES).slope.value == stats.theilslopes(
        [m.seconds for m in times], [m.nbytes for m in times]).slope
    # The ratio goes through our own vectorised estimator.
    double = [m.model_copy(update={"seconds": 2 * m.seconds, "arm": "gloo"}) for m in times]
    flat = exact(b=1e-6)
    assert fit.ratio(double, flat, SIZES).value == pytest.approx(2 * fit.line(times, SIZES).slope.value / 1e-6)


def test_the_ratio_resamples_both_arms_blocks_together():
    # Each block is slow or fast as a whole, for both arms: their ratio is 3 in every block, whatever the block.
    blocks = (1.0, 1.3, 0.8, 1.1, 0.9, 1.6)
    shard = [measurement(n, r, 1e-6 * n * f) for r, f in enumerate(blocks) for n in SIZES]
    gloo = [measurement(n, r, 3e-6 * n * f, "gloo") for r, f in enumerate(blocks) for n in SIZES]
    ratio = fit.ratio(gloo, shard, SIZES)
    assert ratio.value == pytest.approx(3)
    assert ratio.interval == pytest.approx((3, 3))
    low, high = fit.line(shard, SIZES).slope.interval
    assert high / low > 1.1


def test_blocks_are_resampled_within_their_campaign():
    # Each campaign has half of the sizes: resampled across campaigns, many resamples would lack a slope.
    halves = [m.model_copy(update={"campaign": 0 if m.nbytes <= SIZES[1] else 1}) for m in exact()]
    assert fit.line(halves, SIZES).slope.interval == pytest.approx((1e-6, 1e-6))


def test_sizes_without_measurements_are_named():
    with pytest.raises(fit.FitError, match=r"none of \[16900000\] bytes"):
        fit.line([m for m in exact() if m.nbytes != SIZES[-1]], SIZES)
    with pytest.raises(fit.FitError, match=r"without a time: \[16900000\]"):
        fit.predicted(dict.fromkeys(SIZES[:-1], 1.0), SIZES)


def test_a_block_that_holds_a_point_twice_is_refused():
    with pytest.raises(fit.FitError, match="repetition 0 measured shard at W=4, 2100000 bytes twice"):
        fit.line([*exact(), exact()[0]], SIZES)
