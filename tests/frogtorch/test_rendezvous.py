"""Rendezvous on one store, run after run; attempts side by side; who gets in; what the errors say."""

import gc
import os
import re
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from frogtorch.collectives.interest import Interest
from frogtorch.memory import meeting, rendezvous, wire
from frogtorch.memory.endpoint import Door, Endpoint, parse_endpoints
from frogtorch.memory.faults import RendezvousError
from frogtorch.memory.meeting import STRANGERS, Meeting
from frogtorch.memory.rendezvous import rendezvous as come

TOKEN = b"0123456789abcdef"
GUARD = 60.0


class Ranks:
    """Functions run side by side, one a thread; each's result or exception."""

    def __init__(self):
        self.threads = {}
        self.results = {}

    def start(self, name, function, *args, **kwargs):
        def run():
            try:
                self.results[name] = function(*args, **kwargs)
            except Exception as error:
                self.results[name] = error

        self.threads[name] = threading.Thread(target=run, daemon=True)
        self.threads[name].start()

    def join(self):
        for name, thread in self.threads.items():
            thread.join(GUARD)
            assert not thread.is_alive(), f"{name} hangs"
        return self.results


@pytest.fixture
def side():
    return Ranks()


@pytest.fixture
def quick(monkeypatch):
    """Looks at the store, and waits for a new run, are short."""
    monkeypatch.setattr(rendezvous, "SLICE", 0.3)
    monkeypatch.setattr(rendezvous, "SUCCESSOR", 0.3)
    monkeypatch.setattr(meeting, "LOOK", 0.2)


def talk(links, rank):
    """Say our rank to everybody; what everybody says to us."""
    for link in links.values():
        link.sock.setblocking(True)
        link.sock.sendall(bytes([rank]))
    heard = {peer: link.early or link.sock.recv(1) for peer, link in links.items()}
    return {peer: data[0] for peer, data in heard.items()}


def meet(store, rank, size, *, timeout=20.0, address="127.0.0.1", **kwargs):
    """Come to the rendezvous and talk; the incarnation, and whom we heard."""
    token, _, links = come(store, "g", rank, size, [Interest("arr")], timeout, address, **kwargs)
    heard = talk(links, rank)
    for link in links.values():
        link.sock.close()
    return token, heard


@pytest.fixture
def silent():
    """The port of somebody who takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield listener


@pytest.fixture
def nobody():
    """A port of 127.0.0.1 where nobody listens, and nobody comes to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


# One store, run after run ----------------------------------------------------------------------------------------


def test_one_name_on_one_store_again_and_again(side):
    # No rank waits for the others between two groups: rank 1 begins the next while rank 2 has not met all of this one.
    store = dist.HashStore()
    for rank in range(3):
        side.start(rank, lambda rank: [meet(store, rank, 3) for _ in range(6)], rank)
    results = side.join()
    for rank in range(3):
        assert [heard for _, heard in results[rank]] == [{peer: peer for peer in range(3) if peer != rank}] * 6
        assert [token for token, _ in results[rank]] == [token for token, _ in results[0]]
    assert len({token for token, _ in results[0]}) == 6


def test_groups_are_destroyed_and_made_again_on_one_store(ranks):
    def run(rank, size):
        found = []
        port = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            port[0] = store.port
        dist.broadcast(port, 0)
        if rank:
            store = dist.TCPStore("127.0.0.1", port.item(), None, False)
        for _ in range(3):
            dist.destroy_process_group()
            dist.init_process_group("frogtorch", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
            x = torch.ones(3)
            dist.all_reduce(x)
            found.append(x.tolist())
        store.add("done", 1)
        while rank == 0 and store.add("done", 0) < size:  # it holds the store
            time.sleep(0.01)
        return found

    assert ranks(3, run) == [[[3.0] * 3] * 3] * 3


def leave_behind(store, endpoint, *, came=False, incarnation=True):
    """What a dead run of two leaves: its rank 0 had come, and its rank 1 perhaps."""
    store.add("frogtorch/generation", 1)
    if incarnation:
        store.set("frogtorch/1/incarnation", "ab" * 16)
        store.set("frogtorch/1/endpoint/0", str(endpoint))
    if came:
        store.add("frogtorch/1/came/1", 1)


def test_a_dead_run_that_rank_1_was_in_is_not_dialled(side, silent):
    store = dist.HashStore()
    leave_behind(store, Endpoint(*silent.getsockname()), came=True)
    side.start(1, meet, store, 1, 2)
    side.start(0, meet, store, 0, 2)
    results = side.join()
    assert [results[rank][1] for rank in (0, 1)] == [{1: 1}, {0: 0}]
    silent.setblocking(False)
    with pytest.raises(BlockingIOError):
        silent.accept()


@pytest.mark.parametrize("left", ["nobody", "somebody silent", "no incarnation"])
def test_a_dead_run_that_rank_1_was_not_in_is_left_for_the_new_one(side, quick, silent, nobody, left):
    # Rank 1 cannot know that it is dead, until a new rank 0 comes.
    store = dist.HashStore()
    at = Endpoint(*silent.getsockname()) if left == "somebody silent" else Endpoint("127.0.0.1", nobody)
    leave_behind(store, at, incarnation=left != "no incarnation")
    side.start(1, meet, store, 1, 2)
    time.sleep(0.15)
    side.start(0, meet, store, 0, 2)
    results = side.join()
    assert [results[rank][1] for rank in (0, 1)] == [{1: 1}, {0: 0}]
    assert results[0][0] == results[1][0] != bytes.fromhex("ab" * 16)


def test_a_second_rank_0_sends_the_first_away(side, quick):
    store = dist.HashStore()
    side.start("first", meet, store, 0, 2)
    while not store.check(["frogtorch/1/incarnation"]):
        time.sleep(0.01)
    side.start("second", meet, store, 0, 2)
    while not store.check(["frogtorch/2/incarnation"]):
        time.sleep(0.01)
    side.start(1, meet, store, 1, 2)
    results = side.join()
    assert "another rank 0 has come to the same store" in str(results["first"])
    assert results["second"][1] == {1: 1}


def test_a_second_process_of_the_same_rank_is_told_so():
    store = dist.HashStore()
    leave_behind(store, Endpoint("127.0.0.1", 9), came=True)
    with pytest.raises(RendezvousError, match=r"rank 0 has not come .* on this store had its rank 1.* another process"):
        meet(store, 1, 2, timeout=0.3)


# Time ------------------------------------------------------------------------------------------------------------


def test_the_timeout_is_the_groups_and_not_the_stores(side):
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=300))
    begin = time.monotonic()
    with pytest.raises(RendezvousError) as raised:
        meet(store, 0, 3, timeout=0.5)
    assert time.monotonic() - begin < 100
    assert ("group 'g': rank 1, rank 2 have not come to the rendezvous: rank 0 waited 0.5 s, the group's timeout, for "
            "rank 1's key 'frogtorch/1/endpoint/1' in the c10d store") in str(raised.value)
    # And a short one of the store's ends nothing.
    store = dist.HashStore()
    store.set_timeout(timedelta(milliseconds=10))
    side.start(0, meet, store, 0, 2)
    time.sleep(0.3)
    side.start(1, meet, store, 1, 2)
    assert side.join()[0][1] == {1: 1}


def test_who_waits_for_a_rank_leaves_the_store_to_others(side, monkeypatch):
    monkeypatch.setattr(rendezvous, "SLICE", 2 * GUARD)
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    side.start(0, meet, store, 0, 2)
    while not store.check(["frogtorch/1/endpoint/0"]):
        time.sleep(0.01)
    time.sleep(0.1)  # it waits for rank 1 now
    side.start(1, meet, store, 1, 2)  # on the same connection to the store, as another group of the process would be
    assert side.join()[0][1] == {1: 1}


def test_a_store_that_has_gone_ends_the_rendezvous_at_once():
    class Gone:
        def add(self, key, amount):
            raise RuntimeError("connection reset by peer")

    with pytest.raises(RendezvousError, match="store failed at the rendezvous of rank 1: connection reset"):
        come(Gone(), "g", 1, 2, [], 20.0, "127.0.0.1")


# Several addresses -----------------------------------------------------------------------------------------------


def run_meeting(door, rank, size, directory, *, timeout=20.0, delay=0.0):
    time.sleep(delay)
    one = Meeting(door, TOKEN, "g", rank, size, [Interest("arr")], directory)
    one.run(time.monotonic() + timeout, timeout, lambda: None)
    door.close()
    return one.links


@pytest.fixture
def doors():
    made = [Door("127.0.0.1"), Door("127.0.0.1")]
    yield made
    for door in made:
        door.close()


def test_the_address_that_works_is_used(side, doors, silent, nobody, monkeypatch):
    monkeypatch.setattr(meeting, "PATIENCE", 0.2)
    at = [Endpoint("127.0.0.1", nobody), Endpoint(*silent.getsockname()), doors[0].endpoints[0]]
    side.start(0, run_meeting, doors[0], 0, 2, {1: doors[1].endpoints})
    side.start(1, run_meeting, doors[1], 1, 2, {0: at})
    results = side.join()
    assert results[1][0].endpoint == doors[0].endpoints[0]
    assert results[0][1].endpoint.address == "127.0.0.1"


def test_the_first_address_is_kept_while_its_rank_is_busy(side, doors):
    # It connects at once; the greeting is answered when rank 0 has the time. The second would have worked as well.
    second = Door("127.0.0.2")
    both = Door("127.0.0.1")
    both.listeners += second.listeners
    at = both.endpoints + second.endpoints
    side.start(1, run_meeting, doors[1], 1, 2, {0: at})
    side.start(0, run_meeting, both, 0, 2, {1: doors[1].endpoints}, delay=3 * meeting.HEAD_START)
    assert side.join()[1][0].endpoint == at[0]


def test_both_sides_take_the_same_of_several_connections(side, monkeypatch):
    monkeypatch.setattr(meeting, "HEAD_START", 0.0)
    monkeypatch.setattr(meeting, "PATIENCE", 0.0)
    for turn in range(20):
        several = Door("127.0.0.1")
        for k in range(2, 6):
            more = Door(f"127.0.0.{k}")
            several.listeners += more.listeners
            several.endpoints += more.endpoints
        caller = Door("127.0.0.1")
        side.start(0, run_meeting, several, 0, 2, {1: caller.endpoints})
        side.start(1, run_meeting, caller, 1, 2, {0: several.endpoints}, delay=0.001 * (turn % 3))
        results = side.join()
        ours, theirs = results[0][1].sock, results[1][0].sock
        assert ours.getsockname() == theirs.getpeername()
        assert ours.getpeername() == theirs.getsockname()
        theirs.sendall(b"x")
        ours.setblocking(True)
        assert (results[0][1].early or ours.recv(1)) == b"x"
        ours.close()
        theirs.close()


# Who gets in -----------------------------------------------------------------------------------------------------


def test_a_greeting_said_again_opens_nothing(side, doors):
    recorded = wire.greet(TOKEN, 1, 2, 0, [Interest("arr")])
    side.start(0, run_meeting, doors[0], 0, 2, {1: doors[1].endpoints})
    with socket.create_connection(tuple(doors[0].endpoints[0])) as again:
        again.sendall(recorded)
        assert again.recv(4) == wire.MAGIC  # it was a good one, and is answered
        again.sendall(wire.choice(b"another secret", recorded))
        side.start(1, run_meeting, doors[1], 1, 2, {0: doors[0].endpoints})
        results = side.join()
        assert results[0][1].sock.getpeername() == results[1][0].sock.getsockname()
    # Nor does an answer that was given to another greeting pass for one to ours.
    answer = wire.greet(TOKEN, 0, 2, 1, [], answers=recorded)
    assert wire.admit(answer, TOKEN, 1, 2, answers=recorded).rank == 0
    with pytest.raises(wire.ProtocolError):
        wire.admit(answer, TOKEN, 1, 2, answers=wire.greet(TOKEN, 1, 2, 0, [Interest("arr")]))


def test_strangers_without_number_keep_no_member_out(side, doors):
    crowded = Door("127.0.0.1", backlog=128)
    side.start(0, run_meeting, crowded, 0, 2, {1: doors[1].endpoints})
    crowd = [socket.create_connection(tuple(crowded.endpoints[0])) for _ in range(STRANGERS + 20)]
    side.start(1, run_meeting, doors[1], 1, 2, {0: crowded.endpoints})
    results = side.join()
    assert results[0][1].sock.getpeername() == results[1][0].sock.getsockname()
    for one in crowd:
        one.close()


# Errors ----------------------------------------------------------------------------------------------------------


def test_both_sides_say_which_pair_at_which_addresses_and_what_to_set(side, quick, nobody):
    store = dist.HashStore()
    side.start(0, meet, store, 0, 2, advertise=Endpoint("127.0.0.1", nobody), ports=(0, 0))
    side.start(1, meet, store, 1, 2, address="127.0.0.3")
    results = side.join()
    ((_, port),) = parse_endpoints(store.get("frogtorch/1/endpoint/1").decode())
    said = (f"group 'g': rank 1 cannot connect to rank 0. Rank 0 says it is at 127.0.0.1:{nobody}; rank 1, at "
            f"127.0.0.3:{port}, tried 127.0.0.1:{nobody} from 127.0.0.3: refused. ")
    assert said in str(results[1])
    # Rank 0 does not wait for its own timeout.
    assert str(results[0]).startswith("group 'g': rank 0 waits no longer, as another rank gave up. rank 1: " + said)
    for result in results.values():
        assert isinstance(result, RendezvousError)
        for setting in ("FROGTORCH_ADDRESS", "FROGTORCH_ADVERTISE", "FROGTORCH_PORTS"):
            assert setting in str(result)


def test_both_sides_say_so_when_time_is_up(side, doors, silent):
    at = Endpoint(*silent.getsockname())
    side.start(0, run_meeting, doors[0], 0, 2, {1: doors[1].endpoints}, timeout=0.5)
    side.start(1, run_meeting, doors[1], 1, 2, {0: [at]}, timeout=0.5)
    results = side.join()
    assert "rank 1 waited 0.5 s for a connection with rank 0. Rank 0 says it is at " in str(results[1])
    assert re.search(rf"tried {at} from 127\.0\.0\.1: connected, but no greeting for \d", str(results[1]))
    assert (f"rank 0 waited 0.5 s for a connection with rank 1. Rank 1, at {doors[1].endpoints[0]}, was to connect to "
            f"rank 0 and was told {doors[0].endpoints[0]}. ") in str(results[0])
    assert "FROGTORCH_ADDRESS to it on rank 0" in str(results[0])


def test_a_caller_that_was_turned_away_is_named(side, doors):
    side.start(0, run_meeting, doors[0], 0, 2, {1: doors[1].endpoints}, timeout=3.0)
    side.start(1, run_meeting, doors[1], 0, 1, {})
    with socket.create_connection(tuple(doors[0].endpoints[0])) as liar:
        liar.sendall(wire.greet(b"x" * 16, 1, 2, 0, [Interest("arr")]))
        own = Endpoint(*liar.getsockname())
        assert f"turned away: {own}: it does not know the secret of this run" in str(side.join()[0])


def test_nothing_is_left_open(side):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # sockets of tests before this one
    store = dist.HashStore()
    before = descriptors()
    for _ in range(3):
        side.start(0, meet, store, 0, 2)
        side.start(1, meet, store, 1, 2)
        side.join()
    with pytest.raises(RendezvousError):
        meet(store, 0, 2, timeout=0.1)
    assert descriptors() == before
