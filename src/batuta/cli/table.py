"""Tables that fit the terminal: what matters least is left out, sentences are cut. Pipes get all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batuta.cli.terminal import console, is_terminal, show

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

GAP = 2
_STUB = 4
"""What is left of a name or a sentence where there is no room at all."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `drop`: the higher, the sooner it is left out; 0 never. `least`: may be cut to this, or with
    `fold` be continued in the next line.
    """

    title: str
    right: bool = False
    drop: int = 0
    least: int | None = None
    fold: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], empty: str = "") -> None:
    """Prints the rows, or the sentence for when there are none."""
    out = console()
    if not rows and empty:
        out.print(empty, style="dim")
        return
    # What a browser or a log viewer shows of a pipe is wide; what is cut there is lost.
    width = out.width if is_terminal() else None
    view, hidden = fit(columns, rows, width)
    show(view)
    if hidden:
        out.print(f"not shown: {', '.join(hidden)} (-o json has all)", style="dim")


def fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int | None
) -> tuple[RenderableType, list[str]]:
    """The table for a width (None: any), and the titles of what was left out."""
    from rich.table import Table
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    natural = [
        max([len(column.title), *(row[place].cell_len for row in cells)])
        for place, column in enumerate(columns)
    ]
    shown, widths = _choose(columns, natural, width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for place in shown:
        column = columns[place]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            width=widths[place],
            no_wrap=not column.fold,
            overflow="fold" if column.fold else "ellipsis",
        )
    for row in cells:
        table.add_row(*(row[place] for place in shown))
    return table, [column.title for place, column in enumerate(columns) if place not in shown]


def _choose(
    columns: Sequence[Column], natural: Sequence[int], width: int | None
) -> tuple[list[int], dict[int, int]]:
    """Which columns stay, and how wide each is."""
    least = {
        place: min(natural[place], column.least) if column.least is not None else natural[place]
        for place, column in enumerate(columns)
    }
    shown = list(range(len(columns)))
    if width is None:
        return shown, {place: natural[place] for place in shown}

    def needed() -> int:
        return sum(least[place] for place in shown) + GAP * (len(shown) - 1)

    while needed() > width and any(columns[place].drop for place in shown):
        shown.remove(max(shown, key=lambda place: (columns[place].drop, place)))
    # Sentences give way before ids, states and numbers do.
    for place in reversed(shown):
        if columns[place].least is not None:
            least[place] -= max(0, min(needed() - width, least[place] - _STUB))
    spare = max(0, width - needed())
    widths = {}
    for place in shown:
        more = min(spare, natural[place] - least[place])
        widths[place] = least[place] + more
        spare -= more
    return shown, widths
