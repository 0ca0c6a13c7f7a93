"""What runs on a host that is probed: a sink and a source of TCP connections, told by a coordinator what to do.

``python -m emulator.probe.peer`` speaks over its standard input and output; on machines that have no coordinator to
start it, :mod:`emulator.probe.meet` makes the channel. It needs Linux 4.18 and the standard library. It connects only
to the addresses that the coordinator names, takes bytes only from connections that show a token of the present trial,
and ends when the coordinator does.

A flow's goodput is what TCP counts as delivered (tcp_info) from one moment at which that changes to another: a lost
segment does not hold up the count, as it would at the receiver, and a late reader cannot make a link look slow.
"""

from __future__ import annotations

import os
import platform
import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path as File
from typing import Any

from emulator.links.ping import undisturbed
from emulator.probe.channel import Channel, ChannelClosedError, ChannelError, Message

TOKEN = 16      # bytes
_CHUNK = memoryview(bytes(1 << 18))
_PATIENCE = 10.0      # seconds for a connection to come about
_ECHO_PATIENCE = 2.0      # seconds, after which an echo is taken for lost
_ECHO_SPACING = 1e-3
_MOST_SINKS = 4096
_ABORT = struct.pack("ii", 1, 0)      # SO_LINGER: what is not sent yet is dropped
# tcp_info of Linux 4.18 and later, from its start up to tcpi_delivered (linux/tcp.h).
_TCP_INFO = struct.Struct("=8B24I4Q6I4QI")
_RTT, _SND_MSS, _SACKED, _TOTAL_RETRANS, _BYTES_ACKED = 23, 10, 13, 31, 34
_DATA_SEGS_OUT, _BUSY, _RWND_LIMITED, _DELIVERED = 41, 43, 44, 46
_POLL = 1e-4      # seconds between two looks at a count that is to change


class Source:
    """One connection that sends, and the marks of its progress."""

    def __init__(self, flow: int, sock: socket.socket) -> None:
        self.flow = flow
        self.sock = sock
        self.marks: list[tuple[float, int]] = []
        self.first: tuple[int, ...] = ()
        self._seen = -1

    def info(self) -> tuple[int, ...]:
        """The fields of tcp_info."""
        data = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        if len(data) < _TCP_INFO.size:
            raise OSError(f"Linux {platform.release()} does not count what TCP delivers; 4.18 or later does")
        return _TCP_INFO.unpack(data)

    def mark(self, overdue: bool) -> bool:
        """Note time and count if the count has just changed, or at the latest when that is `overdue`."""
        info = self.info()
        now = time.monotonic()
        delivered = info[_DELIVERED]
        if self._seen in (-1, delivered) and not overdue:
            self._seen = delivered
            return False
        self._seen = -1
        if not self.marks:
            self.first = info
        self.marks.append((now, delivered))
        return True

    def result(self) -> Message:
        """Goodput from mark to mark, and what else TCP says of the time between the first and the last."""
        last, first = self.info(), self.first
        # The last segment of a write may be short: the mean payload of a segment, of those that are acknowledged.
        in_order = last[_DELIVERED] - last[_SACKED]
        size = min(last[_SND_MSS], last[_BYTES_ACKED] / in_order) if in_order > 0 else last[_SND_MSS]
        busy = last[_BUSY] - first[_BUSY]
        sent = last[_DATA_SEGS_OUT] - first[_DATA_SEGS_OUT]
        return {
            "flow": self.flow,
            "goodput": [(after - before) * size / (then - now) for (now, before), (then, after)
                        in zip(self.marks, self.marks[1:], strict=False)],
            "idle": max(0.0, 1 - busy * 1e-6 / (time.monotonic() - self.marks[0][0])),
            "window_limited": (last[_RWND_LIMITED] - first[_RWND_LIMITED]) / busy if busy else 0.0,
            "resent": (last[_TOTAL_RETRANS] - first[_TOTAL_RETRANS]) / sent if sent else 0.0,
            "rtt": last[_RTT] * 1e-6,
            "congestion": congestion(self.sock),
        }


class Peer:
    """Does what comes over `channel` until it closes; all in one thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._obey)
        self._into = memoryview(bytearray(1 << 20))
        self._expected: set[bytes] = set()
        self._waiting: dict[socket.socket, bytes] = {}      # what came of the token so far
        self._sources: list[Source] = []
        self._address = ""
        self._secret = b""
        self._commands: dict[str, Callable[..., Message | None]] = {
            "open": self._open, "loopback": self._loopback, "echoes": self._echoes, "expect": self._expect,
            "connect": self._connect, "go": self._go, "count": self._count, "stop": self._stop, "end": self._end}
        self._trial: _Run | None = None
        self._ended = False

    def serve(self) -> None:
        """Returns when the coordinator says that this is the end.

        Raises ChannelError if it has failed or is gone, or sends what is no message.
        """
        with self._selector:
            while not self._ended:
                wait = None if self._trial is None else self._trial.wait()
                for key, _ in self._selector.select(wait):
                    key.data()
                if self._trial is not None and self._trial.step():
                    self._channel.send(self._trial.result())
                    self._trial = None

    def _obey(self) -> None:
        message = self._channel.receive(_PATIENCE)
        try:
            answer = self._commands[message.pop("do")](**message)
        except (OSError, KeyError, TypeError, ValueError) as error:
            self._drop_sources()
            answer = {"error": f"{type(error).__name__}: {error}"}
        if answer is not None:
            self._channel.send(answer)

    def _open(self, address: str, secret: str) -> Message:
        """Listen at the address by which the others know this host; who shows the `secret` gets echoes."""
        self._address, self._secret = address, bytes.fromhex(secret)
        listener = socket.create_server((address, 0), backlog=256)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        mirror = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        mirror.bind(listener.getsockname())
        mirror.setblocking(False)
        self._selector.register(mirror, selectors.EVENT_READ, lambda: self._reflect(mirror))
        return {"port": listener.getsockname()[1], "machine": _machine(), "kernel": platform.release(),
                "congestion": congestion(listener)}

    def _loopback(self, seconds: float) -> Message:
        return {"goodput": _loopback(seconds)}

    def _reflect(self, mirror: socket.socket) -> None:
        with suppress(BlockingIOError):
            data, asker = mirror.recvfrom(64)
            if data.startswith(self._secret):
                mirror.sendto(data, asker)

    def _echoes(self, targets: list[list[Any]], count: int) -> Message:
        """Seconds of `count` echoes from each (address, port), from program to program; lost ones are left out."""
        took: list[list[float]] = [[] for _ in targets]
        place = {(address, port): number for number, (address, port) in enumerate(targets)}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((self._address, 0))
            for number in range(count):
                question = self._secret + number.to_bytes(4, "big")
                sent: dict[tuple[str, int], float] = {}
                begun = time.monotonic()
                # Each is asked a little later, so that one answer does not wait for another.
                moments = [(begun + _ECHO_SPACING * turn, target) for turn, target in enumerate(place)]
                while moments or sent:
                    now = time.monotonic()
                    if moments and now >= moments[0][0]:
                        _, target = moments.pop(0)
                        sent[target] = time.monotonic()
                        sock.sendto(question, target)
                        continue
                    sock.settimeout(max(1e-6, (moments[0][0] if moments else begun + _ECHO_PATIENCE) - now))
                    try:
                        data, target = sock.recvfrom(64)
                    except TimeoutError:
                        if not moments:
                            break
                        continue
                    if target in sent and data == question:
                        took[place[target]].append(time.monotonic() - sent.pop(target))
        return {"seconds": took}

    def _expect(self, tokens: list[str]) -> Message:
        self._expected = {bytes.fromhex(token) for token in tokens}
        return {}

    def _connect(self, flows: list[Message]) -> Message:
        """Connect, and show the tokens; sends nothing more yet."""
        for flow in flows:
            for token in flow["tokens"]:
                sock = socket.create_connection((flow["address"], flow["port"]), timeout=_PATIENCE,
                                                source_address=(self._address, 0))
                self._sources.append(Source(flow["flow"], sock))
                sock.sendall(bytes.fromhex(token))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
                sock.setblocking(False)
        return {}

    def _go(self) -> Message:
        """Send all that goes, until it is time to stop."""
        for source in self._sources:
            self._selector.register(source.sock, selectors.EVENT_WRITE, lambda source=source: self._push(source))
        return {}

    def _push(self, source: Source) -> None:
        if source not in self._sources:      # dropped since it was found ready
            return
        try:
            _send(source.sock)
        except OSError:      # the sink is gone; what was counted will show it
            self._selector.unregister(source.sock)

    def _count(self, seconds: float, batches: int) -> None:
        """Look at the progress for so long; the answer comes then."""
        self._trial = _Run(self._sources, seconds, batches)

    def _stop(self) -> Message:
        self._drop_sources()
        return {}

    def _end(self, error: str | None = None) -> None:
        """Go home; rank 0 says so to machines, for which it may have failed."""
        if error is not None:
            raise ChannelError(f"rank 0 has ended the probe: {error}")
        self._ended = True

    def _drop_sources(self) -> None:
        for source in self._sources:
            if source.sock in self._selector.get_map():
                self._selector.unregister(source.sock)
            source.sock.close()
        self._sources = []

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:      # who came has gone again, or this process has no more descriptors: its sender will say so
            return
        if len(self._waiting) >= _MOST_SINKS:
            sock.close()
            return
        sock.setblocking(False)
        self._waiting[sock] = b""
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._admit(sock))

    def _admit(self, sock: socket.socket) -> None:
        """Read the token; who has none is dropped."""
        try:
            data = sock.recv(TOKEN - len(self._waiting[sock]))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        shown = self._waiting[sock] = self._waiting[sock] + data
        if data and len(shown) < TOKEN:
            return
        del self._waiting[sock]
        if data and shown in self._expected:
            self._expected.discard(shown)
            self._selector.modify(sock, selectors.EVENT_READ, lambda: self._swallow(sock))
        else:
            self._close(sock)

    def _swallow(self, sock: socket.socket) -> None:
        try:
            # MSG_TRUNC: counted, not copied (tcp(7)).
            if sock.recv_into(self._into, len(self._into), socket.MSG_TRUNC):
                return
        except BlockingIOError:
            return
        except OSError:      # the sender has dropped it, which is how a trial ends
            pass
        self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        sock.close()


class _Run:
    """Counting under way: when to look at each connection, and what was seen."""

    def __init__(self, sources: list[Source], seconds: float, batches: int) -> None:
        self._sources = sources
        begun = time.monotonic()
        self._moments = [begun + seconds * number / batches for number in range(batches + 1)]
        self._slack = seconds / batches / 4
        self._left: list[Source] = []      # that are still to be looked at, at the moment that has come
        self._processors = (0, 0)      # ticks that were idle, ticks in all, at the first moment

    def wait(self) -> float:
        """Seconds until there is something to look at."""
        return _POLL if self._left else max(0.0, self._moments[0] - time.monotonic())

    def step(self) -> bool:
        """Look at what is due; whether the trial is over."""
        now = time.monotonic()
        if not self._left and now >= self._moments[0]:
            if self._sources and not self._sources[0].marks:
                self._processors = _processors()
            self._left = list(self._sources)
        if self._left:
            overdue = now > self._moments[0] + self._slack
            self._left = [source for source in self._left if not source.mark(overdue)]
            if not self._left:
                del self._moments[0]
        return not self._moments

    def result(self) -> Message:
        idle, ticks = (after - before for after, before in zip(_processors(), self._processors, strict=True))
        return {"connections": [source.result() for source in self._sources],
                "busy": 1 - idle / ticks if ticks else 0.0}


def _send(sock: socket.socket) -> None:
    with suppress(BlockingIOError):
        sock.send(_CHUNK)


def congestion(sock: socket.socket) -> str:
    """The congestion control of a socket."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def _processors() -> tuple[int, int]:
    """Ticks in which the machine's processors were idle, and ticks in all (proc(5), /proc/stat)."""
    ticks = [int(word) for word in File("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _machine() -> str:
    """What hosts on one kernel have in common."""
    return File("/proc/sys/kernel/random/boot_id").read_text().strip()


def _loopback(seconds: float) -> float:
    """Goodput of one connection over loopback, one thread at both ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            one.setblocking(False)
            into = memoryview(bytearray(1 << 20))
            begun = time.monotonic()
            count = 0
            while time.monotonic() < begun + seconds:
                _send(one)
                count += other.recv_into(into, len(into), socket.MSG_TRUNC)
            return count / (time.monotonic() - begun)


def serve(channel: Channel) -> None:
    """Be a peer, before all other programs where that is granted; see :meth:`Peer.serve`."""
    with undisturbed():
        Peer(channel).serve()


def main() -> None:
    """A peer over standard input and output, until the input ends."""
    out = os.dup(1)
    os.dup2(2, 1)      # nothing but messages goes there
    with suppress(ChannelClosedError):
        serve(Channel(lambda most: os.read(0, most), lambda data: _write_all(out, data), 0, b"", b"peer",
                      "the coordinator"))


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left):]


def new_token() -> str:
    """A token for one connection, in hex."""
    return secrets.token_hex(TOKEN)


if __name__ == "__main__":
    try:
        main()
    except (ChannelError, KeyboardInterrupt) as error:
        sys.exit(f"{platform.node()}: {error}")
