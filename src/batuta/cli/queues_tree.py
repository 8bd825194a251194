"""`batuta queues --tree`: cohorts, the queues in them, and a bar for each kind of quota."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from batuta.cli.amounts import NO_LIMIT, cell_name, show_amount
from batuta.cli.queues_view import STATE_STYLES
from batuta.cli.terminal import console, is_terminal, show

if TYPE_CHECKING:
    from rich.text import Text

    from batuta.client.queue_answers import Cohort, Queue, QueueTree, QuotaCell

OWN, BORROWED, LENT, IDLE = "█", "▓", "▒", "·"
_STYLES = {OWN: "green", BORROWED: "yellow", LENT: "magenta", IDLE: "dim"}
_LEGEND = ((OWN, "used"), (BORROWED, "borrowed"), (LENT, "lent to others"), (IDLE, "idle"))
_WIDEST, _NARROWEST = 32, 8
_GAP = 2


class Line(NamedTuple):
    """One line of the tree: a name the first time, and one kind of quota."""

    guide: str
    name: str
    style: str
    cell: QuotaCell | None
    note: str = ""


def print_queue_tree(tree: QueueTree) -> None:
    from rich.table import Table
    from rich.text import Text

    lines = list(tree_lines(tree))
    names = [Text.assemble((line.guide, "dim"), (line.name, line.style)) for line in lines]
    kinds = ["" if line.cell is None else cell_name(line.cell.flavor, line.cell.resource) for line in lines]
    told = [_told(line) for line in lines]
    width = bar_width([name.cell_len for name in names], list(map(len, kinds)), list(map(len, told)))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, kind, line, text in zip(names, kinds, lines, told, strict=True):
        bar = Text() if line.cell is None else draw_bar(line.cell, width)
        table.add_row(name, Text(kind), bar, Text(text))
    show(table)
    legend = Text("\n")
    for sign, meaning in _LEGEND:
        legend.append(f"{sign * 2} ", style=_STYLES[sign]).append(f"{meaning}  ", style="dim")
    show(legend)


def bar_width(names: list[int], kinds: list[int], told: list[int]) -> int:
    """As wide as the terminal leaves room for, so that the numbers beside it stay on one line if they can."""
    if not is_terminal():
        return _WIDEST
    left = console().width - 3 * _GAP - sum(max(widths, default=0) for widths in (names, kinds, told))
    return max(_NARROWEST, min(_WIDEST, left))


def draw_bar(cell: QuotaCell, width: int) -> Text:
    """Its own use, what it borrows, what is idle, and at the end what it lends."""
    from rich.text import Text

    whole = max(cell.total, cell.used)
    text = Text()
    for sign, part in bar_parts(cell, width if whole else 0):
        text.append(sign * part, style=_STYLES[sign])
    return text


def bar_parts(cell: QuotaCell, width: int) -> list[tuple[str, int]]:
    """How many characters of each kind; what there is at all has one, and together they are `width`."""
    own = cell.used - cell.borrowed
    idle = max(0.0, cell.total - own - cell.lent)
    amounts = {OWN: own, BORROWED: cell.borrowed, IDLE: idle, LENT: cell.lent}
    whole = sum(amounts.values())
    if not whole or not width:
        return []
    parts = {
        sign: max(1, round(width * amount / whole)) if amount > 0 else 0 for sign, amount in amounts.items()
    }
    largest = max(parts, key=lambda sign: parts[sign])
    parts[largest] += width - sum(parts.values())
    return list(parts.items())


def tree_lines(tree: QueueTree) -> Iterator[Line]:
    """Cohorts with what is in them, then the queues that are in none."""
    known = {cohort.name for cohort in tree.cohorts}
    for cohort in tree.cohorts:
        if cohort.parent not in known:
            yield from _cohort(tree, cohort, "", "")
    for queue in tree.queues:
        if queue.cohort not in known:
            yield from _queue(queue, "", "")


def _cohort(tree: QueueTree, cohort: Cohort, guide: str, below: str) -> Iterator[Line]:
    inner = [one for one in tree.cohorts if one.parent == cohort.name]
    queues = [one for one in tree.queues if one.cohort == cohort.name]
    left = len(inner) + len(queues)
    yield from _cells(cohort, guide, below + ("│  " if left else ""), cohort.name, "bold", _waiting(cohort))
    for one in inner:
        left -= 1
        yield from _cohort(tree, one, *_guides(below, last=not left))
    for queue in queues:
        left -= 1
        yield from _queue(queue, *_guides(below, last=not left))


def _guides(below: str, *, last: bool) -> tuple[str, str]:
    """What stands before a name, and before the lines under it."""
    return (f"{below}└─ ", f"{below}   ") if last else (f"{below}├─ ", f"{below}│  ")


def _queue(queue: Queue, guide: str, below: str) -> Iterator[Line]:
    state = "" if queue.state in ("active", "open") else queue.state
    limit = f"{queue.used.get('*', 0):.0f} used, {NO_LIMIT}" if queue.state == "open" else ""
    note = ", ".join(part for part in (limit, state, _waiting(queue)) if part)
    yield from _cells(queue, guide, below, queue.name, STATE_STYLES.get(state, ""), note)


def _waiting(owner: Cohort | Queue) -> str:
    return f"{owner.pending} waiting" if owner.pending else ""


def _cells(owner: Cohort | Queue, guide: str, below: str, name: str, style: str, note: str) -> Iterator[Line]:
    if not owner.cells:
        yield Line(guide, name, style, None, note)
    for number, cell in enumerate(owner.cells):
        first = number == 0
        yield Line(guide if first else below, name if first else "", style, cell, note if first else "")


def _told(line: Line) -> str:
    cell = line.cell
    if cell is None:
        return line.note
    used, total = (show_amount(cell.resource, amount) for amount in (cell.used, cell.total))
    parts = [f"{used} used, {NO_LIMIT}" if total == NO_LIMIT else f"{used} of {total}"]
    if cell.borrowed:
        parts.append(f"{show_amount(cell.resource, cell.borrowed)} borrowed")
    if cell.lent:
        parts.append(f"{show_amount(cell.resource, cell.lent)} lent")
    return ", ".join((*parts, *([line.note] if line.note else [])))
