"""What a full TCP segment is on an Ethernet of MTU 1500, IPv4, with timestamps. Rates count frames, as HTB does."""

HEADERS = 14 + 20 + 20 + 12
"""Bytes of an Ethernet, an IPv4 and a TCP header with timestamps (RFC 7323): a frame without payload."""
SEGMENT = 1500 - 20 - 20 - 12
"""Bytes of payload in a full segment: 1448."""
FRAME = HEADERS + SEGMENT
"""Bytes of its frame: 1514."""
PAYLOAD = SEGMENT / FRAME
"""The share of a link's rate that is payload."""
