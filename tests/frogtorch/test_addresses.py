"""Where a rank listens, what it tells the others, and which address they take."""

import asyncio
import contextlib
import socket
import subprocess
import threading
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
