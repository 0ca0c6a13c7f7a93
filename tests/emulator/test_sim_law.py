"""Loss and jitter against published figures and what can be worked out of the laws."""

import math
import statistics
from random import Random

import pytest
from simpy import Environment

from emulator.sim.connection import Connections
from emulator.sim.law import held, lossy_rate, window
from emulator.topology import Host, Path, Topology

SEGMENT, FRAME = 1448, 1514


@pytest.mark.parametrize(("loss", "reno", "cubic"), [(1e-2, 12, 12), (1e-3, 38, 38), (1e-4, 120, 187),
                                                     (1e-5, 379, 1054), (1e-6, 1200, 5926)])
def test_windows_are_those_of_rfc_9438(loss, reno, cubic):
    """Its table for C = 0.4 and a round trip of 0.1 s, where the root of 3/2 is rounded to 1.2."""
    assert window(loss, 0.1, "reno") == pytest.approx(reno, rel=0.023)
    assert window(loss, 0.1, "cubic") == pytest.approx(cubic, rel=0.023)


def test_a_rate_is_a_window_a_round_trip():
    assert lossy_rate(0.0006, 0.2, "reno") == pytest.approx(50 * FRAME / 0.2)


def test_one_packet_is_held_for_the_delay_and_its_share_of_the_jitter():
    random = Random(1)
    times = [held(0.1, 0.01, 1, 0.0, random) for _ in range(20_000)]
    assert statistics.mean(times) == pytest.approx(0.1, abs=3e-4)
    assert statistics.stdev(times) == pytest.approx(0.01, abs=3e-4)
    assert max(abs(time - 0.1) for time in times) <= 0.04 + 1e-12


def test_the_last_of_several_waits_for_those_before_it():
    """The greater of two normal variables is 1/√π deviations above the mean on average; far apart it is one alone."""
    random = Random(1)
    together = [held(0.1, 0.01, 2, 0.0, random) for _ in range(20_000)]
    assert statistics.mean(together) == pytest.approx(0.1 + 0.01 / math.sqrt(math.pi), abs=3e-4)
    apart = [held(0.1, 0.01, 2, 1.0, random) for _ in range(20_000)]
    assert statistics.mean(apart) == pytest.approx(0.1, abs=3e-4)


def test_nothing_is_held_for_less_than_no_time():
    assert min(held(0.01, 0.01, 1, 0.0, Random(seed)) for seed in range(1000)) == 0.0


def arrivals(sizes, apart=0.0, **path):
    """When messages from a to b arrive, sent `apart` seconds after each other."""
    paths = [Path("a", "b", None, **{"delay": 0.035, **path}), Path("b", "a", None, 0.035)]
    world = Topology("test", "test.yaml", (Host("a", "s"), Host("b", "s")), paths, (), "cubic", "")
    env = Environment()
    channel = Connections(env, world, ["a", "b"]).channel(0, 1)
    seen = []
    for i, nbytes in enumerate(sizes):
        env.timeout(i * apart).callbacks.append(lambda _, n=nbytes: channel.send(n).arrived.callbacks.append(
            lambda _: seen.append(env.now)))
    env.run()
    return seen


def test_loss_holds_a_connection_to_its_rate():
    """A window of √150 segments at once, then as many each 70 ms."""
    (arrived,) = arrivals([1000 * SEGMENT], loss=0.01)
    assert arrived == pytest.approx(0.035 + (1000 - math.sqrt(150)) / (math.sqrt(150) / 0.07))


def test_jitter_spreads_messages_but_none_overtakes_another_and_it_is_the_same_again():
    seen = arrivals([100] * 200, apart=0.001, jitter=0.005)
    assert seen == sorted(seen) == arrivals([100] * 200, apart=0.001, jitter=0.005)
    seldom = arrivals([100] * 400, apart=1.0, jitter=0.005)
    delays = [arrived - i for i, arrived in enumerate(seldom)]
    assert statistics.mean(delays) == pytest.approx(0.035, abs=1e-3)
    assert statistics.stdev(delays) == pytest.approx(0.005, abs=6e-4)
