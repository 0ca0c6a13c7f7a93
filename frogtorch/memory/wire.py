"""The wire format: frames of a fixed header, a name, what the round is, and a payload.

====  ======  ==========================================================================================
byte  type    field
====  ======  ==========================================================================================
0     u8      kind of frame (:class:`Kind`)
1     u8      length of the name
2     u8      length of *what*: the collective, operation and dtype of the sender's round
3     u8      0
4     u32     length of the payload in this frame, at most :data:`LONGEST_FRAME`
8     u64     round; for a message, which is in none, the number that :func:`message_round` gives it; for a question
              and its answer, that of the question (:mod:`.questions`)
16    u64     size of the whole cell, in bytes
24    u64     where in the cell this payload begins
32            name, what, payload
====  ======  ==========================================================================================

Network byte order. A name is its parts joined by dots. Nothing on the wire is ever unpickled or evaluated, and every
length is checked against its bound before a byte of what it announces is taken.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import struct
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from frogtorch.collectives.interest import FRAME_BYTES, SMALL_BYTES, Interest
from frogtorch.effects import Name
from frogtorch.memory.faults import ProtocolError

VERSION = 3

HEADER = struct.Struct("!BBBxIQQQ")

ATOMIC_BYTES = SMALL_BYTES
"""A payload up to this size is taken in one piece from the receive buffer, which therefore holds any such frame."""

LONGEST_FRAME = 8 * FRAME_BYTES
"""Most payload in a frame."""

FRAME_MAX = HEADER.size + 2 * 255 + ATOMIC_BYTES
"""Bytes of the longest frame that is taken in one piece."""

TEXT_MAX = 1024
"""Most bytes of the reason in a GIVE_UP frame."""

MESSAGES = 1 << 63
"""Rounds from here on are messages."""

QUERY = struct.Struct("!qqqQ")
VERSION_OF = struct.Struct("!qqQ")
"""Payloads of a question and its answer: see :mod:`.questions`."""


class Kind(IntEnum):
    """What a frame is for."""

    ASK = 1
    """Read request: send me the cell, now or when it is published. `total` is the size I expect."""
    CELL = 2
    """A part of a cell that was asked for."""
    UNASKED = 3
    """A small cell, whole, that nobody asked for. It counts against the sender's credit."""
    OFFER = 4
    """I have published this cell, of `total` bytes, and it does not travel unasked."""
    CREDIT = 5
    """Of the unasked cells that you sent, I have used up `total` bytes in all: see :mod:`.credit`."""
    GIVE_UP = 6
    """My round failed: nothing more comes from me in it, and I read nothing more. The payload says why. Of a message
    (only then there is a name) it says so to the one rank at its other end."""
    BYE = 7
    """I leave the group. Everything I published has been sent."""
    DATA = 8
    """A part of a parcel, which is sent without having been asked for, whatever its size: see :mod:`.parcels`."""

    NEWER = 9
    """What is the newest cell of this name that you have published? The payload is a question."""
    SAME = 10
    """Nothing newer than you have, or nothing that you could use. The payload says which is the newest."""
    NEWEST = 11
    """This one, as the payload says, and its bytes come as CELL frames."""


KINDS = frozenset(Kind)

LADEN = frozenset({Kind.CELL, Kind.UNASKED, Kind.DATA})
"""Frames that carry (a part of) a cell or a parcel."""

PAYLOADS = {Kind.NEWER: QUERY.size, Kind.SAME: VERSION_OF.size, Kind.NEWEST: VERSION_OF.size}
"""Bytes of payload of a frame that always has as many."""

NAMED = LADEN | PAYLOADS.keys() | {Kind.ASK, Kind.OFFER}
"""Frames that are about a cell or a parcel, and say its name."""


class Frame(NamedTuple):
    """A header and the two texts behind it; `length` bytes of payload follow."""

    kind: int
    name: bytes
    what: bytes
    length: int
    round: int
    total: int
    offset: int


class Message(NamedTuple):
    """What the name of a message's cell says: its tag, how many went that way with this tag before it, and to whom."""

    tag: int
    number: int
    to: int


MESSAGE = "msg"
"""Kind of the cells that are messages."""


def message_round(source: int, message: Message) -> int:
    """What stands where other cells have their round: the same number at both ends, and for no other message.

    The top bit, and 63 bits of a hash: of a thousand million messages under way at a time, two would meet with a
    chance of one in 18 (n²/2 in 2⁶³), and their names would still differ.
    """
    text = f"{source}.{message.tag}.{message.number}.{message.to}".encode()
    return MESSAGES | int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def message_name(message: Message) -> bytes:
    """The name of a message's cell, in its wire form."""
    return f"{MESSAGE}.{message.tag}.{message.number}.{message.to}".encode()


_MESSAGE_NAME = re.compile(rb"msg\.([0-9]{1,20})\.([0-9]{1,20})\.([0-9]{1,10})")


def decode_message(name: bytes) -> Message:
    """What the name of a message's cell says. Raises ProtocolError."""
    found = _MESSAGE_NAME.fullmatch(name)
    if found is None:
        raise ProtocolError(f"{name[:80]!r} is no message's name")
    return Message(*map(int, found.groups()))


@lru_cache(maxsize=4096)
def encode_name(name: Name) -> bytes:
    """``("ars", 0, 3)`` as ``b"ars.0.3"``. Raises ValueError for one that takes more than 255 bytes."""
    text = ".".join(map(str, name)).encode()
    if not 0 < len(text) < 256:
        raise ValueError(f"a cell's name takes 1 to 255 bytes, not {len(text)}: {name!r}")
    return text


def encode(kind: Kind, number: int, name: bytes = b"", what: bytes = b"", total: int = 0, offset: int = 0,
           length: int = 0) -> bytes:
    """A frame without its payload."""
    return HEADER.pack(kind, len(name), len(what), length, number, total, offset) + name + what


def decode(data: memoryview) -> tuple[Frame, int] | None:
    """The frame that begins `data` and where its payload begins; None if it is not there in full.

    Raises ProtocolError for what cannot be a frame.
    """
    if len(data) < HEADER.size:
        return None
    kind, named, said, length, number, total, offset = HEADER.unpack_from(data)
    if kind not in KINDS:
        raise ProtocolError(f"a frame of kind {kind} is none of FrogNet Memory's")
    if (length > LONGEST_FRAME or offset + length > total or (kind == Kind.GIVE_UP and length > TEXT_MAX)
            or (kind == Kind.UNASKED and not length == total <= ATOMIC_BYTES)):
        raise ProtocolError(f"a {Kind(kind).name} frame with {length} bytes at {offset} of {total} is out of bounds")
    if kind in PAYLOADS:
        if not length == total == PAYLOADS[Kind(kind)]:
            raise ProtocolError(f"a {Kind(kind).name} frame has {PAYLOADS[Kind(kind)]} bytes of payload, not {length}")
    elif length and kind not in LADEN and kind != Kind.GIVE_UP:
        raise ProtocolError(f"a {Kind(kind).name} frame carries no payload, and this one has {length} bytes")
    if not named and kind in NAMED:
        raise ProtocolError(f"a {Kind(kind).name} frame has no name in it")
    body = HEADER.size + named + said
    if len(data) < body:
        return None
    middle = HEADER.size + named
    return Frame(kind, bytes(data[HEADER.size:middle]), bytes(data[middle:body]), length, number, total, offset), body


# The greeting that opens a connection: the caller's, the answer to it, and the choice of one of several connections.

GREETING = struct.Struct("!4sHH")
MAGIC = b"FROG"
PROOF_BYTES = 32
GREETING_MAX = 4096
"""Most bytes of a greeting's JSON."""


class Greeting(NamedTuple):
    """Who opens a connection, and which cells it takes unasked."""

    rank: int
    size: int
    interests: frozenset[Interest]


def _proof(token: bytes, body: bytes, to: int, answers: bytes) -> bytes:
    return hmac.digest(token, hashlib.sha256(answers).digest() + to.to_bytes(4, "big") + body, hashlib.sha256)


def greet(token: bytes, rank: int, size: int, to: int, interests: Iterable[Interest], answers: bytes = b"") -> bytes:
    """The greeting of `rank` for `to`, with the proof that its sender knows the group's `token`.

    The proof holds for the greeting that this one `answers`, and no two greetings are alike.
    """
    body = json.dumps({"rank": rank, "size": size, "interests": sorted(map(list, interests), key=str),
                       "nonce": secrets.token_hex(16)}).encode()
    return GREETING.pack(MAGIC, VERSION, len(body)) + body + _proof(token, body, to, answers)


def greeting_length(data: bytes) -> int | None:
    """Bytes of the greeting that begins `data`; None if that cannot be told yet. Raises ProtocolError."""
    if not MAGIC.startswith(data[:4]) and data[:4] != MAGIC:
        raise ProtocolError("that is no FrogNet Memory connection")
    if len(data) < GREETING.size:
        return None
    _, version, length = GREETING.unpack_from(data)
    if version != VERSION:
        raise ProtocolError(f"it speaks version {version} of FrogNet Memory's protocol, this is version {VERSION}")
    if length > GREETING_MAX:
        raise ProtocolError(f"a greeting of {length} bytes is longer than {GREETING_MAX}")
    return GREETING.size + int(length) + PROOF_BYTES


def admit(data: bytes, token: bytes, rank: int, size: int, answers: bytes = b"") -> Greeting:
    """The greeting in `data`, for `rank` of a group of `size`; raises ProtocolError unless its sender is a member.

    `answers` is our own greeting, if this is the answer to one.
    """
    body, proof = data[GREETING.size:-PROOF_BYTES], data[-PROOF_BYTES:]
    # First of all, and in constant time: nothing of a stranger's greeting is looked at.
    if not hmac.compare_digest(proof, _proof(token, body, rank, answers)):
        raise ProtocolError("it does not know the secret of this run of the group")
    try:
        said = json.loads(body)
        theirs = Greeting(int(said["rank"]), int(said["size"]),
                          frozenset(Interest(str(kind), None if last is None else int(last))
                                    for kind, last in said["interests"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"its greeting cannot be read: {error!r}") from None
    if theirs.size != size or not 0 <= theirs.rank < size or theirs.rank == rank:
        raise ProtocolError(f"it says it is rank {theirs.rank} of {theirs.size}, to rank {rank} of {size}")
    return theirs


def choice(token: bytes, answer: bytes) -> bytes:
    """What the caller says last, on the one connection it takes: proof of what was answered on it."""
    return hmac.digest(token, b"chosen" + answer, hashlib.sha256)


def check_choice(data: bytes, token: bytes, answer: bytes) -> None:
    """Raise ProtocolError unless `data` is the choice of the connection on which we said `answer`."""
    if not hmac.compare_digest(data, choice(token, answer)):
        raise ProtocolError("its greeting is somebody else's, said again")
