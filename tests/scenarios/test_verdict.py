"""The rule on times that are made to follow W − 1, 1, something else, or nothing that can be told."""

import random

import pytest

from emulator.topology import load
from scenarios import fit, original
from scenarios.records import Measurement
from scenarios.scenario import Rule
from scenarios.verdict import verdict

RULE = Rule(worlds=(3, 4, 6), blocks=10, within=0.1)
SIZES = (2_097_152, 4_194_304, 8_388_608, 16_867_332)


def times(ratio, a_gloo=0.0, blocks=12, noise=0.01, seed=1):
    """Gloo's and shard's measurements by world: shard's b is 1 s/MB, gloo's `ratio(W)` times that."""
    rng = random.Random(seed)

    def made(arm, world, a, b):
        return [Measurement(arm=arm, world_size=world, hosts=("h",) * world, workload="all_reduce", nbytes=n,
                            speedup=10, repetition=block, campaign=0, clock_seconds=1.0, prediction="p",
                            seconds=(a + b * n / 1e6) * (1 + rng.uniform(-noise, noise)), rank_seconds=(1.0,) * world)
                for block in range(blocks) for n in SIZES]

    return {world: (made("gloo", world, a_gloo, ratio(world)), made("shard", world, 0.0, 1.0)) for world in (3, 4, 6)}


@pytest.mark.parametrize(("ratio", "follows"), [
    (lambda world: world - 1, "W − 1"),
    (lambda world: 1.0, "1"),
    (lambda world: 0.95 * (world - 1), "W − 1"),      # inside the band
    (lambda world: world / 2, "neither"),             # 1.5, 2, 3: outside both bands, clearly
    (lambda world: 1.1, "undecided"),                 # on the edge of a band
])
def test_what_the_ratio_follows(ratio, follows):
    found = verdict(RULE, times(ratio), SIZES)
    assert found.follows == follows
    assert [found.ratios[world].value for world in (3, 4, 6)] == pytest.approx(
        [ratio(world) for world in (3, 4, 6)], rel=0.01)


def test_noise_widens_the_intervals_until_nothing_can_be_told():
    assert verdict(RULE, times(lambda world: world - 1, noise=0.6), SIZES).follows == "undecided"


def test_a_difference_in_one_world_alone_is_no_structure():
    found = verdict(RULE, times(lambda world: world - 1 if world < 6 else 1.0), SIZES)
    assert (found.follows, found.reason) == ("neither", "W = 6 is outside 10% of W − 1; W = 3 is outside 10% of 1")


def test_the_rule_wants_its_blocks():
    found = verdict(RULE, times(lambda world: world - 1, blocks=9), SIZES)
    assert (found.follows, found.reason) == ("undecided", "9 blocks, and the rule asks for 10")


def test_the_intervals_hold_together_so_each_is_wider_than_one_alone():
    made = times(lambda world: world - 1, noise=0.1)
    alone = fit.ratio(*made[4], SIZES).interval
    together = verdict(RULE, made, SIZES).ratios[4].interval
    assert together[0] < alone[0] < alone[1] < together[1]


@pytest.mark.parametrize(("b_gloo", "a_gloo", "phi", "where"), [
    (3.0, 0.0, 1.0, "b"),
    (1.0, 30.0, 0.0, "a"),
    (2.0, 16.867332, 0.5, "both"),      # b·n and a make the same difference at the largest size
])
def test_where_the_difference_is(b_gloo, a_gloo, phi, where):
    found = verdict(RULE, times(lambda world: b_gloo, a_gloo=a_gloo, noise=0.0), SIZES)
    assert [found.phi[world] for world in (3, 4, 6)] == pytest.approx([phi] * 3, abs=1e-6)
    assert found.where == where


def test_no_difference_is_not_placed():
    found = verdict(RULE, times(lambda world: 1.05, noise=0.0), SIZES)
    assert (found.phi, found.where) == ({3: None, 4: None, 6: None}, "neither")


def test_a_world_that_was_not_measured_is_an_error():
    made = times(lambda world: 1.0)
    del made[6]
    with pytest.raises(fit.FitError, match="needs W = 6"):
        verdict(RULE, made, SIZES)


def test_founding_figures_that_the_network_cannot_have():
    topology = load(original.__file__.replace("scenarios/original.py", "topologies/seattle-newyork.yaml"))
    hosts = [host.name for host in topology.hosts][:4]
    gloo, shard = original.admitted(topology, hosts)
    # 16.867 MB × 2(W−1)/W ÷ (0.7 MB/s × 1448/1514), and a third of it.
    assert (gloo.least, shard.least) == pytest.approx((37.79, 12.597), rel=1e-3)
    assert (gloo.possible, gloo.impossible) == ((62.0,), (13.1, 13.4, 22.0, 22.7, 29.8))
    assert (shard.possible, shard.impossible) == ((12.9, 13.0, 13.4, 15.3), (12.3,))
    with pytest.raises(ValueError, match="W = 4"):
        next(original.admitted(topology, hosts[:3]))
