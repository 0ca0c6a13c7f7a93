"""Who watches the wire: every message between ranks on loopback, read from the packets alone.

The packets of a private network namespace are captured by a packet socket (packet(7)), the TCP streams put together
again from their sequence numbers, and the messages cut out of them by what the two wire formats say: Gloo's 48 bytes in
front of each (``gloo/transport/tcp/pair.h``, Op), and the frames that :mod:`frogtorch.memory.wire` describes. None of
its code is used.
"""

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import threading
from collections import defaultdict

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_IPV4 = 0x0800  # ETH_P_IP
_PACKET, _STATISTICS, _IGNORE_OUTGOING = 263, 6, 23  # SOL_PACKET and two of its options
_RCVBUFFORCE = 33
_BUFFER = 512 << 20  # of packets that nobody has looked at yet: more than any test sends

_WRAP = (1 << 32) - 1  # where sequence numbers begin again

FRAMES = {1: "ASK", 2: "CELL", 3: "UNASKED", 4: "OFFER", 5: "CREDIT", 6: "GIVE_UP", 7: "BYE", 8: "DATA"}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def private_network():
    """This thread, and what it forks, in a network of its own that has nothing but loopback."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        _checked(_libc.unshare(_NEW_NETWORK))
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        _checked(_libc.setns(home, _NEW_NETWORK))
        os.close(home)


class Observer:
    """Captures while it is entered. Then `streams` has the messages of every direction of every connection.

    A direction is (port of the sender, port of the receiver).
    """

    def __init__(self):
        self.streams = defaultdict(Stream)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_IPV4))
        self._socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _BUFFER)
        self._socket.setsockopt(_PACKET, _IGNORE_OUTGOING, 1)  # or every packet would be seen twice
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()
        _, lost = struct.unpack("II", self._socket.getsockopt(_PACKET, _STATISTICS, 8))
        self._socket.close()
        assert not lost, f"{lost} packets were not seen"

    def _watch(self):
        packet = memoryview(bytearray(1 << 17))
        while True:
            try:
                size = self._socket.recv_into(packet)
            except TimeoutError:
                if self._over.is_set():  # and nothing is left
                    return
                continue
            if packet[9] != socket.IPPROTO_TCP:
                continue
            tcp = packet[(packet[0] & 15) * 4:size]
            source, target, sequence = struct.unpack_from("!HHI", tcp)
            flags, data = tcp[13], tcp[(tcp[12] >> 4) * 4:]
            stream = self.streams[source, target]
            if flags & 2:  # SYN
                stream.begin(sequence + 1, caller=not flags & 16)
            elif data:
                stream.segment(sequence, data)


class Stream:
    """One direction of a connection: its messages, as (run, kind, name, bytes of payload), in the order of the wire.

    The run is what tells collectives of one connection apart: Gloo's tag, or the round.
    """

    def __init__(self):
        self.messages = []
        self._caller = False
        self._between = False  # what it wants next is the header of a message
        self._next = 0  # number of the byte that comes next
        self._early = {}
        self._parser = self._parse()
        self._want = next(self._parser)
        self._got = bytearray()

    def begin(self, sequence, caller):
        """It begins with byte `sequence`; `caller` is who opens the connection."""
        self._next, self._caller = sequence & _WRAP, caller

    def segment(self, sequence, data):
        """A TCP segment's data: what follows is taken, what was seen is dropped, what is early waits."""
        ahead = (sequence - self._next) & _WRAP
        if ahead > _WRAP >> 1:  # sent again
            data, ahead = data[_WRAP + 1 - ahead:], 0
        if ahead:
            self._early[sequence] = bytes(data)
            return
        self._next = (self._next + len(data)) & _WRAP
        self._take(data)
        if self._next in self._early:
            self.segment(self._next, memoryview(self._early.pop(self._next)))

    @property
    def whole(self):
        """Whether it ends where a message ends."""
        return self._between and not self._got and not self._early

    def _take(self, data):
        while data:
            if self._want < 0:
                taken = min(-self._want, len(data))
                self._want += taken
            else:
                taken = min(self._want - len(self._got), len(data))
                self._got += data[:taken]
            data = data[taken:]
            while self._want == len(self._got):  # both are 0 at the end of a payload, and of one that is empty
                got, self._got = bytes(self._got), bytearray()
                self._want = self._parser.send(got)

    def _parse(self):
        """Yields how many bytes it needs, and gets them; or how many it does not want to see, as a negative number."""
        begins = yield 4
        if begins == b"FROG":
            yield from self._frames()
        else:
            yield from self._gloo(begins)

    def _gloo(self, begins):
        if self._caller:
            yield 4  # it says which of the listener's pairs it is for, in 8 bytes
            begins = b""
        while True:
            self._between = True
            preamble = begins + (yield 48 - len(begins))
            self._between, begins = False, b""
            nbytes, operation, slot, _, length, _ = struct.unpack("<6Q", preamble)
            kind = {1: "DATA", 2: "SEND_READY", 3: "RECEIVE_READY"}[operation]
            run = slot >> 24 & 0xFFFFFFFF  # a slot: 8 bits of the collective, 32 of the tag, 24 of its own
            if kind == "DATA":
                assert nbytes == 48 + length
                self.messages.append((run, kind, "", length))
                yield -length
            else:
                self.messages.append((run, kind, str(length), 0))

    def _frames(self):
        _, length = struct.unpack("!HH", (yield 4))
        yield length + 32 + 32 * self._caller  # greeting and proof; the caller's choice
        under_way = {}
        while True:
            self._between = True
            kind, named, said, length, number, total, offset = struct.unpack("!BBBxIQQQ", (yield 32))
            self._between = False
            name = (yield named).decode()
            yield said
            kind = FRAMES[kind]
            if offset == 0:
                self.messages.append((number, kind, name, total if length else 0))
            else:  # a message of several frames is one, where it began
                assert under_way.pop((number, name)) == offset
            if offset + length < total and length:
                under_way[number, name] = offset + length
            yield -length
