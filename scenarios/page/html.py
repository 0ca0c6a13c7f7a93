"""Rich's tables and texts as HTML, so that the terminal and the page say the same."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def html(shown: RenderableType) -> str:
    """HTML of a Group of texts and tables, of one of them, or of a string. Raises TypeError for anything else."""
    if isinstance(shown, Group):
        return "\n".join(html(item) for item in shown.renderables)
    if isinstance(shown, Table):
        return _table(shown)
    if isinstance(shown, Text):
        return _text(shown)
    if isinstance(shown, str):
        return f"<p>{escape(shown)}</p>"
    raise TypeError(f"{type(shown).__name__} has no HTML")


def _text(text: Text) -> str:
    if not text.plain.strip():
        return ""
    style = str(text.style)
    lines = escape(text.plain.strip()).replace("\n", "<br>\n")
    if style == "bold":
        first, _, rest = lines.partition("<br>")
        return f"<p><strong>{first}</strong><br>{rest}</p>" if first.endswith(".") else f"<h3>{lines}</h3>"
    bad = "red" in style or any("red" in str(span.style) for span in text.spans)
    return f'<p class="bad">{lines}</p>' if bad else f"<p>{lines}</p>"


def _table(table: Table) -> str:
    kinds = ['class="words"' if column.justify == "left" else "" for column in table.columns]
    columns = [list(column.cells) for column in table.columns]
    head = _row("th", [_said(column.header) for column in table.columns], kinds)
    body = [_row("td", map(_said, cells), kinds, "red" in str(row.style or ""))
            for row, cells in zip(table.rows, zip(*columns, strict=True), strict=True)]
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n' + "\n".join(body) + "\n</tbody></table></div>"


def _row(tag: str, cells: Iterable[str], kinds: list[str], bad: bool = False) -> str:
    inner = "".join(f"<{tag} {kind}>{cell}</{tag}>" if kind else f"<{tag}>{cell}</{tag}>"
                    for cell, kind in zip(cells, kinds, strict=True))
    return f'<tr class="bad">{inner}</tr>' if bad else f"<tr>{inner}</tr>"


def _said(cell: RenderableType) -> str:
    return escape(cell.plain if isinstance(cell, Text) else str(cell)).replace("\n", "<br>")
