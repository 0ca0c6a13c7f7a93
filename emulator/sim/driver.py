"""Drives a collective's generator in virtual time: the simulator's side of what :mod:`frogtorch.effects` promises.

A region is only its size here. What takes time is the network, and the :class:`~emulator.sim.rank.Costs` of a rank's
own work; lanes of one rank do their own work side by side, or on the one thread that the rank has for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from simpy import Event, Interrupt, Process, Resource

from emulator.sim.channel import Message
from emulator.sim.cores import Thread
from emulator.sim.rank import Account, Cell, Costs, Peer, Rank
from emulator.sim.sending import Plain
from frogtorch.collectives.interest import SUMS
from frogtorch.effects import (
    Buffer,
    Collective,
    Combine,
    Copy,
    Effect,
    Lane,
    Look,
    Publish,
    Read,
    Receive,
    Release,
    Send,
    Stage,
    Together,
)

Steps = Generator[Event, Any, Any]


class Driver:
    """Drives one rank's collective in round `number` of its group; the rank's own work is on `thread`, if any."""

    def __init__(self, rank: Rank, number: int, sending: Plain, costs: Costs, thread: Thread | None = None) -> None:
        self.account = Account()
        self._rank = rank
        self._env = rank.env
        self._number = number
        self._sending = sending
        self._costs = costs
        self._thread = thread
        self._taking = costs.message if thread is None else costs.message / 2
        """Seconds to take a message in."""
        self._staged: dict[int, Buffer] = {}  # by identity: buffers have no value to compare

    def run(self, collective: Collective) -> Steps:
        """Drive a whole collective; what it staged and did not release goes at its end. A SimPy process."""
        self.account.start = self._env.now
        try:
            return (yield from self._drive(collective))
        finally:
            self.account.end = self._env.now
            for buffer in list(self._staged.values()):
                self._release(buffer)

    def _drive(self, collective: Collective) -> Steps:
        """Resume a generator with its effects' results, or with what they raised, until it returns."""
        try:
            effect = next(collective)
            while True:
                try:
                    result = yield from self._perform(effect)
                except Interrupt:
                    raise  # a lane beside has failed
                except Exception as error:
                    effect = collective.throw(error)
                else:
                    effect = collective.send(result)
        except StopIteration as stop:
            return stop.value
        finally:
            collective.close()

    def _perform(self, effect: Effect) -> Steps:
        """Return an effect's result when it is done."""
        match effect:
            case Publish():
                return self._publish(effect)
            case Read():
                return _wait(self._read(effect))
            case Combine():
                return self._combine(effect)
            case Copy():
                return self._work(self._costs.copy * effect.source.nbytes)
            case Look():
                raise TypeError("a collective that looks at a number, such as a size that another rank says, cannot be "
                                "simulated: regions have no content here")
            case Stage():
                return self._stage(effect)
            case Release():
                return self._give_back(effect)
            case Send():
                return self._sending.send(self._rank, self._number, effect)
            case Receive():
                return self._receive(effect)
            case Together():
                return self._together(effect)
        raise TypeError(f"the simulator does not know the effect {effect!r}")

    def _work(self, seconds: float) -> Steps:
        if seconds:
            yield self._env.timeout(seconds) if self._thread is None else self._thread.work(seconds)

    def _publish(self, effect: Publish) -> Steps:
        began = self._env.now
        if effect.copy:
            yield from self._work(self._costs.copy * effect.region.nbytes)
        self._rank.publish((self._number, effect.name), Cell(effect.region.nbytes, effect.readers, effect.copy))
        self.account.publish += self._env.now - began

    def _read(self, effect: Read) -> Event:
        """Begin to read; returns the event that it is done. No generator: a rank may read from a thousand at a time."""
        done = self._env.event()
        key = self._number, effect.name
        coming = self._rank.ask(key, effect.owner, effect.into.nbytes)
        _when(coming, lambda _: self._sent(effect, coming.value, done))
        return done

    def _sent(self, effect: Read, sent: Any, done: Event) -> None:
        """What is read is on its way: a message, with its payload's size."""
        message, nbytes = sent
        self._rank.forget(effect.owner, (self._number, effect.name))
        if nbytes != effect.into.nbytes:
            done.fail(ValueError(f"rank {self._rank.rank} reads {effect.name!r} of rank {effect.owner} into "
                                 f"{effect.into.nbytes} bytes, but it has {nbytes}"))
            return
        taken = self._env.now
        _when(message.arrived, lambda _: self._got(effect, message, taken, done))

    def _got(self, effect: Read, message: Message, taken: float, done: Event) -> None:
        """What is read is there."""
        self._count(effect.owner, message, effect.into.nbytes, taken, effect.name[0] in SUMS)
        if self._thread is None:
            self._rank.connections.network.fire(done, self._taking)
        else:
            _when(self._thread.work(self._taking), lambda _: done.succeed())

    def _receive(self, effect: Receive) -> Steps:
        message = yield from self._sending.receive(self._rank, self._number, effect)
        taken = self._env.now
        yield message.arrived
        self._count(effect.source, message, effect.into.nbytes, taken, effect.kind in SUMS)
        yield from self._work(self._taking)

    def _count(self, source: int, message: Message, nbytes: int, taken: float, reduced: bool) -> None:
        """Count a message that is there; `taken` is when somebody began to look at it."""
        assert message.first is not None
        account, first = self.account, max(taken, message.first)
        peer = account.peers.setdefault(source, Peer(wait=first - account.start))
        peer.wait = min(peer.wait, first - account.start)
        if reduced and (account.reduced is None or first < account.reduced):
            account.reduced = first
        peer.transfer = self._env.now - account.start - peer.wait
        peer.bytes += nbytes

    def _combine(self, effect: Combine) -> Steps:
        yield from self._work(self._costs.combine * effect.into.nbytes * max(1, len(effect.parts) - 1))
        self.account.combined = self._env.now

    def _stage(self, effect: Stage) -> Steps:
        buffer = Buffer(effect.count, effect.itemsize)
        self._staged[id(buffer)] = buffer
        self._rank.hold(buffer.count * buffer.itemsize)
        return buffer
        yield  # a generator, like the others

    def _give_back(self, effect: Release) -> Steps:
        self._release(effect.buffer)
        return
        yield

    def _release(self, buffer: Buffer) -> None:
        if self._staged.pop(id(buffer), None) is None:
            raise ValueError(f"{buffer!r} is not staged, or was released before")
        self._rank.hold(-buffer.count * buffer.itemsize)

    def _together(self, effect: Together) -> Steps:
        turns = Resource(self._env, effect.width) if effect.width is not None else None
        lanes = [self._read(lane) if turns is None and isinstance(lane, Read)
                 else self._env.process(self._lane(lane, turns)) for lane in effect.lanes]
        try:
            yield self._env.all_of(lanes)
        except BaseException:
            _stop(lanes)
            raise
        return [lane.value for lane in lanes]

    def _lane(self, lane: Lane, turns: Resource | None) -> Steps:
        steps = self._drive(lane) if isinstance(lane, Generator) else self._perform(lane)
        if turns is None:
            return (yield from steps)
        with turns.request() as turn:  # granted in the order of asking, which is the order of the lanes
            yield turn
            return (yield from steps)


def _wait(event: Event) -> Steps:
    return (yield event)


def _when(event: Event, act: Callable[[Any], Any]) -> None:
    """Act when an event happens, or now if it has."""
    if event.callbacks is None:
        act(event)
    else:
        event.callbacks.append(act)


def _stop(lanes: Iterable[Event]) -> None:
    """Close lanes, one of which has failed."""
    for lane in lanes:
        if isinstance(lane, Process) and lane.is_alive:
            lane.interrupt()
        lane.defused = True
