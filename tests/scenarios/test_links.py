"""``frogtorch links``: a table of every path, a verdict, and an exit status that follows from it."""

import re

import pytest

from emulator.links.fidelity import PathFidelity
from scenarios.cli import main
from scenarios.commands import links

WORLD = """\
name: world
sites: [s]
hosts:
  a: {site: s}
  b: {site: s}
paths:
  - {between: [s, s], delay: 20 ms, rate: 2 MB/s}
  - {from: b, to: a, loss: 5 %}
"""
GOOD = PathFidelity("a", "b", 0.07, 0.07, 1e6, 1e6)
SLOW = PathFidelity("b", "a", 0.07, 0.07, 0.97e6, 1e6)
LATE = PathFidelity("b", "a", 0.0731, 0.07, 1e6, 1e6)


@pytest.mark.parametrize(("found", "losses", "complaint"), [
    ([GOOD, SLOW], {}, r"OFF: 1 of 2 paths\nb -> a: goodput off by -3.00%, round trip by 0.00 ms"),
    ([GOOD, LATE], {}, r"OFF: 1 of 2 paths\nb -> a: goodput off by \+0.00%, round trip by 3.10 ms"),
    ([GOOD], {("a", "b"): (0.01, 0.0116)}, r"OFF: 1 of 1 paths\na -> b: lost 1.160%, not 1.000%"),
    ([SLOW], {("b", "a"): (0.01, 0.0116)}, r"OFF: 1 of 1 paths\nb -> a: goodput .* ms; lost 1.160%, not 1.000%"),
])
def test_a_path_that_is_off_is_named_and_fails(capsys, found, losses, complaint):
    assert links._verdict(found, losses, 60_000) == 1
    assert re.search(complaint, capsys.readouterr().out)


def test_paths_that_are_right_do_not_fail(capsys):
    # Of few datagrams the share may be off by chance: 3.5 x sqrt(0.01 x 0.99 / 1000) = 1.1 %.
    assert links._verdict([GOOD], {("a", "b"): (0.01, 0.0114)}, 60_000) == 0
    assert links._verdict([GOOD], {("a", "b"): (0.01, 0.0205)}, 1000) == 0
    assert "all 1 paths are what the topology says" in capsys.readouterr().out


@pytest.mark.parametrize("speedup", ["0", "-1", "inf", "fast"])
def test_a_speedup_that_is_none(capsys, speedup):
    with pytest.raises(SystemExit):
        main(["links", "world.yaml", f"--speedup={speedup}"])
    assert "is no speed-up" in capsys.readouterr().err


@pytest.mark.root
@pytest.mark.slow
def test_the_links_of_a_topology(capsys, tmp_path):
    file = tmp_path / "world.yaml"
    file.write_text(WORLD)
    status = main(["links", str(file), "--speedup", "10", "--load", "--loss-datagrams", "2000"])
    out = capsys.readouterr().out
    there, back = (re.split(r"\s*│\s*", line)[1:-1] for line in out.splitlines() if line.startswith("│"))
    # 40 ms there and back, ten times faster; 20 MB/s of frames, 1448 of 1514 bytes of which are payload.
    assert there[:3] == ["a", "b", "4.00"]
    assert back[:3] == ["b", "a", "4.00"]
    assert [there[6], back[6]] == ["any", "any"]      # the loss hits acknowledgements too
    assert float(there[3]) == pytest.approx(4, rel=0.5)
    assert 3 < float(back[9].removesuffix("%")) < 7      # five standard errors of 5 % of 2000 are 2.4 %
    assert there[9] == ""
    assert (status, "OFF" in out) in {(0, False), (1, True)}
