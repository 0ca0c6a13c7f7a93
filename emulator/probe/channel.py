"""Messages between the coordinator and a peer: JSON objects in frames that are bounded, numbered and authenticated.

A frame is a length (4 bytes, network order), an HMAC-SHA-256 and the JSON. The HMAC covers who sent it and the frame's
number on the channel, so that nothing can be replayed, reordered or sent back. Over the pipes of a runtime, which
nobody else can reach, the key is empty.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import select
import struct
import time
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
MOST = 1 << 20
"""Bytes of JSON in a message."""
_HEADER = struct.Struct("!I32s")


class ChannelError(RuntimeError):
    """The other end is gone or silent, or what it sent is no message of ours."""


class ChannelClosedError(ChannelError):
    """The other end has closed the channel."""


class Channel:
    """One end. `read` returns up to so many bytes, none at the end; `write` takes all of them.

    It reads no further than the message that it is to return: who waits on the descriptor is not woken by what was
    read ahead, and what follows the last message is another's to read.
    """

    def __init__(self, read: Callable[[int], bytes], write: Callable[[bytes], object], descriptor: int, key: bytes,
                 side: bytes, name: str) -> None:
        self._read = read
        self._write = write
        self._descriptor = descriptor
        self._key = key
        self._sides = (b"coordinator", b"peer") if side == b"coordinator" else (b"peer", b"coordinator")
        self.name = name
        """Whose the other end is, for errors."""
        self._numbers = [0, 0]      # of frames sent, received
        self._pending = b""

    def fileno(self) -> int:
        """For selectors: readable when something has come."""
        return self._descriptor

    def send(self, message: Message) -> None:
        """Raises ChannelError if the other end is gone."""
        body = json.dumps(message).encode()
        if len(body) > MOST:
            raise ValueError(f"a message of {len(body)} bytes; {MOST} are allowed")
        try:
            self._write(_HEADER.pack(len(body), self._seal(0, body)) + body)
        except OSError as error:
            raise ChannelError(f"{self.name} is gone: {error.strerror or error}") from error

    def receive(self, timeout: float) -> Message:
        """The next message. Raises ChannelError if none comes within `timeout` seconds, or what comes is none."""
        deadline = time.monotonic() + timeout
        while True:
            message = self._next()
            if message is not None:
                return message
            if not select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ChannelError(f"{self.name} did not answer for {timeout:.0f} s")
            try:
                data = self._read(self._missing())
            except OSError as error:
                raise ChannelError(f"{self.name} is gone: {error.strerror or error}") from error
            if not data:
                raise ChannelClosedError(f"{self.name} has ended")
            self._pending += data

    def _missing(self) -> int:
        """Bytes of the message that has begun which have not come yet; of its header, as long as that is not whole."""
        if len(self._pending) < _HEADER.size:
            return _HEADER.size - len(self._pending)
        length, _ = _HEADER.unpack_from(self._pending)
        return _HEADER.size + int(length) - len(self._pending)

    def _next(self) -> Message | None:
        if len(self._pending) < _HEADER.size:
            return None
        length, seal = _HEADER.unpack_from(self._pending)
        if length > MOST:
            raise ChannelError(f"{self.name} announced a message of {length} bytes; {MOST} are allowed")
        body = self._pending[_HEADER.size:_HEADER.size + length]
        if len(body) < length:
            return None
        if not hmac.compare_digest(seal, self._seal(1, body)):
            raise ChannelError(f"{self.name} sent a message with a wrong seal: it has another secret, or somebody "
                               "between changed it")
        self._pending = self._pending[_HEADER.size + length:]
        try:
            message = json.loads(body)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ChannelError(f"{self.name} sent what is no message")
        return message

    def _seal(self, way: int, body: bytes) -> bytes:
        number = self._numbers[way]
        self._numbers[way] += 1
        return hmac.digest(self._key, self._sides[way] + number.to_bytes(8, "big") + body, hashlib.sha256)
