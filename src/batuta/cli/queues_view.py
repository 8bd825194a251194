"""Queues for people: the columns of `batuta queues`, and one queue in full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from batuta.cli.amounts import NO_LIMIT, cell_name, show_amount, show_needs
from batuta.cli.table import Column, print_table
from batuta.cli.terminal import NOTHING, show, show_ago

if TYPE_CHECKING:
    from rich.text import Text

    from batuta.client.queue_answers import HoldingJob, Queue, QueueDetail, QuotaCell, WaitingJob

STATE_STYLES = {
    "active": "green",
    "held": "yellow",
    "draining": "yellow",
    "leaving": "yellow",
    "misconfigured": "red",
    "unknown": "red",
}
_COLUMNS = (
    Column("QUEUE", least=8),
    Column("STATE", drop=1, least=8),
    Column("OF", least=8),
    Column("NOMINAL", right=True),
    Column("USED", right=True),
    Column("BORROWED", right=True),
    Column("LENT", right=True),
    Column("PENDING", right=True),
    Column("RUNNING", right=True),
    Column("COHORT", drop=2, least=6),
    Column("WEIGHT", right=True, drop=3),
    Column("SHARE", right=True, drop=4),
)
_CELLS = (
    Column("OF", least=8),
    Column("NOMINAL", right=True),
    Column("USED", right=True),
    Column("RESERVED", right=True),
    Column("GROWTH", right=True),
    Column("BORROWED", right=True),
    Column("LENT", right=True),
    Column("MAY BORROW", right=True, drop=1),
    Column("MAY LEND", right=True, drop=2),
)
_WAITING = (
    Column("PLACE", right=True),
    Column("ID", right=True),
    Column("NAME", least=10),
    Column("USER", drop=4, least=8),
    Column("PRIORITY", right=True, drop=3),
    Column("NEEDS", right=True),
    Column("SUBMITTED", right=True, drop=2),
    Column("WHY", least=36, fold=True),
)
_HOLDING = (
    Column("ID", right=True),
    Column("NAME", least=10),
    Column("USER", drop=2, least=8),
    Column("PRIORITY", right=True, drop=3),
    Column("GPUS", right=True),
    Column("RESERVED", right=True),
    Column("SUBMITTED", right=True, drop=1),
    Column("FLAVORS", least=12),
)


def print_queues(queues: Sequence[Queue]) -> None:
    """A row for each kind of quota; what is said of the queue itself stands in the first one."""
    rows = [row for queue in queues for row in _rows(queue)]
    print_table(_COLUMNS, rows, "there are no queues")


def _rows(queue: Queue) -> Iterable[tuple[str | Text, ...]]:
    about = (
        str(queue.pending),
        str(queue.running),
        queue.cohort or NOTHING,
        f"{queue.weight:g}",
        show_share(queue.share),
    )
    head: tuple[str | Text, ...] = (queue.name, state_of(queue))
    if not queue.cells:
        limit = NO_LIMIT if queue.state == "open" else NOTHING
        yield (*head, "all GPUs", limit, show_amount("gpu", queue.used.get("*", 0)), *_NONE[:2], *about)
    for number, cell in enumerate(queue.cells):
        first = number == 0
        yield (
            *(head if first else _BLANK[:2]),
            cell_name(cell.flavor, cell.resource),
            *_amounts(cell, cell.nominal, cell.used, cell.borrowed, cell.lent),
            *(about if first else _BLANK),
        )


_BLANK = ("",) * 5
_NONE = (NOTHING,) * 4


def _amounts(cell: QuotaCell, *amounts: float) -> tuple[str, ...]:
    """What is zero is a dash, except what there is and what is used of it."""
    shown = [show_amount(cell.resource, amount) for amount in amounts]
    return tuple(shown[:2] + [text if text != "0" else NOTHING for text in shown[2:]])


def state_of(queue: Queue) -> Text:
    from rich.text import Text

    return Text(queue.state, style=STATE_STYLES.get(queue.state, ""))


def show_share(share: float | None) -> str:
    """Thousandths; nothing when it does not borrow, without end for a borrower of weight 0."""
    if share is None:
        return "∞"
    return f"{share:.0f}" if share else NOTHING


def print_queue_detail(queue: QueueDetail) -> None:
    """One queue: what it may use and uses, who has its quota, and who is ahead of whom."""
    _print_head(queue)
    if queue.cells:
        typer.echo()
        print_table(_CELLS, [_cell_row(cell) for cell in queue.cells])
    if queue.holding:
        typer.echo()
        _title("who has its quota", len(queue.holding), queue.running)
        print_table(_HOLDING, [_holding_row(job) for job in queue.holding])
    typer.echo()
    if queue.waiting:
        _title("who waits, the next one first", len(queue.waiting), queue.pending)
        print_table(_WAITING, [_waiting_row(job) for job in queue.waiting])
    else:
        typer.echo("no job waits in it")


def _print_head(queue: QueueDetail) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    share = show_share(queue.share)
    facts: list[tuple[str, str | Text]] = [
        ("queue", queue.name),
        ("state", state_of(queue) + Text(f": {queue.message}" if queue.message else "")),
        ("cohort", queue.cohort),
        ("weight", f"{queue.weight:g}" + (f", weighted share {share}" if share != NOTHING else "")),
        ("strategy", queue.strategy if queue.cells else ""),
        ("jobs", _jobs(queue)),
        ("they need", ", ".join(show_needs(queue.needs))),
        ("reached by", _doors(queue)),
    ]
    for name, value in facts:
        if value:
            table.add_row(name, value)
    show(table)


def _jobs(queue: QueueDetail) -> str:
    parked = f", {queue.suspended} parked" if queue.suspended else ""
    return f"{queue.running} running, {queue.pending} waiting{parked}"


def _doors(queue: QueueDetail) -> str:
    """Local queues, unless there is just the one of the same name."""
    names = [f"{one.namespace}/{one.name}" if one.namespace else one.name for one in queue.local_queues]
    return "" if names == [queue.name] else ", ".join(names)


def _title(what: str, shown: int, total: int) -> None:
    typer.echo(f"{what} (the first {shown} of {total}):" if shown < total else f"{what}:")


def _cell_row(cell: QuotaCell) -> tuple[str, ...]:
    amounts = (cell.nominal, cell.used, cell.reserved, cell.growth, cell.borrowed, cell.lent)
    limits = [
        "all" if limit is None else show_amount(cell.resource, limit)
        for limit in (cell.borrowing_limit, cell.lending_limit)
    ]
    return (cell_name(cell.flavor, cell.resource), *_amounts(cell, *amounts), *limits)


def _waiting_row(job: WaitingJob) -> tuple[str, ...]:
    return (
        str(job.place),
        job.id,
        job.name or NOTHING,
        job.user or NOTHING,
        str(job.priority),
        f"{job.gpus}",
        show_ago(job.submitted_s),
        "" if job.quota_reserved is None else f"{job.quota_reserved.reason}: {job.quota_reserved.message}",
    )


def _holding_row(job: HoldingJob) -> tuple[str, ...]:
    return (
        job.id,
        job.name or NOTHING,
        job.user or NOTHING,
        str(job.priority),
        str(job.gpus),
        str(job.reserved),
        show_ago(job.submitted_s),
        ", ".join(dict.fromkeys(job.flavors.values())) or NOTHING,
    )
