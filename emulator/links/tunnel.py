"""A TUN device as :mod:`emulator.links.delayd` sees it: packets are read from it, held, and written back to it.

Packets come and go with a header (IFF_VNET_HDR, struct virtio_net_hdr of linux/virtio_net.h) that says how they are
joined and that the checksum is still to be made, so the kernel need not take joined segments apart for us. See
Documentation/networking/tuntap.rst.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from collections import deque

from emulator.links.holding import Holding

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6, TUN_F_TSO_ECN = 1, 2, 4, 8
NAME = "delay0"
LARGEST = 10 + 65_536      # bytes of the header and of a packet
SOURCE = slice(10 + 12, 10 + 16)      # where the sender's address is


class Tunnel:
    """The device :data:`NAME`; for each sender's address its law and the packets that wait: (when to let go, packet).

    Raises OSError if there can be no such device.
    """

    def __init__(self) -> None:
        self._device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(self._device, TUNSETIFF,
                    struct.pack("16sH22x", NAME.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(self._device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN)
        self._law: dict[bytes, Holding] = {}
        self._waiting: dict[bytes, deque[tuple[float, bytes]]] = {}

    def fileno(self) -> int:
        """What to wait on for packets."""
        return self._device

    def follow(self, path: str, law: Holding) -> None:
        """Hold the packets that come from the address `path` by `law`, from now on."""
        address = socket.inet_aton(path)
        self._law[address] = law
        self._waiting.setdefault(address, deque())

    def release(self, now: float) -> float | None:
        """Let go what is due; returns when the next packet is due, or None if none waits."""
        soonest = None
        for waiting in self._waiting.values():
            while waiting and waiting[0][0] <= now:
                os.write(self._device, waiting.popleft()[1])
            if waiting and (soonest is None or waiting[0][0] < soonest):
                soonest = waiting[0][0]
        return soonest

    def drain(self) -> None:
        """Take all packets that have come."""
        try:
            for _ in range(64):      # then look what is due: a flood of arrivals must not hold up departures
                packet = os.read(self._device, LARGEST)
                law = self._law.get(packet[SOURCE])
                # Without a law it is the kernel's own, such as IGMP.
                due = None if law is None else law.due(time.monotonic())
                if due is not None:
                    self._waiting[packet[SOURCE]].append((due, packet))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EBADFD:      # not up yet
                raise
