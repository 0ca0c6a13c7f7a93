"""What loss, jitter and short queues do to a connection, by laws that others have published or that the links follow.

**Loss** holds a connection to a rate, that which its congestion control comes to in the long run at this share of lost
packets. CUBIC's is RFC 9438, section 5, with its C = 0.4 and beta = 0.7; Reno's the square root of Mathis, Semke,
Mahdavi and Ott (*Computer Communication Review* 27(3), 1997), as the RFC has it; CUBIC is never below Reno. Both count
on losses that are repaired by fast retransmission: above :data:`MOST_LOSS` timeouts rule (Padhye and others, SIGCOMM
1998, figure 7), and there is no prediction. Both are of long transfers: a message that is short against 1/loss segments
is hit seldom, but then hard; its prediction is a mean of neither.

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


def window(loss: float, round_trip: float, congestion: str) -> float:
    """Segments that a connection has in flight on average, where a share `loss` of its packets is lost."""
    reno = math.sqrt(1.5 / loss)
    if congestion == "reno":
        return reno
    c, beta = 0.4, BETA["cubic"]
    cubic = (c * (3 + beta) / (4 * (1 - beta))) ** 0.25 * (round_trip / loss) ** 0.75
    return max(reno, cubic)


def lossy_rate(loss: float, round_trip: float, congestion: str) -> float:
    """Bytes per second on the wire that loss lets a connection have. `loss` and `round_trip` are above 0."""
    return window(loss, round_trip, congestion) * FRAME / round_trip


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
