"""The proof on the wire: real Gloo and the real backend send what their simulations send, message for message.

All ranks run on loopback in a network namespace of their own, where an observer (observer.py) reads every message from
the packets: in each direction between two ranks, of which kind, of which cell, and how many bytes.
"""

import multiprocessing
import os
import socket
from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from observer import Observer, private_network

import frogtorch.process_group  # once, and not in every forked rank
from emulator import sim
from emulator.sim import gloo
from emulator.topology import Host, Path, Topology
from frogtorch import collectives
from frogtorch.collectives import ALL_REDUCE
from frogtorch.effects import Buffer

COUNTS = (1, 3000, 30_000, 262_144, 1_050_625)
"""fp32 elements: less than a slice each; 12 kB, of which every part travels unasked; 120 kB; 1 MiB; 4.2 MB."""

SHARED = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
"""Collectives of one share a rank: each is a W-th of so many elements, rounded up."""

MOVEMENTS = ("broadcast", "reduce", "barrier", *SHARED)
ROOT = 1
CHUNK = 256 * 1024
"""Bytes of a chunk of `pipelined`."""


def call(name, count, rank, size, group):
    """Run a collective for real: of `count` elements, or of shares of `count` elements."""
    one, all_of_them = torch.ones(count), torch.ones(size, count) if name in SHARED else None
    match name:
        case "all_reduce":
            dist.all_reduce(one, group=group)
        case "broadcast":
            dist.broadcast(one, ROOT, group=group)
        case "reduce":
            dist.reduce(one, ROOT, group=group)
        case "all_gather":
            dist.all_gather(list(all_of_them), one, group=group)
        case "gather":
            dist.gather(one, list(all_of_them) if rank == ROOT else None, ROOT, group=group)
        case "scatter":
            dist.scatter(one, list(all_of_them) if rank == ROOT else None, ROOT, group=group)
        case "reduce_scatter":
            dist.reduce_scatter_single(one, all_of_them.flatten(), group=group)
        case "all_to_all":
            dist.all_to_all_single(torch.ones(size * count), all_of_them.flatten(), group=group)
        case "barrier":
            dist.barrier(group=group)


def ours(name, count, arm):
    """The same as a collective of frogtorch: what each rank's group is given."""
    def make(group):
        one, shares = Buffer(count, 4)[:], Buffer(count * group.size, 4)[:].split(group.size)
        at_root = shares if group.rank == ROOT else None
        match name:
            case "all_reduce":
                how = {"chunk_bytes": CHUNK} if arm == "pipelined" else {}
                return ALL_REDUCE[arm](group, one, "sum", **how)
            case "reduce":
                return collectives.reduce(group, one, one if group.rank == ROOT else None, ROOT, "sum")
            case "reduce_scatter":
                return collectives.reduce_scatter(group, shares, one, "sum")
            case "all_to_all":
                return collectives.all_to_all(group, shares, shares)
            case "all_gather":
                return collectives.all_gather(group, one, shares)
            case "gather":
                return collectives.gather(group, one, at_root, ROOT)
            case "scatter":
                return collectives.scatter(group, at_root, one, ROOT)
            case "broadcast":
                return collectives.broadcast(group, one, ROOT)
            case "barrier":
                return collectives.barrier(group)
    return make


def gloos(name, count):
    """The same as Gloo does it."""
    def make(group):
        one, together = Buffer(count, 4)[:], Buffer(count * group.size, 4)[:]
        shares = together.split(group.size)
        at_root = shares if group.rank == ROOT else None
        match name:
            case "all_reduce":
                return gloo.ring(group, one, "sum")
            case "reduce_scatter":
                return gloo.ring(group, together, "sum")
            case "reduce":
                return gloo.reduce(group, one, ROOT, "sum")
            case "all_to_all":
                return gloo.all_to_all(group, shares, shares)
            case "all_gather":
                return gloo.all_gather(group, one, together)
            case "gather":
                return gloo.gather(group, one, at_root, ROOT)
            case "scatter":
                return gloo.scatter(group, at_root, one, ROOT)
            case "broadcast":
                return gloo.broadcast(group, one, ROOT)
            case "barrier":
                return gloo.barrier(group)
    return make


def plan(arm, size):
    """What a group runs, one after the other: collectives, and their elements."""
    names = ("all_reduce",) if arm in ("pipelined", "whole", "direct") else ("all_reduce", *MOVEMENTS)
    return [(name, -(-count // size) if name in SHARED else count) for name in names
            for count in (COUNTS[:1] if name == "barrier" else COUNTS)]


ARMS = ("gloo", *ALL_REDUCE)


def run_rank(rank, size, store, ports):
    """A rank: runs every arm's plan in a group of its own, and puts into `ports` the ends of each one's connections."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "FROGTORCH_ADDRESS": "127.0.0.1"}
    torch.set_num_threads(1)
    known = set()
    for arm in ARMS:
        if arm == "gloo":
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
            group = None
        else:
            group = dist.new_group(backend="frogtorch", pg_options=frogtorch.Options(
                all_reduce=arm, chunk_bytes=CHUNK))
        ends = connections() - known
        known |= ends
        ports.put((arm, rank, ends))
        for name, count in plan(arm, size):
            call(name, count, rank, size, group)
    dist.destroy_process_group()


def connections():
    """The ends, ours and theirs, of all TCP connections of this process."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(descriptor))) as one:
                found.add((one.getsockname()[1], one.getpeername()[1]))
        except (OSError, IndexError):  # no socket, not TCP, or one that listens
            pass
    return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """``watched(size)[arm][i]``: by (source, target), what the ranks sent in the i-th collective of the arm's plan."""
    seen = {}

    def watch(size):
        if size not in seen:
            seen[size] = observe(size, tmp_path_factory.mktemp("store") / "store")
        return seen[size]

    return watch


def observe(size, store):
    fork = multiprocessing.get_context("fork")
    ports = fork.Queue()
    with private_network():
        observer = Observer()
        ranks = [fork.Process(target=run_rank, args=(rank, size, store, ports)) for rank in range(size)]
        for process in ranks:  # before the observer's thread, which a fork would leave out
            process.start()
    with observer:
        ends = [ports.get(timeout=60) for _ in range(size * len(ARMS))]
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [0] * size
    owner = {pair: (arm, rank) for arm, rank, pairs in ends for pair in pairs}
    found = {arm: defaultdict(lambda: defaultdict(list)) for arm in ARMS}
    for (here, there), stream in observer.streams.items():
        if (here, there) not in owner:
            continue
        (arm, source), (_, target) = owner[here, there], owner[there, here]
        assert stream.whole
        for run, *message in stream.messages:
            if message[0] != "BYE":  # the end of the group, in no collective
                found[arm][run][source, target].append(tuple(message))
    # Gloo counts tags, the backend rounds.
    return {arm: [dict(runs[run]) for run in sorted(runs)] for arm, runs in found.items()}


def simulated(make, size, over_gloo):
    names = [f"h{i}" for i in range(size)]
    topology = Topology("wire", "wire.yaml", tuple(Host(n, "s") for n in names),
                        [Path(a, b, 100e6, 0.001) for a in names for b in names if a != b], (), "cubic", "")
    log = []
    sim.collective(topology, names, make, gloo=over_gloo, log=log)
    found = defaultdict(list)
    for sent in log:
        found[sent.source, sent.target].append((sent.what.kind, ".".join(map(str, sent.what.name)), sent.what.payload))
    return dict(found)


def by_kind(messages):
    """Each kind's messages, in order: notices and payloads of Gloo's mix as the ranks' threads happen to run.

    But no payload leaves before it is said to be ready.
    """
    found = defaultdict(list)
    for kind, name, payload in messages:
        found[kind].append((name, payload))
        if kind == "DATA":
            assert found["SEND_READY"][len(found["DATA"]) - 1] == (str(payload), 0)
    return dict(found)


SIZES = (2, 3, 4, 6)


@pytest.mark.root
@pytest.mark.parametrize("size", SIZES)
def test_gloo_sends_what_its_simulation_sends(watched, size):
    runs, collectives = watched(size)["gloo"], plan("gloo", size)
    assert len(runs) == len(collectives)
    for (name, count), real in zip(collectives, runs, strict=True):
        expected = simulated(gloos(name, count), size, over_gloo=True)
        assert {way: by_kind(messages) for way, messages in real.items()} == {
            way: by_kind(messages) for way, messages in expected.items()}, f"{name} of {count} elements, W = {size}"


@pytest.mark.root
@pytest.mark.parametrize("arm", ALL_REDUCE)
@pytest.mark.parametrize("size", SIZES)
def test_the_backend_sends_what_its_simulation_sends(watched, size, arm):
    """In every direction the same messages in the same order, each of which is of some cell or parcel."""
    runs, collectives = watched(size)[arm], plan(arm, size)
    assert len(runs) == len(collectives)
    for (name, count), real in zip(collectives, runs, strict=True):
        assert real == simulated(ours(name, count, arm), size, over_gloo=False), (
            f"{name} of {count} elements, W = {size}")
