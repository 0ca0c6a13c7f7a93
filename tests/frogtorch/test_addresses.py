"""Where a rank listens, what it tells the others, and which address they take."""

import asyncio
import contextlib
import ctypes
import json
import logging.handlers
import os
import pickle
import queue
import re
import socket
import subprocess
import threading
import time
import traceback
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import frogtorch
from frogtorch.memory import endpoint, rates
from frogtorch.memory.endpoint import Door, Endpoint, Interface, nearest_first, parse_address, parse_advertise
from frogtorch.memory.faults import RendezvousError
from frogtorch.memory.rates import BULK_BYTES, Rates
from frogtorch.memory.rendezvous import rendezvous

ANY = (0, 0)


def told(door):
    """What a door tells, without the port if that is one the kernel chose."""
    return [one.address for one in door.endpoints]


def listens(door):
    return [one.getsockname()[0] for one in door.listeners]


@pytest.fixture
def door():
    """Make doors, which are closed after the test."""
    made = []

    def make(*args, **kwargs):
        made.append(Door(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def host(monkeypatch):
    """A host with these interfaces, and these names in its hosts file."""

    def be(interfaces, names=()):
        names = dict(names)
        monkeypatch.setattr(endpoint, "interfaces", lambda: [Interface(*one) for one in interfaces])
        real = socket.getaddrinfo

        def look_up(name, *more, **named):
            return real(names.get(name, name), *more, **named)

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return be


# What is given ---------------------------------------------------------------------------------------------------


def test_texts_of_addresses():
    assert parse_address(" 10.0.0.5 ") == "10.0.0.5"
    assert parse_address("FD00:0::5") == "fd00::5"
    assert parse_address("::ffff:10.0.0.5") == "10.0.0.5"
    for text, said in (("seattle", r"address \(FROGTORCH_ADDRESS\): 'seattle' is no IP address"), ("", "no IP address"),
                       ("10.0.0", "no IP address"), ("10.0.0.5:29600", "no IP address"),
                       ("fe80::1%lo", "link-local")):
        with pytest.raises(ValueError, match=said):
            parse_address(text)
    assert parse_advertise("10.0.0.5") == ("10.0.0.5", 0)
    assert parse_advertise("10.0.0.5:29600") == ("10.0.0.5", 29600)
    assert parse_advertise("fd00::5") == ("fd00::5", 0)
    assert parse_advertise("[fd00::5]") == ("fd00::5", 0)
    assert parse_advertise("[fd00::5]:29600") == ("fd00::5", 29600)
    for text in ("seattle:29600", "10.0.0.5:", "10.0.0.5:0", "10.0.0.5:65536", "[10.0.0.5", "0.0.0.0:29600", "::", ""):
        with pytest.raises(ValueError, match=r"advertise \(FROGTORCH_ADVERTISE\)"):
            parse_advertise(text)
    for one in (Endpoint("10.0.0.5", 29600), Endpoint("fd00::5", 1)):
        assert parse_advertise(str(one)) == one


def test_options_are_refused_before_anything_happens():
    settings = frogtorch.Options(advertise="10.0.0.5:29600", ports="29600").resolved({"FROGTORCH_ADDRESS": "::"})
    assert (settings.address, settings.advertise, settings.ports) == ("::", ("10.0.0.5", 29600), (29600, 29600))
    for wrong, said in (({"address": "eth0"}, "'eth0' is no IP address"), ({"advertise": "eth0"}, "ADVERTISE")):
        with pytest.raises(ValueError, match=said):
            frogtorch.Options(**wrong)
    # A forwarded port leads to one port here, which has to be said.
    for ports in (None, "29600-29699"):
        with pytest.raises(ValueError, match=r"leads to one port of this host: set ports \(FROGTORCH_PORTS\)"):
            frogtorch.Options(advertise="10.0.0.5:29600", ports=ports).resolved({})


# Where a rank listens --------------------------------------------------------------------------------------------


def test_a_given_address_is_all_that_is_bound(door):
    one = door("127.0.0.7")
    assert listens(one) == told(one) == ["127.0.0.7"]
    port = one.endpoints[0].port
    with socket.create_connection(("127.0.0.7", port)):
        pass
    for other in ("127.0.0.1", "::1"):
        with pytest.raises(OSError, match=r"refused|assign"):
            socket.create_connection((other, port))


def test_an_address_of_another_host_is_refused():
    with pytest.raises(ValueError, match=r"192\.0\.2\.77 is none of this host's, which are: .*FROGTORCH_ADVERTISE"):
        Door("192.0.2.77")


@pytest.mark.parametrize(("store", "expected"), [
    # The host's own name is 127.0.1.1 here and nowhere else, and may be any loopback address.
    ("debian", ["127.0.0.8", "127.0.0.9"]),
    ("127.0.1.1", ["127.0.0.8", "127.0.0.9"]),
    ("nowhere.invalid", ["127.0.0.8", "127.0.0.9"]),
    (None, ["127.0.0.8", "127.0.0.9"]),
    # All ranks are here.
    ("localhost", ["127.0.0.1"]),
    ("127.0.0.1", ["127.0.0.1"]),
    ("::1", ["::1"]),
])
def test_loopback_is_told_only_to_ranks_of_this_host(door, host, store, expected):
    # 127.0.0.8 and 9 stand for addresses of real interfaces: they can be bound.
    host([("eth0", "127.0.0.8"), ("eth1", "127.0.0.9")], {"debian": "127.0.1.1"})
    one = door(store_host=store)
    assert listens(one) == told(one) == expected
    assert len({end.port for end in one.endpoints}) == 1  # for a firewall's sake


class NamedStore:
    """A store whose host has a name."""

    def __init__(self, store, name):
        self.store = store
        self.host = name

    def __getattr__(self, name):
        if name in ("clone", "underlying_store"):
            raise AttributeError(name)
        return getattr(self.store, name)


def test_what_a_debian_host_leaves_in_the_store(host):
    host([("eth0", "127.0.0.8")], {"debian": "127.0.1.1"})
    store = NamedStore(dist.HashStore(), "debian")
    rendezvous(store, "g", 0, 1, [], 10.0)
    (one,) = endpoint.parse_endpoints(store.get("frogtorch/1/endpoint/0").decode())
    assert one.address == "127.0.0.8"


def test_the_address_of_the_route_comes_first(door, host, monkeypatch):
    host([("eth0", "127.0.0.8"), ("eth1", "127.0.0.9")])
    monkeypatch.setattr(endpoint, "routes", lambda store: ["127.0.0.9"] if store == "store" else [])
    monkeypatch.setattr(endpoint, "ipaddress", SimpleNamespace(ip_address=lambda _: SimpleNamespace(is_loopback=False)))
    assert endpoint.candidates("store") == ["127.0.0.9", "127.0.0.8"]


def test_a_wildcard_is_bound_and_the_real_addresses_told(door, host):
    host([("eth0", "127.0.0.8"), ("eth0", "fd00::8"), ("eth1", "127.0.0.9")])
    four = door("0.0.0.0")
    assert listens(four) == ["0.0.0.0"]
    assert told(four) == ["127.0.0.8", "127.0.0.9"]
    six = door("::")
    assert told(six) == ["127.0.0.8", "fd00::8", "127.0.0.9"]
    for address in ("127.0.0.8", "::1"):
        with socket.create_connection((address, six.endpoints[0].port)):
            pass


def test_what_is_advertised_is_told_and_nothing_else(door, host):
    host([("eth0", "127.0.0.8"), ("eth1", "127.0.0.9")])
    # An address of the router in front: whichever of ours it forwards to.
    outside = door(advertise=Endpoint("203.0.113.5", 0))
    assert listens(outside) == ["127.0.0.8", "127.0.0.9"]
    assert outside.endpoints == [("203.0.113.5", outside.listeners[0].getsockname()[1])]
    # One of our own: that one alone is open.
    assert listens(door(advertise=Endpoint("127.0.0.9", 0))) == ["127.0.0.9"]
    assert door("127.0.0.8", Endpoint("203.0.113.5", 443), (29600, 29600)).endpoints == [("203.0.113.5", 443)]


def test_addresses_of_this_machine_are_those_that_ip_shows():
    shown = subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip("no ip command")
    has = {(line.split()[1], line.split()[3].split("/")[0]) for line in shown.stdout.splitlines()}
    found = endpoint.interfaces()
    assert {tuple(one) for one in found} <= has
    assert not [one for one in found if one.name == "lo" or one.address.startswith("fe80")]


# Ports -----------------------------------------------------------------------------------------------------------


def test_each_takes_a_free_port_of_the_range_until_none_is_left(door):
    first, second = door("127.0.0.66", ports=(29600, 29601)), door("127.0.0.66", ports=(29600, 29601))
    assert [first.endpoints, second.endpoints] == [[("127.0.0.66", 29600)], [("127.0.0.66", 29601)]]
    with pytest.raises(RendezvousError, match=r"no port of 29600-29601 is free at 127\.0\.0\.66.* more than 2 ports"):
        door("127.0.0.66", ports=(29600, 29601))
    with pytest.raises(RendezvousError, match=r"no port of 29600 is free at .*FROGTORCH_PORTS to more than 1 port,"):
        door("127.0.0.66", ports=(29600, 29600))
    first.close()
    assert door("127.0.0.66", ports=(29600, 29601)).endpoints == [("127.0.0.66", 29600)]


def test_a_port_is_free_again_while_the_connections_made_at_it_live_on(door):
    first = door("127.0.0.66", ports=(29610, 29610))
    caller = socket.create_connection(("127.0.0.66", 29610))
    called, _ = first.listeners[0].accept()
    first.close()
    assert door("127.0.0.66", ports=(29610, 29610)).endpoints == [("127.0.0.66", 29610)]
    caller.sendall(b"still here")
    assert called.recv(10) == b"still here"
    caller.close()
    called.close()


def test_where_the_port_is_taken_at_one_address_another_serves(door, host):
    host([("eth0", "127.0.0.8"), ("eth1", "127.0.0.9")])
    with socket.create_server(("127.0.0.9", 29620)):
        assert door(ports=(29620, 29621)).endpoints == [("127.0.0.8", 29620), ("127.0.0.9", 29621)]
        assert door(ports=(29622, 29622)).endpoints == [("127.0.0.8", 29622), ("127.0.0.9", 29622)]
    with socket.create_server(("127.0.0.9", 29623)):
        assert door(ports=(29623, 29623)).endpoints == [("127.0.0.8", 29623)]


def test_groups_take_their_ports_from_the_range(ranks):
    def run(rank, size):
        groups = [dist.new_group([0, 1, 2]) for _ in range(4)]
        group = dist.distributed_c10d._get_default_group()
        x = torch.ones(2)
        dist.all_reduce(x, group=groups[-1])
        return x.tolist(), [one._memory.endpoint for one in (group, *groups)], repr(group)

    settings = {"FROGTORCH_PORTS": "29630-29632", "FROGTORCH_ADDRESS": "127.0.0.67"}
    for rank, (total, endpoints, text) in enumerate(ranks(3, run, environment=settings)):
        assert total == [3.0, 3.0]
        assert {one.address for one in endpoints} == {"127.0.0.67"}
        assert {one.port for one in endpoints} <= {29630, 29631, 29632}
        for peer in {0, 1, 2} - {rank}:
            assert f"with rank {peer} at 127.0.0.67:" in text


# Which address is taken ------------------------------------------------------------------------------------------


def test_the_network_of_the_own_address_is_tried_first():
    theirs = [Endpoint("10.0.0.6", 1), Endpoint("fd00::6", 1), Endpoint("10.1.0.6", 1), Endpoint("10.0.1.6", 1)]
    assert [one.address for one in nearest_first(theirs, "10.0.1.5")] == ["10.0.1.6", "10.0.0.6", "10.1.0.6", "fd00::6"]
    assert nearest_first(theirs, "fd00::5")[0].address == "fd00::6"
    assert nearest_first(theirs, None) == theirs


@pytest.mark.parametrize("addresses", [("::1", "127.0.0.1"), ("127.0.0.1", "::1"), ("127.0.0.1", "::1", "127.0.0.2")])
def test_ranks_of_both_families_meet(addresses):
    met = all_meet(len(addresses), [{"address": one} for one in addresses])
    for rank, (_, own, links) in enumerate(met):
        assert own.address == addresses[rank]
        assert set(links) == set(range(len(addresses))) - {rank}
    assert met[1][2][0].endpoint.address == addresses[0]


def all_meet(size, settings):
    store = dist.HashStore()
    met = {}

    def come(rank):
        met[rank] = rendezvous(store, "g", rank, size, [], 20.0, **settings[rank])

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for _, _, links in met.values():
        for link in links.values():
            link.sock.close()
    return [met[rank] for rank in range(size)]


def test_a_published_port_is_dialled(door):
    # As docker publishes one: what comes to 127.0.0.68:port is passed on to 127.0.0.69:29640, where rank 0 listens.
    published = socket.create_server(("127.0.0.68", 0))

    async def passed(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def connected(reader, writer):
        there = await asyncio.open_connection("127.0.0.69", 29640)
        await asyncio.gather(passed(reader, there[1]), passed(there[0], writer))

    async def serve():
        async with await asyncio.start_server(connected, sock=published):
            while not over.is_set():
                await asyncio.sleep(0.05)

    over = threading.Event()
    serving = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    serving.start()
    public = Endpoint(*published.getsockname())
    (_, own, _), (_, _, links) = all_meet(2, [
        {"address": "127.0.0.69", "advertise": public, "ports": (29640, 29640)}, {"address": "127.0.0.70"}])
    over.set()
    serving.join(60)
    assert own == links[0].endpoint == public


# The slow one of two interfaces ----------------------------------------------------------------------------------


class Between:
    def __init__(self, ours, theirs):
        self.ends = Endpoint(ours, 1), Endpoint(theirs, 2)


def bulk(peer, seconds, nbytes=4 * BULK_BYTES):
    return SimpleNamespace(owner=peer, first=10.0, last=10.0 + seconds, view=range(nbytes))


def warnings(caplog, interfaces, monkeypatch, reads):
    monkeypatch.setattr(rates, "interfaces", lambda: [Interface(*one) for one in interfaces])
    monkeypatch.setattr(rates, "is_ours", lambda address: address == "10.0.0.5")
    paths = {1: Between("10.0.0.5", "10.0.0.6"), 2: Between("10.0.1.5", "10.0.1.7"), 3: Between("10.0.0.5", "10.0.0.5")}
    seen = Rates("g#1", 0, paths)
    caplog.clear()
    for read in reads:
        seen.saw(read, lambda function: function())
    return seen, [one.getMessage() for one in caplog.records if one.name == "frogtorch"]


TWO = [("eth0", "10.0.0.5"), ("eth1", "10.0.1.5")]
MIB4 = 4 * 1.048576  # MB


def test_a_slow_path_is_warned_of_once_if_there_is_another(caplog, monkeypatch):
    apart = [bulk(peer, seconds) for _ in range(6) for peer, seconds in ((1, 4.0), (2, 0.25))]  # 16 : 1
    seen, texts = warnings(caplog, TWO, monkeypatch, apart)
    assert texts == [
        f"group g#1: rank 0 reads from rank 1 at {MIB4 / 4:.2f} MB/s at best, over 10.0.0.5 - 10.0.0.6, but from rank "
        f"2 at {MIB4 * 4:.2f} MB/s, over 10.0.1.5 - 10.0.1.7. This host has other addresses: 10.0.1.5 (eth1). "
        f"If rank 1 can be reached from one of them, set FROGTORCH_ADDRESS to it here, and to the address in the same "
        f"network there."]
    assert seen.best[1] == pytest.approx(MIB4 * 1e6 / 4)
    # No other interface; fewer than five reads; a rate not far below; rank 3, on this host, as the measure.
    assert not warnings(caplog, TWO[:1], monkeypatch, apart)[1]
    assert not warnings(caplog, TWO, monkeypatch, apart[:8])[1]
    assert not warnings(caplog, TWO, monkeypatch, [bulk(p, s) for _ in range(6) for p, s in ((1, 2.0), (2, 0.25))])[1]
    assert not warnings(caplog, TWO, monkeypatch, [bulk(p, s) for _ in range(6) for p, s in ((1, 4.0), (3, 0.01))])[1]
    # One fast read shows that a path is good, as the slow ones may have shared it; but not that another is far better.
    assert not warnings(caplog, TWO, monkeypatch, [bulk(1, 0.3), *apart])[1]
    near = [bulk(peer, 1.0) for _ in range(6) for peer in (1, 2)]
    assert not warnings(caplog, TWO, monkeypatch, [*near, bulk(2, 0.01), bulk(1, 1.0)])[1]


def test_reads_of_a_group_are_measured(ranks, monkeypatch):
    # Loopback addresses are on this host, and left out; here they stand for another's.
    monkeypatch.setattr(Rates, "_between", lambda self, peer: self._connections[peer].ends)

    def run(rank, size):
        for _ in range(2):
            dist.all_reduce(torch.ones(1 << 20))
        dist.all_reduce(torch.ones(1 << 18))  # slices of 0.5 MiB
        seen = dist.distributed_c10d._get_default_group()._memory.rates
        return {peer: rate > 1e6 for peer, rate in seen.best.items()}, {p: len(r) for p, r in seen._latest.items()}

    # Slices of 2 MiB: a contribution and a sum of each of two rounds.
    assert ranks(2, run, options=frogtorch.Options(all_reduce="shard")) == [({1: True}, {1: 4}), ({0: True}, {0: 4})]


# In network namespaces -------------------------------------------------------------------------------------------


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
