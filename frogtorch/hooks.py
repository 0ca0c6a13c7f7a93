"""Communication hooks for DistributedDataParallel, over FrogNet Memory: gradients by whole buckets, or some of them.

::

    model = DistributedDataParallel(net)                    # in a group of the frogtorch backend
    model.register_comm_hook(frogtorch.hooks.FreshOnly(bound=64), frogtorch.hooks.fresh_only)

==================  ======================  ====================================================================
hook                its state               a bucket becomes the mean, in rank order, of
==================  ======================  ====================================================================
:func:`faithful`    :class:`Faithful`       all ranks' buckets of this step: an all-reduce by whole buckets
:func:`fresh_only`  :class:`FreshOnly`      this rank's, and of each other one that is new since it was last taken
:func:`every_k`     :class:`EveryK`         all ranks' buckets of this step, in every k-th step; else this rank's
==================  ======================  ====================================================================

Only `faithful` keeps what DDP promises, that all ranks have the same parameters: the others leave that to the user, who
may average parameters now and then. A state belongs to one model on one rank, and says what it saw. All ranks make
their states in one order.
"""

# No "from __future__ import annotations": DDP compares the annotations of a hook with the types themselves.

from collections import deque
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.futures import Future

from frogtorch.buckets import Bucket
from frogtorch.process_group import ProcessGroup
from frogtorch.work import Work

__all__ = ["EveryK", "Faithful", "FreshOnly", "Taken", "every_k", "faithful", "fresh_only"]

KEPT = 10_000
"""Buckets of which a state knows what was in their means."""


class Taken(NamedTuple):
    """What is in the mean of one bucket: this rank's own, and those of the peers in `ages`."""

    step: int
    bucket: int
    ages: dict[int, int]
    """By peer: how many steps old its bucket was. 0 is this step's; negative if the peer is ahead."""


class _State:
    """What the hooks of one model on one rank have in common."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """For a model in `group`, by default the world. Raises TypeError if that is of another backend."""
        group = dist.distributed_c10d._get_default_group() if group is None else group
        if not isinstance(group, ProcessGroup):
            raise TypeError(f"the hooks of frogtorch read from FrogNet Memory, which a group of backend "
                            f"{dist.get_backend(group)!r} has not: make one with init_process_group(\"frogtorch\") or "
                            f"new_group(backend=\"frogtorch\"), and give it as {type(self).__name__}(group=...)")
        self.group = group
        self.step = -1
        """The step under way, counted from 0: exchanges of gradients so far, less one."""
        self.taken: deque[Taken] = deque(maxlen=KEPT)
        """What was in the means of the latest buckets, oldest first."""
        self._layouts: dict[int, list[tuple[int, ...]]] = {}  # by bucket: the parameters that were in it, so far

    def _bucket(self, bucket: dist.GradBucket) -> Bucket:
        """The bucket that DDP hands over. Raises RuntimeError if it is of another model than the last ones."""
        index = bucket.index()
        if index == 0:
            self.step += 1
        parameters = tuple(map(id, bucket.parameters()))
        layouts = self._layouts.setdefault(index, [])
        if not layouts or layouts[-1] != parameters:
            if parameters in layouts:
                raise RuntimeError(f"this {type(self).__name__} serves two models; give each a state of its own")
            layouts.append(parameters)
        return Bucket(type(self).hook, bucket.buffer(), self.step, index, len(layouts) - 1, self._note)

    hook = ""

    def _note(self, bucket: Bucket) -> None:
        self.taken.append(Taken(bucket.step, bucket.index, dict(bucket.ages)))


S = TypeVar("S", bound=_State)


class Faithful(_State):
    """State of :func:`faithful`."""

    hook = "faithful"


class FreshOnly(_State):
    """State of :func:`fresh_only`."""

    hook = "fresh_only"

    def __init__(self, group: dist.ProcessGroup | None = None, *, bound: int = 64) -> None:
        """A peer whose newest bucket is more than `bound` steps behind is waited for. Raises ValueError, TypeError."""
        super().__init__(group)
        self.bound = _whole_number("bound", bound, 0)
        self._number = self.group.next_hook()
        self._have: dict[int, dict[int, int]] = {}  # by bucket, by peer: the step of what was last taken

    def have(self, bucket: int) -> dict[int, int]:
        """Of which step that was which was last taken from each peer; -1 for none."""
        others = set(range(self.group.size())) - {self.group.rank()}
        return self._have.setdefault(bucket, dict.fromkeys(others, -1))


class EveryK(_State):
    """State of :func:`every_k`."""

    hook = "every_k"

    def __init__(self, k: int, group: dist.ProcessGroup | None = None) -> None:
        """Take the peers' buckets in steps 0, k, 2k, … Raises ValueError, TypeError."""
        super().__init__(group)
        self.k = _whole_number("k", k, 1)


def faithful(state: Faithful, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Make of every bucket the mean of all ranks': W-1 tensors a rank, where shard takes 2(W-1)/W."""
    one = _known(state, Faithful)._bucket(bucket)
    return _tensor(state.group.mean_of_all(one))


def fresh_only(state: FreshOnly, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Make of every bucket the mean of this rank's and of those that are new, without waiting for any that is not.

    A peer that has published nothing since its bucket was last taken is skipped: it costs a question and its answer,
    and no payload. One that lags more than the state's `bound` steps is waited for. One that has left the group is
    skipped until it lags as much; then, or if it died, the step fails.
    """
    one = _known(state, FreshOnly)._bucket(bucket)
    return _tensor(state.group.mean_of_new(one, state._number, state.bound, state.have(one.index)))


def every_k(state: EveryK, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Make of every bucket the mean of all ranks' in every k-th step, and leave it as it is in the others.

    In those nobody reads from anybody, so nothing is published either.
    """
    one = _known(state, EveryK)._bucket(bucket)
    if state.step % state.k == 0:
        return _tensor(state.group.mean_of_all(one))
    state.group.mean_of_own(one)
    done: Future[torch.Tensor] = Future()
    done.set_result(one.tensor)
    return done


def _tensor(work: Work) -> Future[torch.Tensor]:
    return work.get_future().then(lambda done: done.value()[0])


def _known(state: S, kind: type[S]) -> S:
    """Raise TypeError unless `state` is of the hook's `kind`: DDP takes any object for one."""
    if not isinstance(state, kind):
        raise TypeError(f"frogtorch.hooks.{kind.hook} is registered with its state, as in "
                        f"model.register_comm_hook(frogtorch.hooks.{kind.__name__}(...), frogtorch.hooks.{kind.hook}), "
                        f"not with {state!r}")
    return state


def _whole_number(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is a whole number of steps, {least} or more, not {value!r}")
    return value
