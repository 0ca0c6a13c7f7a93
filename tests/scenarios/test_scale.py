"""Generated networks, studies by any executor, and what the command prints."""

import json
import multiprocessing
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

from scenarios import cli, scale


def test_a_generated_network_is_that_of_its_seed():
    one, again, other = scale.generate(9, 1), scale.generate(9, 1), scale.generate(9, 2)
    assert one.paths == again.paths != other.paths
    assert [host.site for host in one.hosts] == [f"site-{i // 3}" for i in range(9)]
    assert len(one.paths) == 9 * 8
    for path in one.paths:
        near = one.host(path.source).site == one.host(path.target).site
        assert (path.rate, path.delay) == (125e6, 1e-4) if near else 0.01 <= path.delay < 0.081
        assert path.delay == one.path(path.target, path.source).delay


def test_rates_may_be_those_of_accesses():
    paths, accesses = scale.generate(9, 1), scale.generate(9, 1, "access")
    assert [path.delay for path in accesses.paths] == [path.delay for path in paths.paths]
    assert {path.rate for path in accesses.paths} == {None}
    rates = [rate for host in accesses.hosts for rate in (host.up, host.down)]
    assert len(set(rates)) == 18
    assert all(0.5e6 <= rate <= 125e6 for rate in rates)


def test_rates_have_a_heavy_tail():
    """P(rate > r) = (0.5 MB/s / r)^1.2: a tenth above 3.4 MB/s, a hundredth above 23 MB/s."""
    topology = scale.generate(100, 3)
    rates = [path.rate for path in topology.paths if path.delay > 0.001]
    assert min(rates) >= 0.5e6
    assert max(rates) == 125e6
    assert sum(rate > 0.5e6 * 10 ** (1 / 1.2) for rate in rates) / len(rates) == pytest.approx(0.1, abs=0.01)
    assert sum(rate > 0.5e6 * 100 ** (1 / 1.2) for rate in rates) / len(rates) == pytest.approx(0.01, abs=0.004)


def test_a_case_says_what_it_took():
    case = scale.Case("direct", 8, 1 << 20, 1)
    result = scale.run(case)
    assert (result.arm, result.world_size, result.nbytes, result.seed) == ("direct", 8, 1 << 20, 1)
    assert result.messages == 2 * 8 * 7  # a slice for each, and a sum for each
    assert result.events > result.messages
    assert result.simulated == scale.run(case).simulated
    assert result.events_per_second == result.events / result.cpu
    assert 10 << 20 < result.peak_bytes < 10 << 30


def test_growth():
    took = ("a", 10, 2), ("a", 20, 5), ("a", 40, 32), ("b", 4, 1)
    results = [scale.Scale(arm=arm, world_size=size, nbytes=4, seed=1, simulated=1, wall=1, cpu=cpu, events=1,
                           messages=1, peak_bytes=1) for arm, size, cpu in took]
    assert scale.growth(results) == {("a", "path"): pytest.approx(2)}


def test_a_study_takes_any_executor():
    with ThreadPoolExecutor(3) as pool:
        assert dict(scale.study(abs, [-1, 2, -3], pool)) == {-1: 1, 2: 2, -3: 3}


class Never(Executor):
    """Begins nothing but what is first."""

    def __init__(self):
        self.futures = []

    def submit(self, function, scenario):
        self.futures.append(future := Future())
        if len(self.futures) == 1:
            future.set_exception(ValueError(f"no {scenario}"))
        return future


def test_what_fails_ends_a_study():
    pool = Never()
    with pytest.raises(ValueError, match="no 1"):
        list(scale.study(abs, [1, 2, 3], pool))
    assert [future.cancelled() for future in pool.futures] == [False, True, True]


def test_the_command(tmp_path, capsys):
    file = tmp_path / "scale.jsonl"
    assert cli.main(["scale", "--world", "4", "8", "--arm", "shard", "gloo", "--size", "1 MiB", "--jobs", "2",
                     "--limits", "path", "access", "--json", str(file)]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((line["arm"], line["world_size"], line["limits"]) for line in lines) == [
        (arm, size, limits) for arm in ("gloo", "shard") for size in (4, 8) for limits in ("access", "path")]
    shown = capsys.readouterr().out
    assert "growth" in shown
    assert f"{next(line['simulated'] for line in lines if line['arm'] == 'gloo'):.3f} s" in shown


@pytest.mark.parametrize(("words", "message"), [
    (["--world", "1"], "'1' is no number of ranks: write 2 to 4096"),
    (["--world", "5000"], "'5000' is no number of ranks: write 2 to 4096"),
    (["--jobs", "0"], "'0' is no number of processes: write 1 to 1000000"),
    (["--size", "1000000000 GB"], "too large for a tensor here; write at most 16 GiB"),
    (["--size", "6 B"], "no whole number of fp32 elements"),
])
def test_what_makes_no_sense_is_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(["scale", *words])
    assert message in capsys.readouterr().err


def interrupted():
    with scale.workers(1, None) as pool:
        future = pool.submit(time.sleep, 3600)
        while not future.running():
            time.sleep(0.01)
        raise KeyboardInterrupt


@pytest.mark.timeout(60)
def test_an_interrupt_waits_for_no_worker():
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert multiprocessing.active_children() == []


def test_a_cluster_is_dask_s():
    distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False,
                                  dashboard_address=None) as cluster, \
            scale.workers(1, cluster.scheduler_address) as pool:
        assert dict(scale.study(abs, [-1, 2], pool)) == {-1: 1, 2: 2}


def test_without_dask_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(RuntimeError, match=r"needs Dask's distributed: pip install -e '.\[testbed,cluster\]'"), \
            scale.workers(1, "tcp://nowhere:1"):
        pass
