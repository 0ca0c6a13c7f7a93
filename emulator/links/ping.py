"""Idle round-trip times, by UDP echoes through the shaped links."""

from __future__ import annotations

import os
import random
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

from emulator.links.namespace import LinkError, Namespace

PORT = 9
_PATIENCE = 0.5      # seconds beyond the longest expected round trip; an echo that comes later is taken for lost
_SILENCE = 8         # rounds without a single echo, after which a path is taken for dead

Pair = tuple[str, str]


def round_trips(namespaces: Mapping[str, Namespace], addresses: Mapping[str, str], expected: Mapping[Pair, float],
                count: int) -> dict[Pair, float]:
    """Median of `count` round trips (seconds) between both hosts of each pair; see :func:`echoes`."""
    return {pair: median(times) for pair, times in echoes(namespaces, addresses, expected, count).items()}


def echoes(namespaces: Mapping[str, Namespace], addresses: Mapping[str, str], expected: Mapping[Pair, float],
           count: int) -> dict[Pair, list[float]]:
    """Seconds of `count` round trips between both hosts of each pair in `expected` (seconds), asked by the first.

    All pairs take part in every round, one after another within the longest round trip, so that they see the same
    machine; in another order each time, since a pair that always came just after another would find it awake. One
    process plays all hosts, as it may hold sockets of several namespaces. Lost echoes are left out. Raises LinkError
    naming the pair if none comes.
    """
    hosts = sorted({host for pair in expected for host in pair})
    socks: dict[str, socket.socket] = {}
    name_of = {addresses[host]: host for host in hosts}
    took: dict[Pair, list[float]] = {pair: [] for pair in expected}
    spacing = max(max(expected.values(), default=0.0), 1e-3 * len(expected)) / max(1, len(expected))
    try:
        with undisturbed(), selectors.DefaultSelector() as selector:
            for host in hosts:
                socks[host] = namespaces[host].socket(socket.SOCK_DGRAM)
                socks[host].bind((addresses[host], PORT))
                socks[host].setblocking(False)
                selector.register(socks[host], selectors.EVENT_READ, host)
            for number in range(count):
                order = random.Random(number).sample(list(expected), len(expected))
                _round(number, order, spacing, max(expected.values()) + _PATIENCE, socks, addresses, name_of,
                       selector, took)
                silent = [pair for pair, times in took.items() if not times]
                if silent and number + 1 >= min(_SILENCE, count):
                    source, target = silent[0]
                    raise LinkError(f"no echo between {source} and {target}: the link does not pass packets")
    finally:
        for sock in socks.values():
            sock.close()
    return took


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run the calling thread before all others, where that is granted: the link is measured, not the machine's load."""
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameters)


def _round(number: int, pairs: Sequence[Pair], spacing: float, patience: float, socks: Mapping[str, socket.socket],
           addresses: Mapping[str, str], name_of: Mapping[str, str], selector: selectors.BaseSelector,
           took: Mapping[Pair, list[float]]) -> None:
    """Ask each of the pairs once, a `spacing` apart, and note how long it took; give up `patience` after the last."""
    sent: dict[Pair, float] = {}
    missing = set(pairs)
    begun = time.monotonic()
    upcoming = 0
    while missing:
        now = time.monotonic()
        if upcoming < len(pairs) and now >= begun + upcoming * spacing:
            source, target = pairs[upcoming]
            upcoming += 1
            sent[source, target] = time.monotonic()
            socks[source].sendto(struct.pack("!BI", 0, number), (addresses[target], PORT))
            continue
        if now > begun + upcoming * spacing + patience:
            return
        until = begun + upcoming * spacing if upcoming < len(pairs) else now + patience
        for key, _ in selector.select(max(0.0, until - now)):
            assert isinstance(key.fileobj, socket.socket)
            data, sender = key.fileobj.recvfrom(64)
            arrived = time.monotonic()
            echo, asked = struct.unpack("!BI", data)
            if not echo:
                key.fileobj.sendto(struct.pack("!BI", 1, asked), sender)
                continue
            pair = (key.data, name_of[sender[0]])
            if asked == number and pair in missing:
                missing.remove(pair)
                took[pair].append(arrived - sent[pair])
