"""What loss, jitter and short queues do to a connection, by laws that others have published or that the links follow.

**Loss** holds a connection to a rate, that which its congestion control comes to in the long run at this share p of
lost packets: one loss in 1/p packets, a saw tooth. From a loss at a window of W segments on it has W₀ = beta·W, and
gains alpha segments a round trip: 1 and 1/2 for Reno (Mathis, Semke, Mahdavi and Ott, *Computer Communication Review*
27(3), 1997), 3(1 - beta)/(1 + beta) and 0.7 for CUBIC, which thereby is as fast as Reno (RFC 9438, section 4.3), or
faster: by its cubic curve with C = 0.4, where a window of that is larger (section 5.1). For windows of hundreds of
segments that is all. Three things that the RFC's means leave out make a difference below that, and are counted here:

- *The path is full.* A sender keeps its own queue short and its window does not grow while that holds it back (Linux:
  TCP small queues, ``tcp_is_cwnd_limited``), so W ends where the path is full; but every loss still costs what is
  missing until it is full again.
- *Recovery takes a round trip*, in which W₀ segments go and the window does not grow (RFC 6937; Padhye and others,
  SIGCOMM 1998, equation 13).
- *Windows are whole segments*: beta·W is rounded down, on average by a half.

The round trip is an empty path's, and a segment's way through its rate. Measured at 7 MB/s and 7 ms with 1, 0.3, 0.1
and 0.03 % lost: 2.32, 4.38, 6.24 and 6.94 MB/s (here 2.24, 4.35, 6.28, 6.77; the means of the RFC, up to the path's
rate: 2.65, 4.84, 7, 7); at 20 MB/s with 0.1 %: 7.94 (7.93; 8.38). All this counts on losses that are repaired by fast
retransmission: above :data:`MOST_LOSS` timeouts rule (Padhye, figure 7), and there is no prediction. It is of long
transfers: a message that is short against 1/p segments is hit seldom, but then hard; its prediction is a mean of
neither.

**Jitter** is the links' own law (:mod:`emulator.links.holding`): every packet is held for the delay and a share of the
jitter drawn from a normal distribution, cut off at four standard deviations, and none overtakes another.

**A queue** that is full loses packets, and the window falls to a share beta of what is in flight. The rate does not
suffer as long as that still fills the path: ``beta · (rate · round trip + queue) >= rate · round trip`` (Appenzeller,
Keslassy and McKeown, SIGCOMM 2004, section 2, has it for Reno's half). What a shorter queue costs is not known here.
"""

from __future__ import annotations

import math
from random import Random

from emulator.ethernet import FRAME

MOST_LOSS = 0.02
"""Share of the packets lost up to which the laws hold."""

BETA = {"cubic": 0.7, "reno": 0.5}
"""What is left of the window after a loss, of the congestion controls whose laws are known (RFC 9438, RFC 5681)."""

CUT = 4
"""Standard deviations at which jitter is cut off."""


def lossy_rate(loss: float, round_trip: float, congestion: str, limit: float = math.inf,
               window: float = math.inf) -> float:
    """Bytes per second on the wire that loss lets a connection have; `loss` and `round_trip` are above 0.

    `limit` is the rate of the path alone, bytes per second on the wire, and `window` the most bytes in flight.
    """
    trip = round_trip + FRAME / limit
    most = min(limit * trip, window) / FRAME
    beta = BETA[congestion]
    alpha = 1.0 if congestion == "reno" else 3 * (1 - beta) / (1 + beta)
    segments = _additive(loss, alpha, beta, most)
    if congestion == "cubic":
        segments = max(segments, _cubic(loss, trip, beta, most))
    return segments * FRAME / trip


def _additive(loss: float, alpha: float, beta: float, most: float) -> float:
    """Segments in a round trip, where the window gains `alpha` in each until a loss or until it is `most`.

    A cycle is W₀ segments of recovery, (W² - W₀²) / 2 alpha in which the window grows, and what is left of 1/p at W.
    """
    b, c = beta * (0.5 + alpha), 0.25 + alpha + 2 * alpha / loss   # of the square equation for W if nothing is left
    high = min(most, (math.sqrt(b * b + (1 - beta * beta) * c) - b) / (1 - beta * beta))
    low = max(beta * high - 0.5, min(high, 2.0))
    left = 1 / loss - low - (high * high - low * low) / (2 * alpha)
    return 1 / loss / (1 + (high - low) / alpha + max(0.0, left) / high)


def _cubic(loss: float, trip: float, beta: float, most: float) -> float:
    """Segments in a round trip, where the window grows from beta·W to W by a cubic curve in K seconds.

    K³ = W(1 - beta)/C, and the mean until then is W(3 + beta)/4; then comes a loss, or what is left of 1/p at `most`.
    """
    c, mean = 0.4, (3 + beta) / 4
    high = (c / (1 - beta)) ** 0.25 * (trip / loss / mean) ** 0.75
    if high <= most:
        return high * mean
    seconds = (most * (1 - beta) / c) ** (1 / 3)
    return 1 / (1 + loss * most * (1 - mean) * seconds / trip) * most


def least_queue(rate: float, round_trip: float, congestion: str) -> float:
    """Bytes of the queue that keeps a path of `rate` bytes per second busy after every loss."""
    return (1 / BETA[congestion] - 1) * rate * round_trip


def held(delay: float, jitter: float, packets: int, apart: float, random: Random) -> float:
    """Seconds for which the last of `packets` is held that come `apart` seconds after each other.

    It leaves when it is due, or the latest of those before it. A packet more than eight deviations before it cannot be
    later.
    """
    span = 2 * CUT * jitter
    matter = packets if not apart else min(packets, 1 + int(span / apart))
    latest = 0.0
    for i in range(matter):
        spread = max(-CUT, min(CUT, random.gauss(0, 1)))
        latest = max(latest, delay + spread * jitter - i * apart)
    return latest
