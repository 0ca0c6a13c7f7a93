"""What report.html holds, in which order: the verdict first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from html import escape

from rich.console import RenderableType
from rich.text import Text

from scenarios import accounts, anatomy, bars, tables
from scenarios.fit import Estimate
from scenarios.page.drawings import drawings, svg
from scenarios.page.html import html
from scenarios.results import Results

_SECTIONS = {
    "verdict": "Verdict", "steps": "Step times", "pairs": "Gloo and shard, pair by pair",
    "campaigns": "Bands across campaigns", "times": "T(n) = a + b·n",
    "original": "Beside the founding experiment", "errors": "Predicted against measured", "phases": "Phases",
    "waits": "Waiting and transferring", "bytes": "Bytes", "outcomes": "What the training ended with",
    "links": "The network", "environment": "Environment",
}
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 1180px; margin: 0 auto;
       padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; border-bottom: 2px solid
     #0072B2; padding-bottom: .2rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
nav { display: flex; flex-wrap: wrap; } nav a { margin-right: .9rem; white-space: nowrap; } a { color: #005a8c; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; vertical-align: top; } .words { text-align: left;
         overflow-wrap: anywhere; }
thead th { border-bottom: 1.5px solid #444; } tbody tr:nth-child(even) { background: #f3f6f9; }
.first { border-left: 6px solid #0072B2; padding: .2rem 1rem; background: #f3f8fc; }
.bad { color: #a33b00; font-weight: 600; } figure { margin: 1rem 0; break-inside: avoid; }
figure svg { max-width: 100%; height: auto; } figcaption { font-size: .86rem; color: #444; }
details summary { cursor: pointer; font-weight: 600; margin: .6rem 0; }
@media print { body { max-width: none; padding: 0; font-size: 11px; } nav { display: none; }
  h2, h3 { break-after: avoid; } tr { break-inside: avoid; } .wide { overflow: visible; } table { font-size: 9px; } }
"""


def page(results: Results, header: Text, notes: Iterable[Text]) -> str:
    """The whole file. `header` says what was run and whether the links were well, `notes` what became of the run."""
    parts: dict[str, list[RenderableType]] = {section: list(of) for section, of in _parts(results).items()}
    drawn: dict[str, list[str]] = defaultdict(list)
    for section, text, figure in drawings(results):
        drawn[section].append(f'<figure role="img" aria-label="{escape(text, quote=True)}">{svg(figure)}'
                              f"<figcaption>{escape(text)}</figcaption></figure>")
    body = []
    for section, title in _SECTIONS.items():
        content = [html(part) for part in parts.get(section, [])]
        content[:0] = drawn[section]
        if section == "verdict":
            first = [*content, *(html(note) for note in notes)]
            content = ['<div class="first">', *first, "</div>", html(header)]
        if section == "waits":
            content = [f"<details open>{part}</details>" for part in content]
        if content:
            body.append(f'<section id="{section}"><h2>{escape(title)}</h2>\n' + "\n".join(content) + "</section>")
    name = escape(f"{results.scenario.name} on {results.scenario.topology.name}")
    links = "".join(f'<a href="#{section}">{escape(title)}</a>' for section, title in _SECTIONS.items()
                    if f'id="{section}"' in "".join(body))
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">\n'
            f"<style>{_STYLE}</style></head>\n<body><h1>{name}</h1>\n<nav>{links}</nav>\n"
            + "\n".join(body) + "\n</body></html>\n")


def _parts(results: Results) -> dict[str, list[RenderableType]]:
    """The tables, by section."""
    scenario = results.scenario
    found: dict[str, list[RenderableType]] = defaultdict(list)
    found["verdict"] = [tables.verdict(results)] if results.verdict else [headline(results)]
    if scenario.training:
        found["steps"] = [*tables.training(results), *tables.steps(results)]
        found["campaigns"] = [*accounts.bands(results)]
        found["outcomes"] = [*tables.outcomes(results)]
    found["pairs"] = [*accounts.pairs(results)]
    if scenario.all_reduce:
        found["times"] = [tables.intercepts(results), tables.slopes(results)] * bool(results.fits)
        found["times"] += [*[tables.ratios(results)] * bool(results.ratios), *tables.points(results),
                           anatomy.bounds(results), anatomy.delays(results)]
    if scenario.until:
        found["times"].append(anatomy.sureness(results))
    if any(row.scaled for row in results.rows):
        found["times"].append(tables.scaling(results))
    if all(row.workload != "script" for row in results.rows):      # of whose steps it has nothing
        found["original"] = [accounts.originals(results)]
    found["errors"] = [*[tables.errors(results.rows)] * (not results.missing), accounts.every_error(results)]
    if not results.missing and (held := bars.checks(results)):
        found["verdict"].append(tables.bars(held))
    moved, links = accounts.accounting(results), accounts.links(results)
    found["phases"] = [tables.phases(results)] * bool(results.collectives)
    found["waits"] = [table for _, table in accounts.waits(results)]
    found["bytes"] = [moved] if moved else []
    if drawn := accounts.networks(results):
        found["campaigns"].append(drawn)
    found["links"] = [*([links] if links else []), *[tables.applied(results)] * bool(results.applied)]
    found["environment"] = [*accounts.environment(results)]
    return found


def _within(estimate: Estimate) -> str:
    return "" if estimate.interval is None else f" ({tables.interval(estimate)})"


def headline(results: Results) -> Text:
    """The result in a sentence or two, of a scenario that states no rule for a verdict."""
    sentences = []
    for pair in accounts.ratios_of_steps(results):
        view = "" if pair.view is None else f", bucket view {tables.on_off(pair.view)}"
        sentences.append(f"A step takes gloo {pair.ratio.value:.2f} times as long as shard"
                         f"{_within(pair.ratio)}, W = {pair.world_size}{view}, campaign {pair.campaign}.")
    for band in accounts.across(results):
        view = "" if band.view is None else f", bucket view {tables.on_off(band.view)}"
        least, greatest = min(band.measured.values()), max(band.measured.values())
        sentences.append(f"Over {len(band.measured)} campaigns {band.arm}'s median of a step goes from "
                         f"{tables.time(least)} to {tables.time(greatest)} s, {greatest / least:.2f} times that, "
                         f"W = {band.world_size}{view}.")
    for r in results.ratios:
        sentences.append(f"b_gloo ÷ b_shard is {r.measured.value:.3f}{_within(r.measured)} at W = {r.world_size}.")
    if not sentences:
        sentences.append("The scenario states no rule for a verdict, and has no pair of gloo and shard.")
    return Text("\n".join(sentences))
