"""Loss and jitter against published figures and what can be worked out of the laws."""

import math
import statistics
from random import Random

import pytest
from simpy import Environment

from emulator.sim.connection import Connections
from emulator.sim.law import held, lossy_rate
from emulator.topology import Host, Path, Topology

SEGMENT, FRAME = 1448, 1514


@pytest.mark.parametrize(("loss", "reno", "cubic"), [(1e-4, 120, 187), (1e-5, 379, 1054), (1e-6, 1200, 5926)])
def test_large_windows_are_those_of_rfc_9438(loss, reno, cubic):
    """Its tables for C = 0.4 and a round trip of 0.1 s, where the root of 3/2 is rounded to 1.2."""
    assert lossy_rate(loss, 0.1, "reno") * 0.1 / FRAME == pytest.approx(reno, rel=0.023)
    assert lossy_rate(loss, 0.1, "cubic") * 0.1 / FRAME == pytest.approx(cubic, rel=0.003)


@pytest.mark.parametrize(("loss", "reno"), [(1e-2, 12), (1e-3, 38)])
def test_small_windows_are_smaller_than_those_of_rfc_9438_but_cubic_s_are_as_large_as_reno_s(loss, reno):
    """By half a segment of rounding and a round of recovery, in which the window is its smallest."""
    windows = [lossy_rate(loss, 0.01, congestion) * 0.01 / FRAME for congestion in ("reno", "cubic")]
    assert 0.85 * reno < windows[1] < windows[0] < reno
    assert windows[1] == pytest.approx(windows[0], rel=0.03)


@pytest.mark.parametrize(("congestion", "round_trip", "cycle", "rounds"), [
    # Up to W = 20, back to 10 less a half: 9.5 in a round of recovery, and (400 - 90.25) / 2 in 10.5 rounds.
    ("reno", 0.1, 9.5 + 154.875, 11.5),
    # Up to 30, back to 20.5, with a gain of 9/17 a round: 479.75 / (18/17) in 9.5 / (9/17) rounds.
    ("cubic", 0.007, 20.5 + 479.75 * 17 / 18, 1 + 9.5 * 17 / 9),
    # Up to 100, back to 69.5.
    ("cubic", 0.01, 69.5 + (10000 - 4830.25) * 17 / 18, 1 + 30.5 * 17 / 9),
])
def test_one_saw_tooth(congestion, round_trip, cycle, rounds):
    assert lossy_rate(1 / cycle, round_trip, congestion) == pytest.approx(cycle / rounds * FRAME / round_trip)


def test_a_window_ends_where_the_path_is_full():
    """29 segments are on the way and one is being sent: 30, as above, for what is left of 1,000 segments."""
    limit = 29 * FRAME / 0.07
    rounds = 1 + 9.5 * 17 / 9 + (1000 - 20.5 - 479.75 * 17 / 18) / 30
    full = lossy_rate(1 / 1000, 0.07, "cubic", limit)
    assert full == pytest.approx(1000 / rounds / 30 * limit)
    assert lossy_rate(1e-9, 0.07, "cubic", limit) == pytest.approx(limit, rel=1e-5)
    # So it does where a receiver's window ends it, on a path that has no limit.
    assert lossy_rate(1 / 1000, 0.07, "cubic", window=30 * FRAME) == pytest.approx(1000 / rounds * FRAME / 0.07)


def test_a_long_path_is_full_again_by_the_cubic_curve():
    """972 segments are 0.3 of them below, 9 seconds long, for 0.4 · 9³ = 0.3 · 972; a fourth of that is missing."""
    full = lossy_rate(1e-5, 0.1, "cubic", 971 * FRAME / 0.1)
    missing = 972 * 0.3 / 4 * 9 / (972 / 971 * 0.1)
    assert full == pytest.approx(971 * FRAME / 0.1 * 1e5 / (1e5 + missing), rel=2e-3)


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
    paths = [Path("a", "b", **{"rate": None, "delay": 0.035, **path}),
             Path("b", "a", None, path.get("delay", 0.035))]
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
    """Windows from 8.68 to 13.12 segments, so 100 in 9.378 round trips: such a mean at once, then one each 70 ms."""
    (arrived,) = arrivals([1000 * SEGMENT], loss=0.01)
    assert arrived == pytest.approx(0.035 + (1000 - 100 / 9.378) / (100 / 9.378 / 0.07), rel=1e-3)


def test_loss_costs_a_path_that_it_does_not_hold():
    """7 MB/s and 7 ms are full with W = 33.37 segments; CUBIC would come to more with 1 of 1,000 lost, and has less.

    From W0 = 0.7 W - 0.5 it is full again in (W - W0) / (9/17) rounds, and so for what is left of 1,000 segments.
    """
    path = {"rate": 7e6, "delay": 0.0035}
    (without,), (lossy,) = (arrivals([20_000 * SEGMENT], **path, loss=loss) for loss in (0.0, 1e-3))
    high = 7e6 * 0.007 / FRAME + 1
    low = 0.7 * high - 0.5
    rounds = 1 + (high - low) * 17 / 9 + (1000 - low - (high * high - low * low) * 17 / 18) / high
    assert lossy / without == pytest.approx(rounds * high / 1000, rel=5e-3)
    assert lossy / without == pytest.approx(1.115, abs=0.01)


def test_jitter_spreads_messages_but_none_overtakes_another_and_it_is_the_same_again():
    seen = arrivals([100] * 200, apart=0.001, jitter=0.005)
    assert seen == sorted(seen) == arrivals([100] * 200, apart=0.001, jitter=0.005)
    seldom = arrivals([100] * 400, apart=1.0, jitter=0.005)
    delays = [arrived - i for i, arrived in enumerate(seldom)]
    assert statistics.mean(delays) == pytest.approx(0.035, abs=1e-3)
    assert statistics.stdev(delays) == pytest.approx(0.005, abs=6e-4)
