"""FrogNet Memory's edges: frames, admission, addresses, options, byte counts."""

import socket
import struct
import threading

import pytest
import torch
import torch.distributed as dist
from helpers import eventually, group, passed, tell

import frogtorch
from frogtorch.collectives.interest import Interest
from frogtorch.memory import wire
from frogtorch.memory.endpoint import parse_endpoints
from frogtorch.memory.faults import ProtocolError
from frogtorch.memory.rendezvous import rendezvous

TOKEN = b"0123456789abcdef"


def test_a_frame_comes_back_as_it_went():
    sent = wire.encode(wire.Kind.CELL, 7, wire.encode_name(("ars", 0, 3)), b"what", 1000, 200, 300)
    for short in (0, 10, len(sent) - 1):
        assert wire.decode(memoryview(sent)[:short]) is None
    frame, body = wire.decode(memoryview(sent + b"payload"))
    assert frame == (wire.Kind.CELL, b"ars.0.3", b"what", 300, 7, 1000, 200)
    assert body == len(sent) == 32 + 7 + 4


@pytest.mark.parametrize(("kind", "length", "total", "offset"), [
    (9, 0, 0, 0), (0, 0, 0, 0), (2, wire.LONGEST_FRAME + 1, 1 << 30, 0), (2, 10, 9, 0), (2, 10, 100, 91),
    (2, 1, 1, 2**64 - 1), (1, 5, 5, 0), (3, 16385, 16385, 0), (3, 10, 20, 0), (3, 10, 20, 10), (4, 1, 1, 0),
    (5, 1, 1, 0), (6, 2000, 2000, 0), (7, 1, 1, 0),
])
def test_frames_out_of_bounds_are_refused(kind, length, total, offset):
    with pytest.raises(ProtocolError):
        wire.decode(memoryview(struct.pack("!BBBxIQQQ", kind, 1, 0, length, 0, total, offset) + b"x"))


@pytest.mark.parametrize(("kind", "needs_a_name"), [
    (wire.Kind.ASK, True), (wire.Kind.CELL, True), (wire.Kind.UNASKED, True), (wire.Kind.OFFER, True),
    (wire.Kind.CREDIT, False), (wire.Kind.GIVE_UP, False), (wire.Kind.BYE, False),
])
def test_a_frame_about_a_cell_names_it(kind, needs_a_name):
    frame = memoryview(wire.encode(kind, 3))
    if needs_a_name:
        with pytest.raises(ProtocolError):
            wire.decode(frame)
    else:
        assert wire.decode(frame)[0].kind == kind


def test_a_greeting_proves_membership():
    said = {Interest("ars", 1), Interest("arr")}
    greeting = wire.greet(TOKEN, 1, 3, 0, said)
    assert wire.greeting_length(greeting) == len(greeting)
    assert wire.greeting_length(greeting[:5]) is None
    assert wire.admit(greeting, TOKEN, 0, 3) == (1, 3, frozenset(said))
    assert TOKEN not in greeting
    for wrong in (
        lambda: wire.admit(greeting, b"another", 0, 3),  # of another run
        lambda: wire.admit(greeting, TOKEN, 2, 3),  # meant for another rank
        lambda: wire.admit(greeting.replace(b'"rank": 1', b'"rank": 2'), TOKEN, 0, 3),  # changed on the way
        lambda: wire.admit(greeting, TOKEN, 0, 4),  # of a group of another size
        lambda: wire.admit(wire.greet(TOKEN, 0, 3, 0, said), TOKEN, 0, 3),  # ourselves
        lambda: wire.greeting_length(b"GET / HTTP/1.1"),
        lambda: wire.greeting_length(b"FROG" + struct.pack("!HH", 1, 10)),
        lambda: wire.greeting_length(b"FROG" + struct.pack("!HH", 2, 60000)),
    ):
        with pytest.raises(ProtocolError):
            wrong()


def test_strangers_neither_get_in_nor_hold_up_the_rendezvous():
    store = dist.HashStore()
    met = {}

    def meet(rank):
        met[rank] = rendezvous(store, "g", rank, 2, [Interest("arr")], 20.0, "127.0.0.1")

    first = threading.Thread(target=meet, args=(0,))
    first.start()
    ((address, port),) = parse_endpoints(store.get("frogtorch/1/endpoint/0").decode())
    silent = socket.create_connection((address, port))
    rude = socket.create_connection((address, port))
    rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
    liar = socket.create_connection((address, port))
    liar.sendall(wire.greet(b"x" * 16, 1, 2, 0, [Interest("arr")]))
    second = threading.Thread(target=meet, args=(1,))
    second.start()
    first.join(60)
    second.join(60)
    token, endpoint, links = met[0]
    assert len(token) == 16
    assert endpoint.address == "127.0.0.1"
    assert set(links) == {1}
    assert set(met[1][2]) == {0}
    links[1].sock.sendall(b"hello")
    assert met[1][2][0].sock.recv(10) == b"hello"
    for sock in (silent, rude, liar, links[1].sock, met[1][2][0].sock):
        sock.close()


def test_options():
    settings = frogtorch.Options().resolved({})
    assert (settings.all_reduce, settings.chunk_bytes, settings.address, settings.telemetry) == (
        "shard", 1 << 20, None, None)
    settings = frogtorch.Options(all_reduce="whole").resolved({
        "FROGTORCH_ALL_REDUCE": "shard", "FROGTORCH_CHUNK_BYTES": "4096", "FROGTORCH_ADDRESS": "10.0.0.5"})
    assert (settings.all_reduce, settings.chunk_bytes, settings.address) == ("whole", 4096, "10.0.0.5")
    for wrong, said in (
        (lambda: frogtorch.Options(all_reduce="ring"), "shard, pipelined, whole"),
        (lambda: frogtorch.Options(chunk_bytes=0), "1 or more"),
        (lambda: frogtorch.Options().resolved({"FROGTORCH_CHUNK_BYTES": "1 MB"}), "whole number of bytes"),
        (lambda: frogtorch.Options().resolved({"FROGTORCH_ALL_REDUCE": "ring"}), "FROGTORCH_ALL_REDUCE"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong()


@pytest.mark.parametrize("size", [2, 3])
def test_telemetry_counts_every_byte(ranks, size):
    count = 300_001

    def run(rank, size):
        group = dist.distributed_c10d._get_default_group()
        x = torch.ones(count)
        dist.all_reduce(x)
        dist.barrier()
        return group.telemetry.take(), group.telemetry.take()

    for rank, (records, again) in enumerate(ranks(size, run, options=frogtorch.Options(all_reduce="shard"))):
        assert again == []
        record, barrier = records
        own = count // size + (rank < count % size)
        payload = 4 * ((size - 1) * own + count - own)
        assert record["payload_received"] == payload == sum(peer["bytes"] for peer in record["peers"].values())
        assert record["payload_sent"] == 4 * ((size - 1) * own + count - own)
        for way in ("received", "sent"):
            assert payload < record[f"socket_{way}"] < 1.01 * payload
        assert 0 < record["phase1"] <= record["seconds"]
        assert 0 < record["phase2"] <= record["seconds"]
        assert sorted(record["peers"]) == sorted(str(p) for p in range(size) if p != rank)
        for peer, seen in record["peers"].items():
            # Their contributions to my slice, then the sum of theirs, for which all of phase 1 was waited.
            assert seen["phase1"]["bytes"] == 4 * own
            assert seen["phase2"]["bytes"] == 4 * (count // size + (int(peer) < count % size))
            assert seen["phase1"]["wait"] <= seen["phase2"]["wait"] <= record["seconds"]
        assert (record["collective"], record["algorithm"], record["op"], record["dtype"], record["nbytes"]) == (
            "all_reduce", "shard", "sum", "float32", 4 * count)
        assert (record["round"], barrier["round"], barrier["algorithm"], barrier["phase1"]) == (0, 1, None, None)
        assert barrier["payload_received"] == size - 1
        assert [seen["phase2"] for seen in barrier["peers"].values()] == [None] * (size - 1)


def test_memory_is_empty_when_all_have_read(ranks):
    def run(rank, size):
        memory = dist.distributed_c10d._get_default_group()._memory
        for count in (5, 100_000) * 20:
            dist.all_reduce(torch.ones(count))
            dist.broadcast(torch.ones(count), 0)
        dist.barrier()
        boxes = [memory.published, memory.published.unread, memory._tallies, memory.operations, memory.mailbox]
        boxes += [box for peer in memory.peers.values() for box in (peer.reads, peer.inbox, peer.gave_up)]

        def left():
            return [len(box) for box in boxes], [peer.inbox.cost for peer in memory.peers.values()]

        eventually(lambda: not sum(map(sum, left())))
        return left()

    for lengths, inbox_bytes in ranks(3, run):
        assert sum(lengths) == 0
        assert inbox_bytes == [0, 0]


def test_a_small_cell_overtakes_a_long_one(ranks):
    # 64 MB are on their way, which the reader does not even take in as fast; a small sum comes through.
    def run(rank, size):
        x = torch.ones(16_000_000)
        long = dist.broadcast(x, 0, async_op=True)
        small = dist.all_reduce(torch.ones(3), async_op=True)
        if rank == 0:
            with group()._engine.loop.lock:  # it sends nothing before rank 1 has asked for both, however late that is
                passed("rank 1 has begun both")
        else:
            tell("rank 1 has begun both")
        small.wait()
        long.wait()
        # By the backend's own clock: on a busy machine the caller's thread may come too late to see it.
        ended = {seen["collective"]: seen["start"] + seen["seconds"] for seen in dist.group.WORLD.telemetry.take()}
        return rank == 0 or ended["all_reduce"] < ended["broadcast"]

    assert ranks(2, run) == [True, True]
