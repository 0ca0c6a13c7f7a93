"""Every figure of the founding text has its row."""

import pytest

from scenarios import original
from scenarios.results import Results


@pytest.fixture(scope="module")
def rows(exact_run):
    return {row.figure: row for row in original.rows(Results.load(exact_run))}


def test_every_figure_of_the_text_has_a_row_and_a_class_of_network(rows):
    text = " ".join(row.original for row in rows.values())
    for figure in ("4,216,833", "16.9 MB", "8 + 40", "12.3, 12.9, 13.0, 13.4, 15.3",
                   "13.1, 13.4, 22.0, 22.7, 29.8, 62.0",
                   "4 of 4", "1.03 and 1.75", "95", "1,900", "0.3–1.3 ms", "0.6 ms", "13.7 ms", "16.0 ms", "25.35 MB",
                   "1.648", "3.390", "56 %", "24 %", "127 %", "31 pass", "25–37 MB/s", "0.6–0.8", "40×"):
        assert figure in text
    assert all(row.network for row in rows.values())


@pytest.mark.parametrize(("figure", "measured", "predicted"), [
    ("model parameters", "4,216,833", None),
    ("steps of an arm: warm-up and measured", "8 + 40", None),
    ("parameter hashes over the ranks of an arm", "equal", None),
    ("parameter hashes of gloo and shard", "differ", None),
    ("held-out result, gloo and shard", "0.4940", None),
    # The synthetic step at W = 4 is 0.05 s + b·n with b = 2/4 / (0.7 MB/s · 1448/1514), three times that for gloo:
    # 0.05 + 12.597 and 0.05 + 37.791 s; measured 1.03 times as much.
    ("medians of a step, the direct backend's campaigns", "13.0 s", "12.6 s"),
    ("medians of a step, Gloo's campaigns", "39.0 s", "37.8 s"),
    ("pairs of one campaign that shard wins", "1 of 1", "1 of 1"),
    # Three rounds of two buckets on each of four ranks; phase 1 is 0.137 s by the clock at k = 10.
    ("all-reduces of a rank and run", "6", None),
    ("observations of each phase, over all ranks and campaigns", "24", None),
    ("median of publication, W = 4, over ranks", "0.5–0.5 ms", None),
    ("median of phase 1, W = 4, over ranks", "1.37–1.37 s", None),
    ("median of phase 1, W = 3 on a LAN", None, None),
])
def test_ours_by_hand(rows, figure, measured, predicted):
    assert (rows[figure].measured, rows[figure].predicted) == (measured, predicted)


def test_times_hold_in_the_class_of_the_network_they_were_measured_on(rows):
    assert rows["medians of a step, Gloo's campaigns"].network == "limit per path"
    assert rows["model parameters"].network == "any"
