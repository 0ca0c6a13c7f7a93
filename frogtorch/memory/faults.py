"""What can go wrong in FrogNet Memory. Every text names the address, the peer and the endpoint it is about."""

from __future__ import annotations

__all__ = ["GroupClosed", "MemoryFault", "Mismatch", "PeerGaveUp", "PeerLeft", "PeerLost", "ProtocolError",
           "RendezvousError", "RoundTimeout"]


class MemoryFault(RuntimeError):  # noqa: N818 - its kinds are named for what happened
    """The base of them all. A RuntimeError, since that is what users of torch.distributed catch."""


class RendezvousError(MemoryFault):
    """The group did not come together."""


class ProtocolError(MemoryFault):
    """A peer sent bytes that are no frame of ours."""


class PeerLost(MemoryFault):
    """The connection to a peer ended while something was expected from it."""


class PeerLeft(PeerLost):
    """A peer has left the group in order, and something was still expected from it."""


class PeerGaveUp(MemoryFault):
    """A peer's round failed, and it said so: nothing more comes from it in that round."""


class Mismatch(MemoryFault):
    """Two ranks do different things in one round, or with different sizes."""


class RoundTimeout(MemoryFault):
    """A round did not end within the group's timeout."""


class GroupClosed(MemoryFault):
    """The group was shut down or aborted on this rank."""
