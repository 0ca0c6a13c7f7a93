"""T(n) = a + b·n in two regimes, never one line through both.

*a* is the median time of the intercept size, where latency is all there is. *b* is the Theil-Sen slope over the large
sizes, where bandwidth is. A single line through both gets the slope wrong: what binds a small exchange (Gloo's
handshake for every segment, say) stops binding long before the large sizes.

Neither estimate assumes a distribution. A median's interval comes from the order statistics; the slope's from a
bootstrap over blocks: the repetitions of a campaign ran interleaved on one state of the network, so what they have in
common is resampled with them, and the ratio of two arms resamples both arms' blocks together.

scipy is imported by the functions that need it: it takes a second, and most commands fit nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.records import Measurement

LEVEL = 0.95
RESAMPLES = 2000
FEWEST = 6
"""Blocks below which nothing is said at 95 %: the range of five values covers their median in 94 % of all samples."""
JOINT: Any = "joint"  # the intercept is the median of y - b·x. Any: scipy's type stubs do not know the value

Floats = NDArray[np.float64]
Block = tuple[int, int]
"""(campaign, repetition)"""


class FitError(ValueError):
    """Measurements that give no line: says which, and what is missing."""


@dataclass(frozen=True)
class Estimate:
    """A value from `n` measurements, with its 95 % interval; None where n is too small for one."""

    value: float
    interval: tuple[float, float] | None
    n: int

    @property
    def reach(self) -> float:
        """How far the interval reaches from the value, as a share of it; infinite where there is none."""
        return math.inf if self.interval is None else max(abs(end / self.value - 1) for end in self.interval)


@dataclass(frozen=True)
class Residual:
    """What the line leaves of one measurement: seconds - (intercept + slope · nbytes)."""

    nbytes: int
    campaign: int
    repetition: int
    seconds: float


@dataclass(frozen=True)
class Line:
    """The line of the large sizes. Its intercept places it; it is not a: it extrapolates over three decades."""

    slope: Estimate
    """Seconds per byte."""
    intercept: float
    residuals: tuple[Residual, ...]


def median(values: Sequence[float]) -> Estimate:
    """The median, and the narrowest symmetric pair of order statistics that covers it in 95 % of all samples.

    The number of values below the true median is Binomial(n, 1/2), whatever the distribution, so the k-th smallest
    and the k-th largest value enclose it with probability 1 - 2 P(X < k) (Conover, Practical Nonparametric
    Statistics, section 3.2). Below 6 values even the extremes cover less than 95 %: no interval.
    """
    from scipy import stats

    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    if n == 0:
        raise FitError("no values to take the median of")
    # The largest k with P(X <= k - 1) <= (1 - LEVEL) / 2; ppf gives the smallest count at which that is exceeded.
    k = int(stats.binom.ppf((1 - LEVEL) / 2, n, 0.5))
    interval = (float(ordered[k - 1]), float(ordered[n - k])) if k > 0 else None
    return Estimate(float(np.median(ordered)), interval, n)


def intercept(measurements: Iterable[Measurement], nbytes: int) -> Estimate:
    """Return a: the median time, in seconds, of the size `nbytes` measured at life size (speed-up 1)."""
    times = [m.seconds for m in measurements if m.nbytes == nbytes and m.speedup == 1]
    if not times:
        raise FitError(f"a needs measurements of {nbytes} bytes at speed-up 1, and there are none")
    return median(times)


def line(measurements: Iterable[Measurement], sizes: Iterable[int], seed: int = 0) -> Line:
    """Fit the Theil-Sen line over `sizes` (bytes): the median of the slopes of all pairs of measurements.

    The same seed gives the same interval. Raises FitError when a size has no measurement.
    """
    from scipy import stats

    sizes = sorted(set(sizes))
    chosen = [m for m in measurements if m.nbytes in sizes]
    table = _table(chosen, sizes, _blocks(chosen))
    fit = stats.theilslopes([m.seconds for m in chosen], [m.nbytes for m in chosen], method=JOINT)
    slope, offset = float(fit.slope), float(fit.intercept)
    interval = _bootstrap(chosen, lambda rows: _theil_sen(table[rows], sizes), seed)
    residuals = tuple(Residual(m.nbytes, m.campaign, m.repetition, m.seconds - (offset + slope * m.nbytes))
                      for m in chosen)
    return Line(Estimate(slope, interval, len(chosen)), offset, residuals)


def ratio(numerator: Iterable[Measurement], denominator: Iterable[Measurement], sizes: Iterable[int],
          seed: int = 0, level: float = LEVEL) -> Estimate:
    """Return b of one arm over b of another in the same world; both arms' blocks are resampled together.

    `level` is what the interval covers.
    """
    sizes = sorted(set(sizes))
    above = [m for m in numerator if m.nbytes in sizes]
    below = [m for m in denominator if m.nbytes in sizes]
    both = above + below
    blocks = _blocks(both)
    over, under = _table(above, sizes, blocks), _table(below, sizes, blocks)

    def quotient(rows: NDArray[np.int64]) -> Floats:
        return _theil_sen(over[rows], sizes) / _theil_sen(under[rows], sizes)

    return Estimate(float(quotient(np.arange(len(blocks)))), _bootstrap(both, quotient, seed, level), len(both))


def ratio_of_medians(numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]],
                     seed: int = 0) -> Estimate:
    """Return the median of all values of one arm over that of another; row i of both is what block i measured.

    The interval resamples blocks, with both arms' values in them. Raises FitError unless both have the same blocks.
    """
    over, under = (np.asarray(rows, dtype=np.float64) for rows in (numerator, denominator))
    if over.ndim != 2 or under.ndim != 2 or len(over) != len(under) or not over.size or not under.size:
        raise FitError(f"a ratio of medians needs the same blocks of both arms, not {over.shape} and {under.shape}")

    def quotient(rows: NDArray[np.int64]) -> Floats:
        above, below = (np.median(values[rows].reshape(*rows.shape[:-1], -1), axis=-1) for values in (over, under))
        return np.asarray(above / below, dtype=np.float64)

    blocks = list(range(len(over)))
    return Estimate(float(quotient(np.asarray(blocks))), _resampled([blocks], quotient, seed), over.size)


def predicted(times: Mapping[int, float], sizes: Iterable[int]) -> float:
    """Return b, in seconds per byte, of predicted times (seconds by bytes): the same estimator over the same sizes."""
    from scipy import stats

    sizes = sorted(set(sizes))
    missing = [size for size in sizes if size not in times]
    if missing or len(sizes) < 2:
        raise FitError(f"b needs a time at two sizes or more; asked for {sizes}, without a time: {missing}")
    return float(stats.theilslopes([times[size] for size in sizes], sizes).slope)


def _blocks(measurements: Iterable[Measurement]) -> dict[Block, int]:
    """Return each block's row, in the order of (campaign, repetition)."""
    return {block: row for row, block in enumerate(sorted({(m.campaign, m.repetition) for m in measurements}))}


def _table(measurements: Iterable[Measurement], sizes: Sequence[int], blocks: Mapping[Block, int]) -> Floats:
    """Return life-size seconds, a row a block and a column a size; NaN where a block has no such size."""
    if len(sizes) < 2:
        raise FitError(f"a slope needs two sizes or more, not {list(sizes)}")
    table = np.full((len(blocks), len(sizes)), np.nan)
    for m in measurements:
        cell = blocks[m.campaign, m.repetition], sizes.index(m.nbytes)
        if not np.isnan(table[cell]):
            raise FitError(f"campaign {m.campaign}, repetition {m.repetition} measured {m.arm} at W={m.world_size}, "
                           f"{m.nbytes} bytes twice: a block holds each point once")
        table[cell] = m.seconds
    missing = [size for size, column in zip(sizes, table.T, strict=True) if np.isnan(column).all()]
    if missing:
        raise FitError(f"b needs measurements of all its sizes, and there are none of {missing} bytes")
    return table


def _theil_sen(table: Floats, sizes: Sequence[int]) -> Floats:
    """Return the median slope of all pairs over the last two axes (block, size); the axes before them are resamples.

    scipy.stats.theilslopes' estimator, for all resamples in one go.
    """
    slopes = [(table[..., :, None, j] - table[..., None, :, i]) / (sizes[j] - sizes[i])
              for i, j in combinations(range(len(sizes)), 2)]
    flat = np.stack(slopes, axis=-1).reshape(*table.shape[:-2], -1)
    middle = np.nanmedian if np.isnan(flat).any() else np.median  # the first is many times slower
    return np.asarray(middle(flat, axis=-1), dtype=np.float64)


def _bootstrap(measurements: Iterable[Measurement], statistic: Callable[[NDArray[np.int64]], Floats],
               seed: int, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the percentile interval of `statistic` (of rows of the table) over resampled blocks.

    Blocks are resampled within their campaign, so that every resample holds every size. None when a campaign has fewer
    than :data:`FEWEST` blocks.
    """
    campaigns: dict[int, list[int]] = defaultdict(list)
    for (campaign, _), row in _blocks(measurements).items():
        campaigns[campaign].append(row)
    return _resampled(list(campaigns.values()), statistic, seed, level)


def _resampled(groups: list[list[int]], statistic: Callable[[NDArray[np.int64]], Floats],
               seed: int, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the percentile interval of `statistic` over rows resampled within each of `groups`."""
    from scipy import stats

    if min(map(len, groups)) < FEWEST:
        return None
    result = stats.bootstrap(
        groups, lambda *rows, axis: statistic(np.concatenate(rows, axis=axis)), vectorized=True,
        paired=False, n_resamples=RESAMPLES, batch=200, confidence_level=level, method="percentile",
        random_state=np.random.default_rng(seed))
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
