"""Machines meet for a probe, and only those that are meant."""

import json
import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress

import pytest
from patience import assert_becomes

from emulator.hosts.netns import Network
from emulator.probe import meet, peer
from emulator.probe.channel import Channel, ChannelError
from emulator.probe.meet import MeetError, Place, lead, place
from emulator.topology import load

SECRET = "a secret of the test"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def pair(key=b"k", other=b"k"):
    one, two = socket.socketpair()
    return (one, two, Channel(one.recv, one.sendall, one.fileno(), key, b"coordinator", "the peer"),
            Channel(two.recv, two.sendall, two.fileno(), other, b"peer", "the coordinator"))


def test_messages_arrive_in_both_directions():
    one, two, ours, theirs = pair()
    with one, two:
        ours.send({"do": "go", "seconds": 0.5})
        ours.send({"do": "end"})
        assert [theirs.receive(1), theirs.receive(1)] == [{"do": "go", "seconds": 0.5}, {"do": "end"}]
        theirs.send({})
        assert ours.receive(1) == {}


def test_what_is_not_sealed_with_the_secret_is_refused():
    one, two, ours, theirs = pair(other=b"another")
    with one, two:
        ours.send({"do": "connect"})
        with pytest.raises(ChannelError, match="the coordinator sent a message with a wrong seal"):
            theirs.receive(1)


def test_a_message_that_comes_twice_or_comes_back_is_refused():
    one, two, ours, theirs = pair()
    with one, two:
        ours.send({"do": "go"})
        frame = two.recv(1000)
        one.sendall(frame + frame)
        assert theirs.receive(1) == {"do": "go"}
        with pytest.raises(ChannelError, match="wrong seal"):
            theirs.receive(1)
    one, two, ours, theirs = pair()
    with one, two:
        two.sendall(frame)
        with pytest.raises(ChannelError, match="wrong seal"):
            ours.receive(1)


def test_lengths_are_bounded_before_anything_is_read():
    one, two, ours, _ = pair()
    with one, two:
        two.sendall((1 << 31).to_bytes(4, "big") + bytes(32))
        with pytest.raises(ChannelError, match="announced a message of 2147483648 bytes; 1048576 are allowed"):
            ours.receive(1)


def test_no_more_is_read_than_the_message_that_is_returned():
    # Otherwise who then waits on the descriptor would wait for ever: it is what a peer does when all have met.
    one, two, ours, theirs = pair()
    with one, two:
        ours.send({})
        ours.send({"do": "open"})
        one.sendall(b"what is not for the channel")
        assert theirs.receive(1) == {}
        assert select.select([theirs], [], [], 1)[0]
        assert theirs.receive(1) == {"do": "open"}
        assert two.recv(100) == b"what is not for the channel"


def test_silence_and_the_end_are_told_apart():
    one, two, ours, _ = pair()
    with one:
        with two, pytest.raises(ChannelError, match="did not answer for 0 s"):
            ours.receive(0.05)
        with pytest.raises(ChannelError, match="the peer has ended"):
            ours.receive(1)


TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
            "FROGTORCH_SECRET": SECRET}


def test_torchrun_says_who_and_where():
    # torchrun's own store holds MASTER_PORT.
    where = place(None, None, None, "c", None, None, TORCHRUN)
    assert where == Place(2, 4, ("10.0.0.1", 29501), "c", None, SECRET.encode())
    assert SECRET not in repr(where)
    assert place(0, 2, "10.0.0.9:7", "c", "10.0.0.9", None, TORCHRUN).master == ("10.0.0.9", 7)


@pytest.mark.parametrize(("changes", "message"), [
    ({"RANK": ""}, "which of your machines is this\\? --rank is missing, and RANK is ''"),
    ({"RANK": "4"}, "rank 4 of 4 machines"),
    ({"LOCAL_WORLD_SIZE": "2"}, "one process a machine"),
    ({"MASTER_ADDR": ""}, "--master HOST:PORT is missing"),
    ({"MASTER_PORT": "65535"}, "is no HOST:PORT"),
    ({"FROGTORCH_SECRET": "short"}, "a common secret of 8 bytes or more"),
])
def test_what_is_missing_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        place(None, None, None, "c", None, None, TORCHRUN | changes)


def test_who_has_not_the_secret_is_let_go_and_the_others_are_waited_for(monkeypatch, capfd):
    monkeypatch.setattr(meet, "PATIENCE", 60.0)
    master = ("127.0.0.1", free_port())
    refused = []

    def come(rank, secret, world=2, task="probe"):
        try:
            with meet.follow(Place(rank, world, master, "b", None, secret), task) as channel:
                peer.serve(channel)
        except (MeetError, ChannelError) as error:
            refused.append(str(error))

    def noise():
        while True:
            try:
                with socket.create_connection(master) as sock:
                    sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    return
            except ConnectionRefusedError:
                time.sleep(0.05)

    def others():
        noise()
        come(1, b"another secret")
        come(1, SECRET.encode(), world=3)
        come(1, SECRET.encode(), task="measure")
        with monkeypatch.context() as patch:
            patch.setattr(meet.code, "sha256", lambda: "0123456789abcdef")
            come(1, SECRET.encode())
        come(1, SECRET.encode())

    thread = threading.Thread(target=others)
    thread.start()
    mine = meet.code.sha256()
    monkeypatch.setattr(meet.code, "sha256", lambda: mine)
    with lead(Place(0, 2, master, "a", None, SECRET.encode()), "probe", lambda *_: None) as meeting, \
            meet.peers(meeting) as (channels, addresses):
        assert list(channels) == ["a", "b"]
        assert addresses == {"a": "127.0.0.1", "b": "127.0.0.1"}
    thread.join(60)
    assert not thread.is_alive()      # the end of the coordinator ends the peers
    said = capfd.readouterr().err
    assert "is no `frogtorch`" in said
    assert "wrong seal: it has another secret" in said
    assert "it expects 3 machines, and rank 0 expects 2" in said
    assert "let this machine go without a word: either its secret (FROGTORCH_SECRET, --secret-file) is an" in refused[0]
    assert "it expects 3 machines, and rank 0 expects 2" in refused[1]
    assert "b was started to measure, and rank 0 to probe" in refused[2]
    assert "mixed code: b (rank 1) has other modules (SHA-256 0123456789ab…) than rank 0" in refused[3]
    assert len(refused) == 4      # the last came, and heard of the end


def meeting(names, act, ends):
    """Machines of those names meet for a probe, and rank 0's acts on it; how each of the others ended, into `ends`."""
    master = "127.0.0.1", free_port()

    def come(rank):
        try:
            with meet.follow(Place(rank, len(names), master, names[rank], None, SECRET.encode()), "probe") as channel:
                peer.serve(channel)
            ends[rank] = None
        except (MeetError, ChannelError) as error:
            ends[rank] = str(error)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(1, len(names))]
    for thread in threads:
        thread.start()
    try:
        with lead(Place(0, len(names), master, names[0], None, SECRET.encode()), "probe", lambda *_: None) as met, \
                meet.peers(met):
            act()
    finally:
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)


def test_machines_hear_that_rank_0_has_failed():
    def act():
        raise RuntimeError("no more disk")

    ends = {}
    with pytest.raises(RuntimeError, match="no more disk"):
        meeting("abc", act, ends)
    assert ends == dict.fromkeys((1, 2), "rank 0 has ended the probe: no more disk")
    meeting("ab", lambda: None, ends := {})
    assert ends == {1: None}


def test_machines_with_one_name_are_refused_on_all():
    ends = {}
    with pytest.raises(MeetError, match=r"two machines are called x, x \(rank 1, 127.0.0.1\) and x \(rank 2.*--name"):
        meeting("axx", lambda: None, ends)
    assert {*ends} == {1, 2}
    assert all(end.startswith("rank 0 refused: two machines are called x") for end in ends.values())


def test_a_machine_says_what_it_waits_for(monkeypatch, capfd):
    monkeypatch.setattr(meet, "PATIENCE", 0.0)
    where = Place(1, 2, ("no-such-host.invalid", 29600), "b", None, SECRET.encode())
    with pytest.raises(MeetError, match=r"rank 0 is not at no-such-host\.invalid:29600 after 0 s"), \
            meet.follow(where, "probe"):
        pass
    said = capfd.readouterr().err
    assert said.startswith("rank 0 is not at no-such-host.invalid:29600 yet ([Errno -")
    assert said.count("\n") == 1


def test_a_peer_outlives_a_connection_that_has_gone_before_it_is_accepted():
    class Gone:
        def accept(self):
            raise ConnectionAbortedError

    one, two, _, theirs = pair()
    with one, two:
        assert peer.Peer(theirs)._accept(Gone()) is None


def test_who_does_not_come_is_named_on_every_machine_that_is_there(monkeypatch):
    monkeypatch.setattr(meet, "PATIENCE", 3.0)
    master = "127.0.0.1", free_port()
    heard, waiting = [], threading.Event()

    def come():
        assert waiting.wait(60)
        with pytest.raises(MeetError) as refused, meet.follow(Place(2, 4, master, "c", None, SECRET.encode()), "probe"):
            pass
        heard.append(str(refused.value))

    thread = threading.Thread(target=come)
    thread.start()
    where = Place(0, 4, master, "a", None, SECRET.encode())
    with pytest.raises(MeetError, match="rank 1, 3 did not come"), lead(where, "probe", lambda *_: waiting.set()):
        pass
    thread.join(60)
    assert heard == ["rank 0 refused: rank 1, 3 did not come within 3 s"]


def test_a_further_connection_is_the_one_that_was_asked_for(monkeypatch):
    master = "127.0.0.1", free_port()
    follower = Place(1, 2, master, "b", None, SECRET.encode())

    def come():
        with meet.follow(follower, "measure"):
            for purpose in ({"program": 6}, {"program": 7}):      # the first is one that nobody waits for any more
                with suppress(ChannelError), meet.call(follower, purpose) as sock:
                    sock.sendall(b"seven")

    thread = threading.Thread(target=come)
    thread.start()
    with lead(Place(0, 2, master, "a", None, SECRET.encode()), "measure", lambda *_: None) as meeting, \
            meeting.connection(meeting.machines[1], {"program": 7}) as sock:
        assert sock.recv(100) == b"seven"
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.root
@pytest.mark.slow
def test_the_same_command_on_two_machines_writes_what_they_measured(tmp_path):
    file = tmp_path / "world.yaml"
    file.write_text("name: w\nsites: [s]\nhosts: {a: {site: s}, b: {site: s}}\n"
                    "paths: [{between: [s, s], delay: 5 ms, rate: 2 MB/s}, {from: b, to: a, rate: 4 MB/s}]\n")
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    outs = []
    with Network(load(file), f"meet-{os.getpid()}") as network:
        def probed():
            outs.append(tmp_path / f"out{len(outs)}")
            programs = []
            for rank, name in enumerate("ab"):
                command = [sys.executable, "-c", "import sys; from scenarios.cli import main; sys.exit(main())",
                           "probe", "--rank", str(rank), "--world", "2", "--master",
                           f"{network.addresses['a']}:29600", "--name", name, "--secret-file", str(secret),
                           "--output", str(outs[-1])]
                programs.append(network.spawn(name, command))
            said = [program.stdout.read().decode() for program in programs]
            assert [program.wait(60) for program in programs] == [0, 0]
            assert "limited by" in said[0]
            assert said[1] == ""
            there, back = (load(outs[-1] / "topology.yaml").path(*pair) for pair in ("ab", "ba"))
            return [there.rate, back.rate, there.delay]

        assert_becomes([pytest.approx(2e6, rel=0.02), pytest.approx(4e6, rel=0.02), pytest.approx(5e-3, abs=0.5e-3)],
                       probed)
    read = load(outs[-1] / "topology.yaml")
    # Half a group cannot be told from the whole: with two hosts a limit may as well be the access's.
    assert "cannot be told" in read.text
    lines = [json.loads(line) for line in (outs[-1] / "measurements.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines] == ["survey", "host", "host", "echoes", *["trial"] * 4]
    assert {flow["source"] + flow["target"] for line in lines[4:] for flow in line["flows"]} == {"ab", "ba"}
