"""Held-out networks are drawn from the seed alone; several runs are judged together, and their distances told apart."""

import io
import math
import re
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from scenarios import cli, heldout, hidden, together
from scenarios.results import Results
from scenarios.scenario import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return [heldout.write(tmp_path_factory.mktemp("held") / name, seed, 3)
            for name, seed in (("one", "abc"), ("again", "abc"), ("other", "abd"))]


def texts(files):
    return [(file.parent / name).read_text() for file in files
            for name in (file.name, file.name.replace("heldout", "network"))]


def test_the_seed_alone_decides(drawn):
    one, again, other = map(texts, drawn)
    assert one == again
    assert not set(one) & set(other)


def test_what_is_drawn_is_within_its_bounds(drawn):
    for file in (*drawn[0], *drawn[2]):
        scenario = load(file)
        (world,) = scenario.worlds
        assert 3 <= world <= 6
        assert len(scenario.topology.hosts) == world
        for path in scenario.topology.paths:
            assert 0.3e6 <= path.rate <= 30e6
            assert 0.001 <= path.delay <= 0.080
        for host in scenario.topology.hosts:
            assert 0.3e6 <= host.up <= 30e6
            assert 0.3e6 <= host.down <= 30e6
        assert 4096 <= scenario.all_reduce.intercept <= 256 * 1024
        assert all(2 << 20 <= size <= 8 << 20 for size in scenario.all_reduce.slope)


def test_a_network_as_fast_as_the_machine_is_not_sped_up(drawn):
    topology = load(drawn[0][0]).topology
    hosts = [host.name for host in topology.hosts]
    slow, fast = topology.faster(0.01), topology.faster(1000)
    assert heldout.speedup(slow, hosts, 4 << 20) == 10
    assert heldout.speedup(fast, hosts, 4 << 20) == 1


def test_a_directory_is_written_once(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="there exists: held-out networks are drawn once"):
        heldout.write(tmp_path / "there", "abc", 1)


def test_what_fails_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(heldout, "speedup", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        heldout.write(tmp_path / "held", "abc", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "says"), [
    (["--seed", "a\nname: x"], r"seed 'a\\nname: x': it stands in what is written"),
    (["--worlds", "0"], "--worlds 0: draw from 1 to 1000"), (["--worlds", "1000000"], "draw from 1 to 1000"),
])
def test_what_cannot_be_drawn_is_refused(tmp_path, capsys, words, says):
    assert cli.main(["heldout", "--output", str(tmp_path / "held"), *words]) == 1
    assert re.search(says, capsys.readouterr().err)
    assert not (tmp_path / "held").exists()


def test_the_commit_is_the_seed():
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if head.returncode:
        pytest.skip("this is no checkout of git")
    assert hidden.commit() == head.stdout.strip()


def test_a_jump_is_distance_times_world():
    # By hand: distance makes 8 times at either W, a rank more makes 1.5 times on either network.
    times = {("near", 3): 1.0, ("near", 4): 1.5, ("far", 3): 8.0, ("far", 4): 12.0}
    found = together.jump("gloo", 4096, times, ("near", 3), ("far", 4))
    assert (found.distance, found.world) == (pytest.approx(8), pytest.approx(1.5))
    assert found.share == pytest.approx(math.log(8) / math.log(12))


def test_where_both_act_on_each_other_the_orders_are_averaged():
    # Distance first: 4 times, then the world 3 times; the world first: 1.5 times, then distance 8 times. All: 12.
    times = {("near", 3): 1.0, ("near", 4): 1.5, ("far", 3): 4.0, ("far", 4): 12.0}
    found = together.jump("gloo", 4096, times, ("near", 3), ("far", 4))
    assert (found.distance, found.world) == (pytest.approx(math.sqrt(32)), pytest.approx(12 / math.sqrt(32)))


def printed(*parts):
    out = io.StringIO()
    for part in parts:
        Console(file=out, width=100).print(part)
    return out.getvalue()


def test_two_runs_of_the_same_worlds_tell_distance_from_world_size(make_run):
    far = make_run("far", noise=0.0, sizes=(3, 4))
    # Half of the other's 1.03: every distance is twice.
    near = make_run("near", noise=0.0, sizes=(3, 4), bias=0.515, network="near")
    said = printed(*together.distance([Results.load(near), Results.load(far)]))
    assert "From W = 3 on near to W = 4 on seattle-newyork" in said
    # gloo at 64 KiB: a + b·n is 0.4 and 0.6 s, and 4/3 and 3/2 ÷ 0.6695 MB/s: 0.5305 and 0.7468 s, 1.4077 times.
    (line,) = [line.split() for line in said.splitlines() if line.split()[:3] == ["64", "KiB", "gloo"] and "×" in line]
    assert line[3:9] == ["×", "2.815", "×", "2.000", "×", "1.408"]


def test_runs_on_one_network_have_no_distance(exact_run):
    assert together.distance([Results.load(exact_run)]) == []


def test_the_score_is_over_all_runs(exact_run):
    run = Results.load(exact_run)
    said = printed(together.score([run, run]))
    # 4 worlds × 7 sizes and 4 trainings, of two arms, twice; each |ln 1.03|.
    (line,) = [line.split() for line in said.splitlines() if line.split()[:3] == ["all", "arms", "blind"]]
    assert line[3:] == ["128", "0.030", "0.030", "0.030"]
    assert "all arms, blind: within median 0.05, p90 0.1, maximum 0.15" in said


def test_a_run_counts_once(exact_run, capsys):
    assert cli.main(["together", str(exact_run), str(exact_run / ".")]) == 1
    assert "is named twice, and its points would count twice" in capsys.readouterr().err
