"""Jitter and loss: their law, worked out by hand, and what real packets make of it."""

import math
import os
import socket
import statistics
import struct
import time

import pytest

from emulator.hosts.netns import Network
from emulator.links import engines
from emulator.links.holding import Holding, seed
from emulator.links.loss import lost
from emulator.links.namespace import LinkError
from emulator.topology import load


def law(**fields):
    made = Holding(7)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_constant_delay_is_added():
    assert [law(delay=0.035).due(when) for when in (1.0, 2.0)] == [1.035, 2.035]


def test_jitter_is_normal_cut_at_four_deviations():
    made = law(delay=0.05, jitter=0.002)
    holds = [made.due(0.0) for _ in range(20_000)]
    # Mean and deviation within five standard errors: sigma / sqrt(n), and about sigma / sqrt(2 n).
    assert statistics.fmean(holds) == pytest.approx(0.05, abs=5 * 0.002 / math.sqrt(20_000))
    assert statistics.stdev(holds) == pytest.approx(0.002, abs=5 * 0.002 / math.sqrt(40_000))
    within = sum(abs(hold - 0.05) < 0.002 for hold in holds) / len(holds)
    assert within == pytest.approx(0.6827, abs=0.02)      # of a normal distribution
    assert max(holds) <= 0.05 + 4 * 0.002
    assert min(holds) >= 0.05 - 4 * 0.002


def test_no_packet_is_let_go_before_it_came():
    made = law(delay=0.001, jitter=0.001)
    assert min(made.due(5.0) for _ in range(2000)) == 5.0      # one in six drew a hold below zero


def test_the_share_that_is_lost():
    made = law(loss=0.01)
    # Five standard errors of a share of 60,000: sqrt(0.01 * 0.99 / 60000) = 0.04 %.
    assert sum(made.due(0.0) is None for _ in range(60_000)) / 60_000 == pytest.approx(0.01, abs=0.002)
    assert all(law(loss=1).due(0.0) is None for _ in range(100))


def test_chance_is_the_same_in_each_run_and_another_on_each_path():
    def fates(begin, **fields):
        made = Holding(begin)
        made.delay, made.loss, made.jitter = 0.01, 0.2, fields.get("jitter", 0.0)
        return [made.due(0.0) for _ in range(200)]

    one, other = seed("world", "a", "b"), seed("world", "b", "a")
    assert fates(one, jitter=0.001) == fates(one, jitter=0.001)
    assert fates(one) != fates(other)
    assert seed("other world", "a", "b") != one
    # What is lost does not depend on the jitter.
    assert [due is None for due in fates(one)] == [due is None for due in fates(one, jitter=0.001)]
    assert 0 <= one < 2**64


@pytest.fixture(params=engines.ENGINES)
def engine(request):
    try:
        engines.choose(request.param)
    except LinkError as error:
        pytest.skip(str(error))
    return request.param


def world(tmp_path, fields):
    file = tmp_path / "world.yaml"
    file.write_text("name: world\nsites: [s]\nhosts:\n  a: {site: s}\n  b: {site: s}\npaths:\n"
                    "  - {between: [s, s], delay: 5 ms, rate: 10 MB/s}\n" f"  - {{from: a, to: b, {fields}}}\n")
    return load(file)


def network(topology, engine):
    return Network(topology, f"chance-{engine}-{os.getpid()}", engine=engine)


@pytest.mark.root
@pytest.mark.slow
def test_one_per_cent_of_the_packets_is_lost(tmp_path, engine):
    lossy = world(tmp_path, "loss: 1 %")
    with network(lossy, engine) as links:
        missing = lost(links, lossy.path("a", "b"), 60_000)
        assert lost(links, lossy.path("b", "a"), 2000) == []      # the other direction loses none
        links.check()
    # 0.15 % is 3.7 standard errors; but chance is seeded, so it is the same in each run.
    assert len(missing) / 60_000 == pytest.approx(0.01, abs=0.0015)


@pytest.mark.root
def test_the_same_packets_are_lost_in_each_run(tmp_path, engine):
    lossy = world(tmp_path, "loss: 10 %")
    missing = []
    for _ in range(2):
        with network(lossy, engine) as links:
            if not links.stamp["seeded"]:
                pytest.skip(f"this kernel's {engine} takes no seed")
            missing.append(lost(links, lossy.path("a", "b"), 1000))
    assert missing[0] == missing[1]
    assert 60 < len(missing[0]) < 140


@pytest.mark.root
def test_tcp_loses_segments_one_by_one(tmp_path, engine):
    lossy = world(tmp_path, "loss: 2 %")
    with network(lossy, engine) as links:
        segments, resent = transfer(links, 6_000_000)
    # 6 MB are 4144 segments of 1448 B. If joined ones were lost together, each loss would cost dozens.
    assert segments - resent == pytest.approx(4144, abs=200)
    assert resent / segments == pytest.approx(0.02, abs=0.012)      # five standard errors of 2 % of 4144


def transfer(links, count):
    """Data segments that a sent to b and that it sent again, by tcp_info, to bring `count` bytes over."""
    with links.namespaces["b"].socket(socket.SOCK_STREAM) as listener:
        listener.bind((links.addresses["b"], 0))
        listener.listen()
        sender = links.namespaces["a"].socket(socket.SOCK_STREAM)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
    child = os.fork()
    if child == 0:
        while receiver.recv(1 << 16):
            pass
        os._exit(0)
    receiver.close()
    with sender:
        sender.sendall(bytes(count))
        while struct.unpack_from("I", sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 24)[0]:
            time.sleep(0.05)      # tcpi_unacked
        info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        sender.shutdown(socket.SHUT_WR)
    os.waitpid(child, 0)
    # struct tcp_info of linux/tcp.h: tcpi_total_retrans at 100, tcpi_data_segs_out at 156
    return struct.unpack_from("I", info, 156)[0], struct.unpack_from("I", info, 100)[0]


@pytest.mark.root
def test_jitter_spreads_packets_and_keeps_their_order(tmp_path, engine):
    spread = world(tmp_path, "delay: 20 ms, jitter: 3 ms")
    gaps = 0.02      # between packets far enough apart that none waits for the one before it
    with network(spread, engine) as links:
        slow = one_way(links, [gaps] * 150)
        dense = one_way(links, [0.0002] * 1000)
    assert [number for number, _ in slow] == list(range(150))
    assert [number for number, _ in dense] == list(range(1000))
    # By quartiles, which the few that a busy machine holds up leave where they are; a normal distribution's are 1.349
    # deviations apart. Five standard errors of 150: of the median 1.25 x 3 ms / sqrt(150), of the deviation that the
    # quartiles say 1.17 x 3 ms / sqrt(150).
    low, median, high = statistics.quantiles(seconds for _, seconds in slow)
    assert median == pytest.approx(0.02, abs=5 * 1.25 * 0.003 / math.sqrt(150) + 0.0005)
    assert (high - low) / 1.349 == pytest.approx(0.003, abs=5 * 1.17 * 0.003 / math.sqrt(150) + 0.0005)


def one_way(links, gaps):
    """(number, seconds from sending to arrival) of datagrams from a to b, as they arrive."""
    sender = links.namespaces["a"].socket(socket.SOCK_DGRAM)
    receiver = links.namespaces["b"].socket(socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.bind((links.addresses["b"], 0))
        found, asked = [], []
        for number, gap in enumerate(gaps):
            asked.append(time.monotonic())
            sender.sendto(struct.pack("!I", number), receiver.getsockname())
            until = time.monotonic() + gap
            while (left := until - time.monotonic()) > 0:
                receiver.settimeout(left)
                try:
                    found.append((struct.unpack("!I", receiver.recv(4))[0], time.monotonic()))
                except TimeoutError:
                    break
        receiver.settimeout(60)
        while len(found) < len(gaps):
            found.append((struct.unpack("!I", receiver.recv(4))[0], time.monotonic()))
    return [(number, arrived - asked[number]) for number, arrived in found]
