"""Ranks on two hosts that two networks join, each in a namespace: which addresses they meet at, and what they say."""

import ctypes
import json
import logging.handlers
import os
import pickle
import queue
import re
import socket
import subprocess
import time
import traceback
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from frogtorch.memory import endpoint
from frogtorch.memory.faults import RendezvousError
from frogtorch.memory.rendezvous import rendezvous


def running(namespace):
    """Interfaces of a namespace through which something can go."""
    shown = subprocess.run(["ip", "-n", namespace, "-json", "link"], capture_output=True, check=True).stdout
    return {one["ifname"] for one in json.loads(shown) if one["operstate"] == "UP"}


@pytest.fixture
def two_hosts():
    """Hosts a and b, joined by networks n1 and n2, 10.77.<n>.0/24 and fd77:<n>::/64: a is 1 in each, b is 2."""
    names = {host: f"ft-{os.getpid()}-{host}" for host in "ab"}
    made = []

    def run(host, command):
        subprocess.run(["ip", "netns", "exec", names[host], *command.split()], check=True)

    try:
        for name in names.values():
            subprocess.run(["ip", "netns", "add", name], check=True)
            made.append(name)
        for net in (1, 2):
            run("a", f"ip link add n{net} type veth peer name n{net} netns {names['b']}")
        for number, host in enumerate("ab", 1):
            run(host, "ip link set lo up")
            for net in (1, 2):
                run(host, f"ip address add 10.77.{net}.{number}/24 dev n{net}")
                run(host, f"ip address add fd77:{net}::{number}/64 dev n{net} nodad")
                run(host, f"ip link set n{net} up")
        for host in "ab":  # the kernel takes its time to call them running
            until = time.monotonic() + 60
            while running(names[host]) < {"n1", "n2"} and time.monotonic() < until:
                time.sleep(0.05)
        yield SimpleNamespace(names=names, run=run)
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def on_hosts(network, function, *, hosts="ab", files=(None, None, None)):
    """Run ``function(rank)`` as rank 0 on the first of `hosts`, and so on, with these /etc/hosts; what they return."""
    pids, pipes = [], []
    libc = ctypes.CDLL(None)
    for rank, host in enumerate(hosts):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            try:
                with open(f"/var/run/netns/{network.names[host]}", encoding="ascii") as namespace:
                    assert libc.setns(namespace.fileno(), 0) == 0
                if files[rank] is not None:
                    assert libc.unshare(0x20000) == 0  # CLONE_NEWNS: the mount is seen, and lasts, here alone
                    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
                    subprocess.run(["mount", "--bind", files[rank], "/etc/hosts"], check=True)
                said = function(rank)
            except BaseException:
                said = traceback.format_exc(), ""
            os.write(theirs, pickle.dumps(said))
            os._exit(0)
        os.close(theirs)
        pids.append(pid)
        pipes.append(ours)
    results = []
    for pid, pipe in zip(pids, pipes, strict=True):
        with os.fdopen(pipe, "rb") as said:
            results.append(pickle.loads(said.read()))
        os.waitpid(pid, 0)
    return results


def in_namespaces(network, stores, settings, *, timeout=20.0):
    """Run a rendezvous of a rank on each host, the store on host a, at the address in `stores` for each rank.

    For each rank: the addresses of its connection, ours and theirs, or the error's text; and what it told the others.
    """
    return on_hosts(network, lambda rank: in_namespace(stores[rank], rank, settings[rank], timeout))


def in_namespace(host, rank, settings, timeout):
    store = dist.TCPStore(host, 29500, None, rank == 0, timedelta(seconds=20), wait_for_workers=False)
    try:
        _, _, links = rendezvous(store, "g", rank, 2, [], timeout, **settings)
        sock = links[1 - rank].sock
        found = sock.getsockname()[0], sock.getpeername()[0]
    except RendezvousError as error:
        found = str(error)
    told = store.get(f"frogtorch/1/endpoint/{rank}").decode()
    store.add("done", 1)
    until = time.monotonic() + 60
    while rank == 0 and store.add("done", 0) < 2 and time.monotonic() < until:  # it holds the store
        time.sleep(0.02)
    return found, told


@pytest.mark.root
def test_the_route_to_the_store_is_taken_and_everything_told(two_hosts):
    (zero, told), (one, _) = in_namespaces(two_hosts, ["10.77.2.1", "10.77.2.1"], [{}, {}])
    assert zero == ("10.77.2.1", "10.77.2.2")
    assert one == ("10.77.2.2", "10.77.2.1")
    ends = endpoint.parse_endpoints(told)
    assert [end.address for end in ends] == ["10.77.2.1", "10.77.1.1", "fd77:1::1", "fd77:2::1"]
    assert len({end.port for end in ends}) == 1


@pytest.mark.root
def test_one_rank_prefers_ipv6_and_the_other_ipv4(two_hosts):
    (zero, told), (one, theirs) = in_namespaces(two_hosts, ["fd77:1::1", "10.77.1.1"], [{}, {}])
    assert told.startswith("[fd77:1::1]:")
    assert theirs.startswith("10.77.1.2:")
    assert one == ("fd77:1::2", "fd77:1::1")  # what rank 0 says comes first
    assert zero == one[::-1]
    # And where IPv6 leads nowhere, the next is taken.
    for net in (1, 2):
        two_hosts.run("b", f"ip -6 route flush dev n{net}")
    assert in_namespaces(two_hosts, ["fd77:1::1", "10.77.1.1"], [{}, {}])[1][0] == ("10.77.1.2", "10.77.1.1")


@pytest.mark.root
def test_the_other_network_is_taken_where_a_firewall_swallows_the_first(two_hosts):
    two_hosts.run("a", "iptables -A INPUT -i n1 -p tcp --dport 29500 -j ACCEPT")
    for command in ("iptables", "ip6tables"):
        two_hosts.run("a", f"{command} -A INPUT -i n1 -p tcp --syn -j DROP")
    begin = time.monotonic()
    assert in_namespaces(two_hosts, ["10.77.1.1", "10.77.1.1"], [{}, {}])[1][0] == ("10.77.2.2", "10.77.2.1")
    assert time.monotonic() - begin < 60  # the kernel tries a swallowed connection for two minutes


@pytest.mark.root
def test_one_open_port_is_enough(two_hosts):
    for port in (29500, 29650):
        two_hosts.run("a", f"iptables -A INPUT -p tcp --dport {port} -j ACCEPT")
    for command in ("iptables", "ip6tables"):
        two_hosts.run("a", f"{command} -A INPUT -p tcp --syn -j DROP")
    stores = ["10.77.1.1", "10.77.1.1"]
    ports = {"ports": (29650, 29650)}
    assert in_namespaces(two_hosts, stores, [ports, {}])[1][0] == ("10.77.1.2", "10.77.1.1")
    (zero, _), (one, _) = in_namespaces(two_hosts, stores, [{}, {}], timeout=1.5)
    assert "set FROGTORCH_PORTS to ports that it lets through" in zero
    assert re.search(r"from 10\.77\.1\.2: timed out, no answer for \d", one)
    assert "from 10.77.2.2: timed out, no answer for " in one


@pytest.mark.root
def test_the_wrong_interface_on_one_host(two_hosts, monkeypatch):
    monkeypatch.setattr("frogtorch.memory.rendezvous.SUCCESSOR", 0.3)
    # Rank 0 was told to listen on a network that rank 1's host is not in.
    two_hosts.run("b", "ip link set n2 down")
    (zero, told), (one, theirs) = in_namespaces(
        two_hosts, ["10.77.1.1", "10.77.1.1"], [{"address": "10.77.2.1"}, {"address": "10.77.1.2"}])
    said = (f"rank 1 cannot connect to rank 0. Rank 0 says it is at {told}; rank 1, at {theirs}, tried {told} from "
            f"10.77.1.2: no route to it. The lower rank is connected to: if its host has an address that the other "
            f"reaches, set FROGTORCH_ADDRESS to it on rank 0")
    assert said in one
    assert zero.startswith("group 'g': rank 0 waits no longer")
    assert said in zero


@pytest.mark.root
def test_debian_hosts_whose_names_are_127_0_1_1(two_hosts, tmp_path):
    # Each host's own name is loopback there, the other's is right.
    files = [tmp_path / "a", tmp_path / "b"]
    files[0].write_text("127.0.0.1 localhost\n127.0.1.1 host-a\n10.77.1.2 host-b\n", encoding="ascii")
    files[1].write_text("127.0.0.1 localhost\n127.0.1.1 host-b\n10.77.1.1 host-a\n", encoding="ascii")

    def run(rank):
        assert socket.gethostbyname(f"host-{'ab'[rank]}") == "127.0.1.1"
        dist.init_process_group("frogtorch", init_method="tcp://host-a:29500", rank=rank, world_size=2,
                                timeout=timedelta(seconds=20))
        x = torch.ones(4)
        dist.all_reduce(x)
        group = dist.distributed_c10d._get_default_group()
        text = repr(group)
        dist.destroy_process_group()
        return x.tolist(), text

    (zero, at_a), (one, at_b) = on_hosts(two_hosts, run, files=files)
    assert zero == one == [2.0] * 4
    assert "127." not in at_a + at_b
    assert "rank 0 of 2 at 10.77.1.1:" in at_a
    assert "with rank 0 at 10.77.1.1:" in at_b


@pytest.mark.root
def test_a_rank_on_the_slow_one_of_two_networks(two_hosts):
    # Ranks 1 and 2 on host b, one over each network, of which the first carries 2 MB/s.
    two_hosts.run("b", "tc qdisc add dev n1 root handle 1: htb default 1")
    two_hosts.run("b", "tc class add dev n1 parent 1: classid 1:1 htb rate 16mbit burst 16k quantum 1514")

    def run(rank):
        if rank:
            os.environ["FROGTORCH_ADDRESS"] = f"10.77.{rank}.2"
        said = queue.SimpleQueue()
        logging.getLogger("frogtorch").addHandler(logging.handlers.QueueHandler(said))
        dist.init_process_group("frogtorch", init_method="tcp://10.77.1.1:29500", rank=rank, world_size=3,
                                timeout=timedelta(seconds=60))
        for root in (2, 1) * 5:
            dist.broadcast(torch.zeros(1 << 18), root)
        text = said.get(timeout=60).getMessage() if rank == 0 else ""
        rates = dist.distributed_c10d._get_default_group()._memory.rates.best
        dist.destroy_process_group()
        return text, rates

    (text, rates), *others = on_hosts(two_hosts, run, hosts="abb")
    assert rates[1] == pytest.approx(2e6, rel=0.15)
    assert ": rank 0 reads from rank 1 at " in text
    assert "over 10.77.1.1 - 10.77.1.2, but from rank 2 at " in text
    assert "over 10.77.2.1 - 10.77.2.2. This host has other addresses: 10.77.2.1 (n2), fd77:2::1 (n2). If" in text
    assert [set(rates) for _, rates in others] == [set(), set()]  # they read from each other, on one host
