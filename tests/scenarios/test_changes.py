"""What changed between two runs."""

import io
import json

import pytest
from rich.console import Console

from scenarios.changes import changes
from scenarios.compare import CompareError


def printed(shown):
    console = Console(width=200, file=io.StringIO())
    console.print(shown)
    return console.file.getvalue()


def test_a_run_that_is_a_tenth_slower_is_slower_at_every_point(make_run):
    a = make_run("a", sizes=(2,), seed=1)
    b = make_run("b", sizes=(2,), seed=2, bias=1.133)   # 1.1 times a's 1.03
    text = printed(changes(a, b)[0])
    # 7 sizes and a training, by two arms.
    assert "Of 16 points, 16 are slower in B, 0 faster, and 0 not told apart." in text
    row = next(line for line in text.splitlines() if "16.9 MB" in line and "shard" in line)
    assert float(row.split()[7]) == pytest.approx(1.1, rel=0.02)


def test_a_run_is_as_itself(make_run):
    a = make_run("a", sizes=(2,))
    shown, well = changes(a, a)
    text = printed(shown)
    assert well is True
    assert "Of 16 points, 0 are slower in B, 0 faster, and 16 not told apart." in text
    assert "made with the same" in text


def test_what_they_were_made_with_is_told_where_it_differs(make_run):
    a, b = (make_run(name, sizes=(2,)) for name in "ab")
    environment = json.loads((b / "environment.json").read_text())
    environment["networks"][0]["congestion"] = "bbr"
    (b / "environment.json").write_text(json.dumps(environment))
    text = printed(changes(a, b)[0])
    (row,) = (line.split() for line in text.splitlines() if "congestion" in line)
    assert row[-2:] == ["cubic", "bbr"]
    assert not [line for line in text.splitlines() if line.startswith("networks 1")]


def test_runs_without_a_point_in_common_are_refused(make_run):
    a, b = make_run("a", sizes=(2,)), make_run("b", sizes=(3,))
    with pytest.raises(CompareError, match="have no point in common"):
        changes(a, b)


def test_what_is_wrong_with_a_run_is_said_of_it(make_run):
    a, b = (make_run(name, sizes=(2,)) for name in "ab")
    lines = (a / "measurements.jsonl").read_text().splitlines(keepends=True)
    (a / "measurements.jsonl").write_text("".join(lines[:-1]))
    (b / "fidelity.jsonl").write_text((b / "fidelity.jsonl").read_text().replace('"valid":true', '"valid":false', 1))
    shown, well = changes(a, b)
    text = printed(shown)
    assert well is False
    assert "A: INCOMPLETE: " in text
    assert "39 of 40 times measured: shard, W=2, training" in text
    assert "B: INVALID: links were not what the topology describes" in text
    assert "B: INCOMPLETE" not in text
