"""What a full TCP segment is on an Ethernet of MTU 1500, IPv4, with timestamps, and how a rate lets frames pass.

Rates count frames, as the kernel's HTB does.
"""

import math

HEADERS = 14 + 20 + 20 + 12
"""Bytes of an Ethernet, an IPv4 and a TCP header with timestamps (RFC 7323): a frame without payload."""
SEGMENT = 1500 - 20 - 20 - 12
"""Bytes of payload in a full segment: 1448."""
FRAME = HEADERS + SEGMENT
"""Bytes of its frame: 1514."""
PAYLOAD = SEGMENT / FRAME
"""The share of a link's rate that is payload."""

BURST_SECONDS = 1e-3
"""Seconds of its rate that a path's limit lets pass at once. Shorter, and a timer that fires late loses rate for good;
longer, and a small message crosses an idle path for free."""
SHARED_BURST_SECONDS = 4e-3
"""The same of a limit that paths share. They cross two and more of these in a row, the way up of one host and the way
down of another, and each loses what its own timer is late."""


def burst(rate: float, shared: bool = False) -> int:
    """Bytes that a limit of `rate` bytes per second lets pass at once, of one path or `shared`: at least a frame."""
    return max(FRAME, math.ceil(rate * (SHARED_BURST_SECONDS if shared else BURST_SECONDS)))
