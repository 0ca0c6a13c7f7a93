"""The page of a run: one file, nothing asked from outside, everything in it."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from scenarios.page import timeline
from scenarios.page.html import html
from scenarios.report import report

VOID = {"meta", "link", "br", "path", "use", "rect", "line", "polyline", "circle", "image"}


class Balanced(HTMLParser):
    """Every element is closed by its own end; attributes are kept."""

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.tags, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(exact_run, tmp_path_factory):
    run = shutil.copytree(exact_run, tmp_path_factory.mktemp("page") / "run")
    report(run)
    return run


@pytest.fixture(scope="module")
def parsed(page):
    parser = Balanced()
    parser.feed((page / "report.html").read_text())
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_asks_for_nothing_outside_itself(page, parsed):
    assert not {"script", "iframe", "img", "image", "object"} & set(parsed.tags)
    sources = [value for name, value in parsed.attributes if name in ("src", "href", "xlink:href", "data", "srcset")]
    assert sources
    assert all(value.startswith(("#", "data:")) for value in sources)
    assert "@import" not in (page / "report.html").read_text()
    assert not re.search(r"url\((?!#)", (page / "report.html").read_text())


def test_the_verdict_stands_first(parsed):
    text = " ".join(parsed.text)
    # b_gloo / b_shard is W - 1 of the synthetic run, whose pairs of steps are nearly that far apart.
    assert text.index("Verdict") < text.index("b_gloo ÷ b_shard is 3.000") < text.rindex("Step times")


def test_every_section_that_the_run_has_is_there(parsed):
    ids = {value for name, value in parsed.attributes if name == "id"}
    assert {"verdict", "steps", "pairs", "times", "original", "errors", "phases", "outcomes", "links",
            "environment"} <= ids
    assert parsed.tags.count("svg") >= 6


def test_axes_have_units(parsed):
    text = " ".join(parsed.text)
    for label in ("size n, bytes", "seconds of a step (life-size)", "b, seconds per MB (life-size)", "size n, MB",
                  "world size W, ranks"):
        assert label in text


def test_a_table_becomes_a_table_and_nothing_in_it_is_markup():
    table = Table("arm", "n")
    table.columns[1].justify = "right"
    table.add_row("a<b>", "3", style="bold red")
    shown = html(Group(Text("Title & more", style="bold"), table))
    assert "<h3>Title &amp; more</h3>" in shown
    assert '<tr class="bad"><td class="words">a&lt;b&gt;</td><td>3</td></tr>' in shown


def test_what_is_no_table_or_text_is_refused():
    with pytest.raises(TypeError, match="int has no HTML"):
        html(3)


def test_the_timeline_has_wait_and_transfer_apart(tmp_path):
    (tmp_path / "telemetry").mkdir()
    line = {"rank": 1, "collective": "all_reduce", "algorithm": "shard", "time_ns": 5_000_000, "seconds": 0.4,
            "peers": {"0": {"wait": 0.1, "transfer": 0.3}}}
    cut = '{"rank": 1'
    (tmp_path / "telemetry/rank1.jsonl").write_text(
        json.dumps(line) + "\n" + json.dumps({**line, "time_ns": 205_000_000}) + "\n" + cut)
    timeline.write(tmp_path, tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    spans = [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events if e["name"] in ("wait", "transfer")]
    # Microseconds; the second began before the first had ended, so it has a track of its own.
    assert [span[:3] for span in spans] == [("wait", 5_000, 100_000), ("transfer", 105_000, 300_000),
                                            ("wait", 205_000, 100_000), ("transfer", 305_000, 300_000)]
    assert spans[0][3] == spans[1][3] != spans[2][3] == spans[3][3]
