"""What the memory's errors say of rounds, cells and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frogtorch.memory.cells import Address, Reading
from frogtorch.memory.faults import Mismatch
from frogtorch.memory.wire import MESSAGES, Message, decode_message

if TYPE_CHECKING:
    from frogtorch.memory.peers import Peer
    from frogtorch.memory.space import Memory


def address(memory: Memory, number: int, name: bytes, owner: int) -> Address:
    """The address of a cell: the round comes second in its name, as in ``ars.7.0.3``. A message has no round."""
    text = name.decode(errors="replace")
    if number < MESSAGES:
        kind, _, rest = text.partition(".")
        text = f"{kind}.{number}" + (f".{rest}" if rest else "")
    return Address(memory.space, text, owner)


def message(one: Message) -> str:
    """A message, for one who knows from whom it is."""
    return f"message {one.number} with tag {one.tag} to rank {one.to}"


def differs(memory: Memory, number: int, mine: bytes, peer: Peer, theirs: bytes) -> Mismatch:
    """Two ranks do different things in a round."""
    return Mismatch(f"in round {number} of {memory.space}, rank {memory.rank} does {mine.decode()}, but {peer} does "
                    f"{theirs.decode(errors='replace')}")


def wrong(memory: Memory, reading: Reading, what: bytes, nbytes: int) -> Mismatch:
    """A cell is not what a read expects."""
    owner = memory.peers[reading.owner]
    if reading.round >= MESSAGES:
        return Mismatch(f"{message(decode_message(reading.name))} is {_dtype(what)} of {nbytes} bytes as {owner} sent "
                        f"it, but rank {memory.rank} receives {_dtype(reading.what)} of {len(reading.view)} bytes")
    if what != reading.what:
        return differs(memory, reading.round, reading.what, owner, what)
    return Mismatch(f"{address(memory, reading.round, reading.name, reading.owner)} has {nbytes} bytes on {owner}, but "
                    f"rank {memory.rank} expects {len(reading.view)} bytes")


def unlike(memory: Memory, reading: Reading, what: bytes, nbytes: int) -> Mismatch:
    """The newest cell of a name is not what was asked for, though it has the same layout."""
    return Mismatch(f"{reading.name.decode()} is {what.decode(errors='replace')} of {nbytes} bytes on "
                    f"{memory.peers[reading.owner]}, but {reading.what.decode()} of {len(reading.view)} bytes on rank "
                    f"{memory.rank}")


def _dtype(what: bytes) -> str:
    return what.decode(errors="replace").rpartition("/")[2]
