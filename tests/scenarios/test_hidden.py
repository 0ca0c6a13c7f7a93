"""The rule's error rates: hidden worlds are what they say, and the rule is seldom wrong on them."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scenarios import hidden
from scenarios.scenario import Rule, load

ROOT = Path(__file__).parents[2]
RULE = Rule(worlds=(3, 4), blocks=10, within=0.1)
SIZES = (2_097_152, 4_194_304, 8_388_608)


@pytest.mark.parametrize(("kind", "follows"), [("path", "W − 1"), ("access", "1")])
def test_what_a_class_truly_follows(kind, follows):
    topology = hidden.network(kind, random.Random("a"))
    assert hidden.truth(RULE, hidden.exact(topology, RULE.worlds, SIZES), SIZES) == follows


def test_the_same_seed_draws_the_same_network():
    texts = {hidden.network("mixed", random.Random("b")).text for _ in range(2)}
    assert len(texts) == 1
    assert hidden.network("mixed", random.Random("c")).text not in texts


def test_noise_has_no_bias():
    exact = {3: {arm: dict.fromkeys(SIZES, 2.0) for arm in ("gloo", "shard")}}
    drawn = hidden.measured(exact, 2000, random.Random("d"))
    seconds = sorted(m.seconds for m in drawn[3][0])
    assert seconds[len(seconds) // 2] == pytest.approx(2.0, rel=0.02)      # the median: one in twenty is up to 2 times


def test_every_draw_is_counted_and_a_wrong_verdict_is_rare(tmp_path):
    text = (ROOT / "scenarios/quick.yaml").read_text().replace("../topologies", str(ROOT / "topologies"))
    text = text.replace("repetitions: 3", "repetitions: 10").replace("1.05 MB, 2.1 MB", "2.1 MB, 8.4 MB")
    (tmp_path / "s.yaml").write_text(text + "verdict: {worlds: [3]}\n")
    tried = []
    with ThreadPoolExecutor(1) as executor:
        scores = hidden.scores(*hidden.asked(load(tmp_path / "s.yaml")), 6, 5, "e", executor, lambda: tried.append(1))
    assert len(tried) == 6
    assert sum(sum(score.said.values()) for score in scores) == 30
    assert {score.kind for score in scores} == {"path", "access", "mixed"}
    wrong = sum(sum(score.said.values()) - score.right - score.said["undecided"] for score in scores)
    assert wrong <= 2      # simultaneous intervals at 95 % miss 1.5 of 30 on average at worst, and bands are wide


def test_a_scenario_without_a_verdict_is_refused():
    with pytest.raises(ValueError, match="asks for no verdict"):
        hidden.asked(load(ROOT / "scenarios/quick.yaml"))
