"""What the comm hooks of :mod:`frogtorch.hooks` ask of a group: means of gradient buckets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from frogtorch import collectives
from frogtorch.calls import call
from frogtorch.collectives.fresh_only import fresh_only
from frogtorch.effects import Newest, Region, Supersede
from frogtorch.engine import Operation, bind, bytes_of
from frogtorch.lanes import WAITING, Lane
from frogtorch.member import Member
from frogtorch.memory.cells import Question, Reading
from frogtorch.memory.faults import MemoryFault, PeerLeft
from frogtorch.memory.questions import NEVER, Query, Version
from frogtorch.memory.rates import BULK_BYTES
from frogtorch.memory.series import Entry
from frogtorch.memory.space import Memory
from frogtorch.memory.wire import encode_name
from frogtorch.telemetry import Record
from frogtorch.tensors import Place
from frogtorch.work import Work

__all__ = ["Bucket", "Buckets"]

CELLS = "hkb"
"""Kind of the cells of buckets that supersede each other."""


@dataclass
class Bucket:
    """One bucket of gradients in one step, and what becomes of it."""

    hook: str
    tensor: torch.Tensor
    step: int
    index: int
    """Which of the step's buckets it is."""
    layout: int
    """Another number once DDP has put other parameters into the bucket of this index."""
    done: Callable[[Bucket], None]
    """Called when the tensor is the mean; the engine may hold its lock then."""
    ages: dict[int, int] = field(default_factory=dict)
    """By peer whose bucket is in the mean: how many steps old it is. Negative if the peer is ahead."""

    def put_back(self) -> None:
        """The tensor is the mean."""
        self.done(self)


class Buckets(Member):
    """Means of gradient buckets: of all ranks' of a step, of those that are new, or of this rank's alone."""

    _hooks = 0

    def next_hook(self) -> int:
        """A number for the cells of one more hook: all ranks make their hooks in one order."""
        self._hooks += 1
        return self._hooks

    @call("mean of all buckets")
    def mean_of_all(self, bucket: Bucket) -> Work:
        """All ranks' buckets of this step, whole: a collective."""
        return self._mean(bucket, "whole", self._of_all)

    def _of_all(self, bucket: Bucket, region: Region, record: Record, done: Callable[..., None]) -> Operation:
        def run() -> Any:
            yield from collectives.whole(self._group, region, "avg")
            bucket.ages.update(dict.fromkeys(self._group.peers, 0))
        return Operation(self._engine, run(), record, bucket.tensor.dtype,
                         f"whole/{region.count} elements", self._timeout, done)

    @call("mean of new buckets")
    def mean_of_new(self, bucket: Bucket, hook: int, bound: int, have: dict[int, int]) -> Work:
        """The bucket, and those of others that are new to this rank: see :func:`.fresh_only`. No collective."""
        def operation(bucket: Bucket, region: Region, record: Record, done: Callable[..., None]) -> Operation:
            run = fresh_only(self._group, (CELLS, hook, bucket.index), region, bucket.layout, bucket.step, bound, have,
                             bucket.ages)
            return _Fresh(self._engine, run, record, bucket.tensor.dtype, "buckets", self._timeout, done)
        return self._mean(bucket, None, operation)

    def mean_of_own(self, bucket: Bucket) -> None:
        """The bucket as it is, which is recorded."""
        record = self._record(bucket, None)
        self.telemetry.begin(record)
        self.telemetry.end(record)
        bucket.done(bucket)

    def _mean(self, bucket: Bucket, algorithm: str | None, operation: Callable[..., Operation]) -> Work:
        place = Place(bucket.tensor)
        record = self._record(bucket, algorithm)
        work = Work([bucket.tensor], self._engine.submit, bucket.hook)
        self._under_way.add(work)
        return self._run(record, work, [place, bucket], lambda done: operation(bucket, bind(place.flat)[:], record,
                                                                               done))

    def _record(self, bucket: Bucket, algorithm: str | None) -> Record:
        tensor = bucket.tensor
        return Record(self._name, self._rank, self._size, bucket.hook, algorithm, "avg",
                      str(tensor.dtype).removeprefix("torch."), tensor.nbytes, time.monotonic(), [tensor.shape],
                      [tensor.shape], step=bucket.step, bucket=bucket.index, ages=bucket.ages)


class _Fresh(Operation):
    """A mean of what is new: in no round, as no two ranks need to be in the same step."""

    def start(self, memory: Memory) -> None:
        """Run to the first wait; the loop's lock is held."""
        self._memory = memory
        self.deadline = self.until  # a peer that is behind may take its time
        self.number = memory.begin(self, memory.next_question())
        self._lanes.run()

    def _leave(self, error: BaseException | None) -> None:
        self._memory.end_unmatched(self.number)

    def _explained(self, error: BaseException) -> BaseException:
        """A memory's fault, with what every one of them has to say: hook, step, bucket, group and rank."""
        if not isinstance(error, MemoryFault):
            return error
        record = self._record
        return type(error)(f"{record.collective} ({record.dtype}), bucket {record.bucket} of step {record.step}, group "
                           f"{self._memory.space}, on rank {record.rank}: {error}")

    def _waited(self) -> list[str]:
        return [f"{_named(reading)} of {self._memory.peers[reading.owner]} ({reading.got} of {len(reading.view)} bytes "
                f"came)" for reading in self._reads]

    def _perform(self, lane: Lane, effect: Any) -> Any:
        if type(effect) is Supersede:
            return self._supersede(effect)
        if type(effect) is Newest:
            return self._newest(lane, effect)
        return super()._perform(lane, effect)

    def _supersede(self, effect: Supersede) -> None:
        begin = time.monotonic()
        pool, view = self._engine.pool, bytes_of(effect.region)
        room = pool.get(len(view))
        room.storage.view[:] = view
        self._memory.series.supersede(Entry(
            encode_name(effect.name), Version(effect.layout, effect.step, len(view)), self.what, room.storage.view,
            self.tally, lambda: pool.put(room)))
        self._record.publish += time.monotonic() - begin

    def _newest(self, lane: Lane, effect: Newest) -> Any:
        view = bytes_of(effect.into)
        question = Question(self.number, encode_name(effect.name), effect.owner, self.what, view, self.tally,
                            self._filled, Query(effect.layout, effect.have, effect.oldest, len(view)))
        try:
            self._memory.ask_newest(question)
        except PeerLeft as left:
            self._without(question, left)
            return None
        self._reads[question] = lane
        lane.waits_for = question
        return WAITING

    def _filled(self, reading: Reading, error: BaseException | None) -> None:
        lane = self._reads.pop(reading, None)
        if lane is None:
            return
        assert isinstance(reading, Question)
        step = None
        if isinstance(error, PeerLeft):
            try:
                self._without(reading, error)
                error = None
            except PeerLeft as late:
                error = late
        elif error is None and reading.step != NEVER:
            step = reading.step
            self._record.read(reading)
            if len(reading.view) >= BULK_BYTES:
                self._memory.rates.saw(reading, self._engine.submit)
        self._lanes.go_on(lane, step, error)

    @staticmethod
    def _without(question: Question, left: PeerLeft) -> None:
        """Raise PeerLeft unless there need be nothing new of a peer that has left."""
        if question.query.have < question.query.oldest:
            raise PeerLeft(f"{left}, and {_named(question)} was expected from it: nothing later than step "
                           f"{question.query.have} came, which is beyond the staleness bound")


def _named(reading: Reading) -> str:
    """What a question waits for."""
    assert isinstance(reading, Question)
    return f"{reading.name.decode()} of step {max(0, reading.query.oldest)} or later"
