"""The mean of what is new: no all-reduce, as ranks may end with different results."""

from __future__ import annotations

from frogtorch.effects import Collective, Combine, Group, Name, Newest, Region, Release, Stage, Supersede, Together


def fresh_only(group: Group, name: Name, tensor: Region, layout: int, step: int, bound: int, have: dict[int, int],
               ages: dict[int, int]) -> Collective:
    """Make `tensor` the mean of itself and of those that peers have published since `have`, in rank order.

    `have` says, by peer, of which step that was which was taken last (-1: none), and is brought up to date. `ages` is
    filled with how many steps old is what was taken (0: of this step; negative: the peer is ahead); a peer that is not
    in it was skipped, which costs a question and its answer, and no payload. A peer whose newest is older than `bound`
    steps is waited for. At most (W-1)S bytes; a round trip.

    It never deadlocks: this rank publishes before it asks, and only one that is behind is waited for, by those ahead.
    """
    if not tensor.count or not group.peers:
        return
    yield Supersede(name, tensor, layout, step)
    stage = yield Stage(tensor.count * len(group.peers), tensor.itemsize)
    parts = dict(zip(group.peers, stage[:].split(len(group.peers)), strict=True))
    found = yield Together(Newest(name, owner=peer, into=parts[peer], layout=layout, have=have[peer],
                                  oldest=max(-1, step - bound)) for peer in group.peers)
    for peer, came in zip(group.peers, found, strict=True):
        if came is not None:
            have[peer] = came
            ages[peer] = step - came
    if ages:
        parts[group.rank] = tensor
        yield Combine(tensor, [parts[r] for r in range(group.size) if r == group.rank or r in ages], "avg")
    yield Release(stage)
