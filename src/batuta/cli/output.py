"""Output: tables that fit the terminal, JSON for programs, colours only on a terminal."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import typer

from batuta.cli.options import Output
from batuta.client.decoding import encode
from batuta.spec.problem import InputError
from batuta.spec.quantity import show_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

T = TypeVar("T")
Cells: TypeAlias = "Sequence[str | Text]"  # a row of a table whose columns read nothing themselves

DASH = "–"
STATE_STYLES = {
    "PENDING": "yellow",
    "SETTING_UP": "cyan",
    "RUNNING": "green",
    "RESIZING": "cyan",
    "PREEMPTED": "magenta",
    "SUCCEEDED": "blue",
    "FAILED": "red",
    "FAILED_SETUP": "red",
    "CANCELLED": "dim",
    "ready": "green",
    "cordoned": "yellow",
    "draining": "yellow",
    "lost": "red",
}


def print_json(value: Any) -> None:
    """Print dataclasses, or lists and mappings of them, as one JSON document."""
    typer.echo(json.dumps(encode(value), indent=2, ensure_ascii=False))


def print_result(value: T, output: Output, print_text: Callable[[T], None]) -> None:
    """Print a result as JSON, or with `print_text` for people."""
    (print_json if output is Output.JSON else print_text)(value)


def console(*, err: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe, wide enough for any line and without colours."""
    from rich.console import Console

    is_tty = (sys.stderr if err else sys.stdout).isatty()
    return Console(stderr=err, highlight=False, width=None if is_tty else 10_000, no_color=None if is_tty else True)


def print_rich(view: RenderableType, style: str = "") -> None:
    """Print a table or a text. In a pipe no line is wrapped, and none ends in spaces."""
    view = styled(view, style) if isinstance(view, str) else view
    out = console()
    if is_terminal():
        out.print(view)
        return
    with out.capture() as caught:
        out.print(view)
    typer.echo("\n".join(line.rstrip() for line in caught.get().splitlines()))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def print_stderr(message: str) -> None:
    typer.echo(message, err=True)


def print_notes(notes: Iterable[str]) -> None:
    """Print remarks of the server or the operator to standard error."""
    for note in notes:
        print_stderr(f"note: {note}")


def confirm(question: str, *, default: bool = False) -> None:
    """Ask the user, and exit with 1 when the answer is no. Without a terminal, -y is required."""
    if not is_interactive():
        raise InputError.of(f"{question} There is no terminal to answer at", fix="add -y")
    if not typer.confirm(question, default=default, err=True):
        print_stderr("nothing was done")
        raise typer.Exit(1)


@contextmanager
def spinner(text: str) -> Iterator[Any]:
    """Show a spinner on a terminal; `update(text)` changes its text."""
    if not sys.stderr.isatty():
        yield SimpleNamespace(update=lambda text: None)
        return
    with console(err=True).status(text) as status:
        yield status


def styled(text: str = "", style: str = "", *, no_wrap: bool | None = None) -> Text:
    from rich.text import Text

    return Text(text, style=style, no_wrap=no_wrap)


def assembled(*parts: str | Text | tuple[str, str]) -> Text:
    """Return a text of parts, those with a style as pairs."""
    from rich.text import Text

    return Text.assemble(*parts)


def state_text(state: str) -> Text:
    return styled(state, STATE_STYLES.get(state, ""))


def format_seconds(seconds: float | None) -> str:
    """Return `3m 20s`; a dash when it is not known."""
    if seconds is None or math.isnan(seconds):
        return DASH
    return show_duration(float(round(seconds)) if seconds >= 1 else round(seconds, 2))


def format_age(time_s: float | None) -> str:
    """Return how long ago something was; `now` within a second."""
    if time_s is None:
        return DASH
    age_s = time.time() - time_s
    return "now" if age_s < 1 else f"{format_seconds(age_s)} ago"


def format_time(time_s: float | None) -> str:
    """Return the time of day; the date too when it was another day."""
    if time_s is None:
        return DASH
    then, now = time.localtime(time_s), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


def format_gpus(count: int) -> str:
    """Return `1 GPU` or `4 GPUs`."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def format_mib(size_bytes: int | None) -> str:
    """Return `256MiB`; a dash when it is not known."""
    return DASH if size_bytes is None else f"{size_bytes >> 20}MiB"


def format_number(value: float | None, form: str, unit: str = "") -> str:
    """Return a number in a form such as `.0%`, with its unit; a dash when it is not known."""
    return DASH if value is None else f"{value:{form}}{unit}"


def facts_table(facts: Iterable[tuple[str, str | Text]]) -> RenderableType:
    """Return a table of names and values that wrap, without those that have no value."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value and value != DASH:
            table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


GAP = 2
_MIN_WIDTH = 4  # width to which a cell with `least` is cut at most


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column. Those with the highest `drop` are left out first, those with 0 never. One with `least` may be
    cut to this width, or with `fold` be wrapped.
    """

    title: str
    cell: Callable[[T], str | Text] | None = None  # what it shows of a row; None where rows are tuples of cells
    right: bool = False
    drop: int = 0
    least: int | None = None
    fold: bool = False


def print_table(columns: Sequence[Column[T]], rows: Sequence[T], empty: str = "") -> None:
    out = console()
    if not rows and empty:
        out.print(empty, style="dim")
        return
    # In a pipe, nothing is cut: the reader cannot widen the terminal.
    width = out.width if is_terminal() else None
    view, hidden = fit_table(columns, rows, width)
    print_rich(view)
    if hidden:
        out.print(f"not shown: {', '.join(hidden)} (-o json has all)", style="dim")


def fit_table(columns: Sequence[Column[T]], rows: Sequence[T], width: int | None) -> tuple[RenderableType, list[str]]:
    """Return the table for a width (None: any), and the titles of the columns that do not fit."""
    from rich.table import Table
    from rich.text import Text

    shown_cells: Any = [[one.cell(row) for one in columns if one.cell] or row for row in rows]
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in shown_cells]
    natural = [
        max([len(column.title), *(row[place].cell_len for row in cells)]) for place, column in enumerate(columns)
    ]
    shown, widths = _fit_columns(columns, natural, width)
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


def _fit_columns(
    columns: Sequence[Column[Any]], natural: Sequence[int], width: int | None
) -> tuple[list[int], dict[int, int]]:
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
    # Sentences are cut before ids, states and numbers are.
    for place in reversed(shown):
        if columns[place].least is not None:
            least[place] -= max(0, min(needed() - width, least[place] - _MIN_WIDTH))
    spare = max(0, width - needed())
    widths = {}
    for place in shown:
        more = min(spare, natural[place] - least[place])
        widths[place] = least[place] + more
        spare -= more
    return shown, widths
