"""The networks of campaigns: the same from the same seed, and within the laws that are stated."""

import math
import statistics
from functools import cache
from itertools import combinations

import pytest
import yaml

from emulator.topology import TopologyError, load
from emulator.units import parse_loss, parse_rate, parse_share, parse_time
from scenarios import timelines
from scenarios.scenario import load as load_scenario

PATHS = """\
name: three
sites: [here, there]
hosts: {one: {site: here}, two: {site: here}, far: {site: there}, spare: {site: there}}
defaults: {rate: 2 MB/s}
paths:
  - {between: [here, here], delay: 2 ms}
  - {between: [there, there], delay: 1 ms}
  - {between: [here, there], delay: 20 ms, jitter: 5 ms}
"""
ACCESSES = """\
name: accesses
sites: [here]
hosts:
  one: {site: here, access: {up: 2 MB/s, down: 4 MB/s}}
  two: {site: here, access: {up: 1 MB/s}}
paths: [{between: [here, here], delay: 2 ms}]
"""
HOSTS = ("one", "two", "far")
LENGTH = 100
KEPT = [
    {"at": "0 s", "rate": "80.4 %", "delay": "98.3 %"},
    {"at": "0 s", "rate": "132.0 %", "delay": "93.8 %", "jitter": "93.8 %"},
    {"at": "0 s", "rate": "124.0 %", "delay": "104.2 %"},
    {"at": "0 s", "rate": "120.8 %", "delay": "90.8 %", "jitter": "90.8 %"},
    {"at": "0 s", "rate": "81.5 %", "delay": "114.2 %", "jitter": "114.2 %"},
    {"at": "0 s", "rate": "66.3 %", "delay": "97.6 %", "jitter": "97.6 %"},
    {"at": "17.2 s", "rate": "8.04 %"},
    {"at": "17.2 s", "rate": "12.40 %"},
    {"at": "51.7 s", "rate": "80.40 %"},
    {"at": "51.7 s", "rate": "124.00 %"},
    {"at": "8.5 s", "loss": "0.0206 %"},
]
"""What seed 7 drew of campaign 0 on PATHS when this was written."""


@pytest.fixture(scope="module")
def drawn():
    """Draw from a topology's text, 30 campaigns of 100 s unless another number is said."""
    @cache
    def draw(text=PATHS, hosts=HOSTS, number=30, seed=7):
        return timelines.draw(load("topology.yaml", text), hosts, number, seed, LENGTH)

    return draw


def entries(topology):
    return yaml.safe_load(topology.text)["timeline"]


def later(topology):
    """Its changes after second 0 that are no loss: the fall and the recovery."""
    return [change for change in entries(topology)["changes"] if change["at"] != "0 s" and "loss" not in change]


def test_the_same_seed_draws_the_same_and_another_seed_another(drawn):
    first, other = ([topology.text for topology in drawn(seed=seed)] for seed in (7, 8))
    again = timelines.draw(load("topology.yaml", PATHS), HOSTS, 30, 7, LENGTH)
    assert [topology.text for topology in again] == first
    assert len(set(first)) == 30
    assert not set(first) & set(other)
    # More campaigns leave those that there were.
    assert [topology.text for topology in drawn(number=3)] == first[:3]


def test_what_one_seed_draws_does_not_change_from_version_to_version(drawn):
    (first, *_) = drawn()
    assert [{name: value for name, value in change.items() if name not in ("from", "to")}
            for change in entries(first)["changes"]] == KEPT


def test_a_campaign_knows_nothing_of_arms_and_steps(tmp_path):
    (tmp_path / "topology.yaml").write_text(PATHS)
    texts = []
    for rest in ("arms: [gloo]\ntraining: {steps: 2, warmup: 1}", "arms: [direct, shard]\nspeedup: 10\n"
                 "training: {workload: small, steps: 30, warmup: 9, bucket_view: [false, true]}"):
        (tmp_path / "scenario.yaml").write_text(
            f"name: some\ntopology: topology.yaml\nworlds: {{3: [one, two, far]}}\n{rest}\n"
            "campaigns: {number: 4, seed: 7, length: 100 s}\n")
        texts.append([topology.text for topology in load_scenario(tmp_path / "scenario.yaml").timelines])
    assert texts[0] == texts[1]


def test_what_a_campaign_begins_with_is_spread_as_stated(drawn):
    base = {"rate": 2e6, "delay": 0.02}
    pairs = [pair for one, other in combinations(HOSTS, 2) for pair in ((one, other), (other, one)) if "far" in pair]
    for field, spread in (("rate", 0.3), ("delay", 0.1)):
        logarithms = [math.log(getattr(topology.path(*pair), field) / base[field])
                      for topology in drawn(number=100) for pair in pairs]
        assert len(logarithms) == 400
        # Five standard errors of a mean and of a standard deviation of 400 values of a normal distribution.
        assert abs(statistics.mean(logarithms)) < 5 * spread / math.sqrt(400)
        assert statistics.stdev(logarithms) == pytest.approx(spread, rel=5 / math.sqrt(2 * 400))
        # Each direction is on its own: of 200 pairs, five standard errors of a correlation.
        assert abs(statistics.correlation(logarithms[::2], logarithms[1::2])) < 5 / math.sqrt(200)
    for topology in drawn():
        # Jitter goes with the delay, of which it is a quarter; what is not used stays.
        assert topology.path("one", "far").jitter == pytest.approx(topology.path("one", "far").delay / 4)
        assert (topology.path("one", "spare").rate, topology.path("one", "spare").delay) == (2e6, 0.02)


def test_one_pair_falls_to_a_tenth_and_recovers(drawn):
    fell = set()
    for topology in drawn():
        down, down_back, up, up_back = later(topology)
        assert (down["from"], down["to"]) == (down_back["to"], down_back["from"]) == (up["from"], up["to"])
        fell.add(frozenset((down["from"], down["to"])))
        start, end = parse_time(down["at"]), parse_time(up["at"])
        assert 0 <= start <= 50
        assert 25 - 0.1 <= end - start <= 50 + 0.1
        # Without its drift, whose factors these states carry too, the rate is a tenth, and again what it was.
        for change, back in ((down, up), (down_back, up_back)):
            pair = change["from"], change["to"]
            own = topology.path(*pair).rate / 2e6
            assert parse_share(change["rate"]) == pytest.approx(own / 10)
            assert parse_share(back["rate"]) == pytest.approx(own)
            before, during = (topology.state(second).path(*pair).rate for second in (start - 0.2, start + 0.2))
            if start > 0.2 and not any(start - 0.2 <= 5 * n <= start + 0.2 for n in range(20)):
                assert during / before == pytest.approx(0.1)
    assert fell == {frozenset(pair) for pair in combinations(HOSTS, 2)}


def test_a_host_s_access_falls_where_that_is_the_limit(drawn):
    fell = set()
    for topology in drawn(ACCESSES, ("one", "two")):
        down, up = later(topology)
        assert down["host"] == up["host"]
        fell.add(down["host"])
        fields = {"one": ["up", "down"], "two": ["up"]}[down["host"]]
        assert sorted(set(down) - {"at", "host"}) == sorted(fields)
        for field in fields:
            assert parse_share(down[field]) == pytest.approx(parse_share(up[field]) / 10)
        assert topology.path("one", "two").rate is None
    assert fell == {"one", "two"}


def test_one_path_loses_packets_from_some_second_on(drawn):
    shares = []
    for topology in drawn(number=100):
        (change,) = [change for change in entries(topology)["changes"] if "loss" in change]
        assert 0 <= parse_time(change["at"]) <= 50
        shares.append(parse_loss(change["loss"]))
        pair = change["from"], change["to"]
        assert topology.state(parse_time(change["at"])).path(*pair).loss > 0
        assert {path.loss for path in topology.state(50).paths if (path.source, path.target) != pair} == {0}
        # The simulator's laws hold up to 2 %.
        assert max(topology.state(second).path(*pair).loss for second in topology.timeline.moments) < 0.02
    assert 1e-4 <= min(shares) < max(shares) <= 3e-3
    # Even in the logarithm: half of them below the geometric mean of the ends, within 5 standard errors.
    assert abs(sum(share < math.sqrt(1e-4 * 3e-3) for share in shares) - 50) < 25


def test_a_host_with_a_fast_path_loses_none_where_others_have_not(drawn):
    def losing(rate):
        text = PATHS.replace("  - {between: [there, there]", f"  - {{between: [one, two], rate: {rate}}}\n"
                             "  - {between: [there, there]")
        return {change["from"] for topology in drawn(text) for change in entries(topology)["changes"]
                if "loss" in change}

    assert losing("20 MB/s") == {"one", "two", "far"}      # ten times 2 MB/s
    assert losing("21 MB/s") == {"far"}


def test_two_paths_have_traffic_of_others(drawn):
    for topology in drawn():
        one, other = entries(topology)["traffic"]
        assert (one["from"], one["to"]) != (other["from"], other["to"])
        for flow in (one, other):
            assert flow["from"] != flow["to"]
            assert {flow["from"], flow["to"]} <= set(HOSTS)
            assert 0 <= parse_time(flow["start"]) <= 50
            assert 25 - 0.1 <= parse_time(flow["end"]) - parse_time(flow["start"]) <= 50 + 0.1
            assert 0.2 * 2e6 <= parse_rate(flow["rate"]) <= 0.8 * 2e6
    # Where accesses bind, a path is as fast as the slowest of the two ends: 1 MB/s one way, and 2 MB/s the other.
    rates = [parse_rate(flow["rate"]) for topology in drawn(ACCESSES, ("one", "two"))
             for flow in entries(topology)["traffic"]]
    assert 0.2e6 <= min(rates) < max(rates) <= 0.8e6


def test_drift_goes_on_until_the_end_and_then_stays(drawn):
    for topology in drawn(number=5):
        rates = [topology.state(second).path("one", "far").rate for second in (5, 10, 95, 100)]
        assert len(set(rates)) == 4
        assert max(topology.timeline.moments) == LENGTH
        # Fields and directions walk by themselves.
        far, back = ([topology.state(5 * n).path(*pair).delay / topology.path(*pair).delay for n in range(1, 21)]
                     for pair in (("one", "far"), ("far", "one")))
        assert far != back
        assert max(abs(math.log(factor)) for factor in far + back) < 5 * 0.03


def test_what_is_recorded_is_what_was_drawn(drawn, tmp_path):
    networks = drawn(number=3)
    timelines.record(tmp_path, networks)
    again = timelines.recorded(tmp_path, 3)
    assert [topology.sha256 for topology in again] == [topology.sha256 for topology in networks]
    assert [topology.timeline.moments for topology in again] == [topology.timeline.moments for topology in networks]
    with pytest.raises(TopologyError, match=r"campaigns/3\.yaml: No such file"):
        timelines.recorded(tmp_path, 4)


def test_in_words_everything_that_was_drawn_is_told_in_order(drawn):
    (topology, *_) = drawn(number=2)
    told = timelines.in_words(topology)
    assert [second for second, _ in told] == sorted(second for second, _ in told)
    texts = [what for _, what in told]
    # Shares of rates, delays and jitters; two paths fall and recover; one loses packets; traffic on two.
    assert len(texts) == 3 + 4 + 1 + 2
    assert sum(what.startswith("each ") for what in texts) == 3
    assert sum(what.startswith("traffic ") for what in texts) == 2
    assert sum(": loss " in what for what in texts) == 1
