"""Questions after the newest cell of a name, and their answers, as frames; see :mod:`.series`."""

from __future__ import annotations

from typing import NamedTuple

from frogtorch.memory.wire import PAYLOADS, QUERY, VERSION_OF, Kind, encode

ANSWERS = frozenset({Kind.SAME, Kind.NEWEST})

QUESTIONS = 1 << 62
"""Where cells have their round, questions have numbers from here on; those of messages are higher."""

NEVER = -1
"""The step of what was never published."""


class Query(NamedTuple):
    """What a reader asks of the newest cell of a name: see :class:`frogtorch.effects.Newest`."""

    layout: int
    have: int
    oldest: int
    nbytes: int
    """The size that it expects of a cell of this layout."""


class Version(NamedTuple):
    """Which is the newest cell of a name; step NEVER if there is none."""

    layout: int
    step: int
    nbytes: int


def question(reader: int, count: int) -> int:
    """The number of the `count`-th question of rank `reader`: no other question has it."""
    return QUESTIONS | reader << 40 | count


def asked_by(number: int, reader: int) -> bool:
    """Whether that is the number of a question of rank `reader`."""
    return number >> 40 == question(reader, 0) >> 40


def ask_newer(number: int, name: bytes, what: bytes, query: Query) -> bytes:
    """A question, whole."""
    size = PAYLOADS[Kind.NEWER]
    return encode(Kind.NEWER, number, name, what, size, 0, size) + QUERY.pack(*query)


def answer_newer(kind: Kind, number: int, name: bytes, what: bytes, version: Version) -> bytes:
    """An answer, whole; with NEWEST the cell itself follows."""
    size = PAYLOADS[kind]
    return encode(kind, number, name, what, size, 0, size) + VERSION_OF.pack(*version)


def decode_query(payload: memoryview) -> Query:
    """What a question asks."""
    return Query(*QUERY.unpack(payload))


def decode_version(payload: memoryview) -> Version:
    """What an answer says."""
    return Version(*VERSION_OF.unpack(payload))
