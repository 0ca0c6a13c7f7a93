"""Machines of the user's as hosts: what they do when told, what they refuse, and what is said when one is lost."""

import os
import socket
import subprocess
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from emulator.hosts import code, external, machine
from emulator.hosts.external import Found, Machines, match, refuse
from emulator.links.namespace import LinkError
from emulator.probe import meet
from emulator.probe.channel import ChannelError
from emulator.probe.meet import MeetError, Place
from emulator.topology import TopologyError, load

SECRET = b"a secret of the test"


@contextmanager
def machines(monkeypatch, names=("a", "b"), ends=None):
    """Machines of those names, all of them this one. What each but the first has ended with is put into `ends`."""
    monkeypatch.setattr(meet, "PATIENCE", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        master = sock.getsockname()
    ends = {} if ends is None else ends

    def serve(rank):
        where = Place(rank, len(names), master, names[rank], None, SECRET)
        try:
            with meet.follow(where, external.TASK) as channel:
                machine.serve(where, channel)
            ends[rank] = None
        except (MeetError, ChannelError) as error:
            ends[rank] = str(error)

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(1, len(names))]
    for thread in threads:
        thread.start()
    try:
        where = Place(0, len(names), master, names[0], None, SECRET)
        with meet.lead(where, external.TASK, lambda *_: None) as meeting, Machines(meeting) as found:
            yield found
    finally:
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def test_a_program_runs_on_another_machine_with_pipes_and_an_exit_code(monkeypatch):
    ends = {}
    with machines(monkeypatch, "ab", ends) as found:
        assert [found.is_here(name) for name in "ab"] == [True, False]
        for name in "ab":
            program = found.start(name, "emulator.hosts.code", [])
            assert program.stdout.read() == code.sha256().encode() + b"\n"
            assert program.wait(60) == program.poll() == 0
    assert ends == {1: None}


def test_a_program_hears_the_end_of_its_input_and_can_be_killed(monkeypatch):
    with machines(monkeypatch) as found:
        one, two = (found.start("b", "emulator.probe.peer", []) for _ in range(2))
        assert one.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(0.1)
        one.stdin.close()
        assert one.wait(60) == 0
        two.kill()
        assert two.wait(60) == -9
        assert two.stdout.read() == b""


def test_programs_end_with_the_run_and_the_machines_hear_why(monkeypatch):
    ends, started = {}, []
    with pytest.raises(RuntimeError, match="no more disk"), machines(monkeypatch, "abc", ends) as found:  # noqa: PT012
        started.append(found.start("c", "emulator.probe.peer", []).pid)
        raise RuntimeError("no more disk")
    assert ends == dict.fromkeys((1, 2), "rank 0 has ended the run: no more disk")
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_nothing_but_this_code_is_started(monkeypatch):
    with machines(monkeypatch) as found:
        with pytest.raises(LinkError, match=r"b \(rank 1, 127.0.0.1\) could not start: .* shutil is no module of this"):
            found.start("b", "shutil", [])
        assert found.start("b", "emulator.hosts.code", []).wait(60) == 0      # and it goes on


def test_a_machine_that_is_lost_is_named_and_its_programs_count_as_ended(monkeypatch):
    with machines(monkeypatch) as found:
        program = found.start("b", "emulator.probe.peer", [])
        found.by_name["b"].channel.send({"do": "end"})
        with pytest.raises(LinkError, match=r"is lost: b \(rank 1, 127.0.0.1\) (has ended|is gone).*--resume"):
            found.ask("b", "here")
        asked = []      # nothing more: it has not answered once
        monkeypatch.setattr(found.by_name["b"].channel, "send", asked.append)
        program.kill()
        assert program.wait() == -9
        with pytest.raises(LinkError, match="a machine is lost"):
            found.start("b", "emulator.hosts.code", [])
        assert asked == []


def test_two_machines_with_one_name_are_refused_on_all(monkeypatch):
    ends = {}
    with pytest.raises(MeetError, match=r"two machines are called x, x \(rank 1, 127.0.0.1\) and x \(rank 2"), \
            machines(monkeypatch, "axx", ends):
        pass
    assert all("two machines are called x" in end for end in ends.values())
    assert {*ends} == {1, 2}


TOPOLOGY = """\
name: t
sites: [s]
hosts:
  a: {site: s}
  b: {site: s}
  c: {site: s}
paths: [{between: [s, s], delay: 1 ms, rate: 2 MB/s}]
"""


@pytest.fixture
def topology(tmp_path):
    (tmp_path / "t.yaml").write_text(TOPOLOGY)
    return load(tmp_path / "t.yaml")


def test_a_machine_is_the_host_of_its_name(topology):
    match(topology, topology.select("ab"), ["b", "a"])
    match(topology, topology.select("ab"), ["b", "c", "a"])      # one that no world has is idle
    with pytest.raises(LinkError, match=r"no host of .*t.yaml is called x: .*--name HOST, one of a, b, c"):
        match(topology, topology.select("ab"), ["a", "b", "x"])
    with pytest.raises(LinkError, match=r"t.yaml:5: no machine is called b, which the scenario's worlds need; the "
                                        "machines are a, c"):
        match(topology, topology.select("ab"), ["a", "c"])


def test_what_a_network_that_is_left_as_it_is_cannot_do_is_refused(topology, tmp_path):
    refuse(topology, "auto", 1.0)
    with pytest.raises(LinkError, match="--engine tun"):
        refuse(topology, "tun", 1.0)
    with pytest.raises(LinkError, match="speed-up 10: machines run at life size"):
        refuse(topology, "auto", 10.0)
    (tmp_path / "later.yaml").write_text(TOPOLOGY + "timeline:\n  traffic: [{from: a, to: b, start: 1 s, end: 2 s}]\n")
    with pytest.raises(TopologyError, match=r"later.yaml:8: .*follows no timeline"):
        refuse(load(tmp_path / "later.yaml"), "auto", 1.0)


@pytest.mark.parametrize(("rtt", "goodput", "valid"), [
    (0.0209, 95.1, True), (0.0189, 100.0, False), (0.0200, 94.9, False), (0.0200, 105.1, False)])
def test_a_path_is_as_it_was_probed_within_five_per_cent(rtt, goodput, valid):
    assert Found("a", "b", rtt, 0.0200, goodput, 100.0).valid is valid


def test_a_round_trip_that_is_short_may_be_a_millisecond_off():
    assert Found("a", "b", 0.0011, 0.0002, 100.0, None).valid
    assert not Found("a", "b", 0.0013, 0.0002, 100.0, None).valid


def test_a_device_is_found_by_its_address():
    assert machine.device_of("127.0.0.1") == "lo"
    with pytest.raises(ValueError, match=r"has 192.0.2.1 as its first address: .*--address"):
        machine.device_of("192.0.2.1")


def test_ranks_have_clocks_of_their_own_on_other_machines(topology):
    here = SimpleNamespace(address="127.0.0.1", channel=None)
    far = SimpleNamespace(address="192.0.2.1", channel=object())
    found = Machines(SimpleNamespace(machines=[]))
    found.by_name = {"a": here, "b": far, "c": far}
    network = external.Network(found, "a.store", topology, "run")
    assert [network.own_clock(host) for host in "abc"] == [False, True, True]
    assert network.addresses == {"a": "127.0.0.1", "b": "192.0.2.1", "c": "192.0.2.1"}
    with pytest.raises(TopologyError, match="left as it is"):
        network.change(topology)
    with pytest.raises(LinkError, match="run is not up"), network.rendezvous():
        pass
