"""`batuta queues`: list and describe queues and their quota, as a table or a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from batuta.apitypes.queues import Cohort, HoldingJob, Queue, QueueDetail, Queues, QuotaCell, WaitingJob
from batuta.apitypes.resources import QuotaReserved
from batuta.cli import output as out
from batuta.cli import quota
from batuta.cli.options import HomeOption, Output, OutputOption, argument, connect, flag, option
from batuta.cli.output import DASH, Cells, Column
from batuta.cli.verbs import CommandGroup
from batuta.client.errors import ApiError, ClientError
from batuta.spec.problem import did_you_mean

if TYPE_CHECKING:
    from rich.text import Text


app = typer.Typer(cls=CommandGroup, name="queues", invoke_without_command=True, rich_markup_mode=None)


TreeOption = Annotated[bool, flag("--tree -t", "Cohorts and the queues in them, with a bar for each quota.")]


@app.callback()
def queues(
    ctx: typer.Context, tree: TreeOption = False, output: OutputOption = Output.TABLE, home: HomeOption = None
) -> None:
    """List queues, describe one; try out quota, and apply it.

    Examples:
      batuta queues
      batuta queues --tree
      batuta queues try case.yaml
      batuta queues apply -f quota.yaml
    """
    if ctx.invoked_subcommand is None:
        list_queues(tree, output, home)


@app.command(name="list")
def list_queues(tree: TreeOption = False, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List the queues: quota, what is used, borrowed and lent, how many jobs run and wait.

    Example: batuta queues list -o json
    """
    with connect(home) as client:
        found = client.queue_tree()
    if output is Output.JSON:
        out.print_json(found if tree else found.queues)
    elif tree:
        print_queue_tree(found)
    else:
        print_queues(found.queues)


@app.command()
def describe(
    name: Annotated[str, argument("QUEUE", "Name of a queue.")],
    limit: Annotated[int, option("How many jobs of each list.", names="--limit -l", min=1, max=1000)] = 100,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Show one queue: what it may use and uses, the workloads with quota, and the waiting ones in order with reasons.

    Example: batuta queues describe team-a
    """
    with connect(home) as client:
        try:
            found = client.queue(name, limit)
        except ApiError as error:
            if error.status != 404:
                raise
            known = [queue.name for queue in client.queues()]
            raise ClientError(f"there is no queue {name} ({did_you_mean(name, known)})") from None
    out.print_result(found, output, print_queue_detail)


ALL_GPUS = "batuta.dev/gpus"
UNLIMITED_GPUS = 10_000_000  # quota of so many GPUs means no limit
NO_LIMIT = "no limit"
_BYTE_RESOURCES = ("memory", "ephemeral-storage")
_UNITS = (("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10))


def format_amount(resource: str, amount: float) -> str:
    """Return `8`, `2.5`, `512Gi`, or `no limit`."""
    if resource in _BYTE_RESOURCES or resource.startswith("hugepages-"):
        for unit, power in _UNITS:
            if abs(amount) >= 1 << power:
                return f"{_format_number(amount / (1 << power))}{unit}"
    return NO_LIMIT if amount >= UNLIMITED_GPUS else _format_number(amount)


def _format_number(amount: float) -> str:
    return f"{amount:.0f}" if amount == round(amount) else f"{amount:.3g}"


def resource_name(resource: str) -> str:
    """Return the last part, such as `gpu` for nvidia.com/gpu."""
    return "all GPUs" if resource == ALL_GPUS else resource.rpartition("/")[2]


def flavor_resource_name(flavor: str, resource: str) -> str:
    """Return `h100 gpu`; quota that counts all GPUs has no flavor."""
    return resource_name(resource) if resource == ALL_GPUS else f"{flavor} {resource_name(resource)}"


def format_requests(requests: Mapping[str, float]) -> Iterator[str]:
    """Return texts such as `8 gpu` and `16Gi memory`."""
    return (f"{format_amount(resource, amount)} {resource_name(resource)}" for resource, amount in requests.items())


QUEUE_STATE_STYLES = {
    "active": "green",
    "held": "yellow",
    "draining": "yellow",
    "leaving": "yellow",
    "misconfigured": "red",
    "unknown": "red",
}
_QUOTA_TITLES = ("OF", "NOMINAL", "USED", "BORROWED", "LENT")
_COLUMNS: tuple[Column[Cells], ...] = (
    *(Column("QUEUE", least=8), Column("STATE", drop=1, least=8), Column("OF", least=8)),
    *(Column(title, right=True) for title in _QUOTA_TITLES[1:]),
    *(Column("PENDING", right=True), Column("RUNNING", right=True), Column("COHORT", drop=2, least=6)),
    *(Column("WEIGHT", right=True, drop=3), Column("SHARE", right=True, drop=4)),
)
_CELLS: tuple[Column[QuotaCell], ...] = (
    Column("OF", lambda cell: flavor_resource_name(cell.flavor, cell.resource), least=8),
    Column("NOMINAL", lambda cell: format_amount(cell.resource, cell.nominal), right=True),
    Column("USED", lambda cell: format_amount(cell.resource, cell.used), right=True),
    Column("RESERVED", lambda cell: _amount_or_dash(cell.resource, cell.reserved), right=True),
    Column("GROWTH", lambda cell: _amount_or_dash(cell.resource, cell.growth), right=True),
    Column("BORROWED", lambda cell: _amount_or_dash(cell.resource, cell.borrowed), right=True),
    Column("LENT", lambda cell: _amount_or_dash(cell.resource, cell.lent), right=True),
    Column("MAY BORROW", lambda cell: _limit(cell.resource, cell.borrowing_limit), right=True, drop=1),
    Column("MAY LEND", lambda cell: _limit(cell.resource, cell.lending_limit), right=True, drop=2),
)
_WAITING: tuple[Column[WaitingJob], ...] = (
    Column("PLACE", lambda job: str(job.place), right=True),
    Column("ID", lambda job: job.id, right=True),
    Column("NAME", lambda job: job.name or DASH, least=10),
    Column("USER", lambda job: job.user or DASH, drop=4, least=8),
    Column("PRIORITY", lambda job: str(job.priority), right=True, drop=3),
    Column("NEEDS", lambda job: str(job.gpus), right=True),
    Column("SUBMITTED", lambda job: out.format_age(job.submitted_s), right=True, drop=2),
    Column("WHY", lambda job: _why(job.quota_reserved), least=36, fold=True),
)
_HOLDING: tuple[Column[HoldingJob], ...] = (
    Column("ID", lambda job: job.id, right=True),
    Column("NAME", lambda job: job.name or DASH, least=10),
    Column("USER", lambda job: job.user or DASH, drop=2, least=8),
    Column("PRIORITY", lambda job: str(job.priority), right=True, drop=3),
    Column("GPUS", lambda job: str(job.gpus), right=True),
    Column("RESERVED", lambda job: str(job.reserved), right=True),
    Column("SUBMITTED", lambda job: out.format_age(job.submitted_s), right=True, drop=1),
    Column("FLAVORS", lambda job: ", ".join(dict.fromkeys(job.flavors.values())) or DASH, least=12),
)


def print_queues(queues: Sequence[Queue]) -> None:
    """Print a row for each flavor and resource; the facts of the queue stand in the first one."""
    rows = [row for queue in queues for row in _rows(queue)]
    out.print_table(_COLUMNS, rows, "there are no queues")
    for queue in queues:
        if queue.state == "active" and queue.message and (queue.pending or not any(queue.quota.values())):
            out.print_stderr(f"note: {queue.message}")


def _rows(queue: Queue) -> Iterator[Cells]:
    head: Cells = (queue.name, state_of(queue))
    jobs = (str(queue.pending), str(queue.running))
    about: Cells = (*jobs, queue.cohort or DASH, f"{queue.weight:g}", format_share(queue.share))
    if not queue.cells:
        limit = NO_LIMIT if queue.state == "open" else DASH
        yield (*head, "all GPUs", limit, format_amount("gpu", queue.used.get("*", 0)), DASH, DASH, *about)
    for cell in queue.cells:
        amounts = (column.cell(cell) for column in _CELLS if column.cell and column.title in _QUOTA_TITLES)
        yield (*head, *amounts, *about)
        head, about = ("", ""), ("",) * len(about)


def _amount_or_dash(resource: str, amount: float) -> str:
    shown = format_amount(resource, amount)
    return DASH if shown == "0" else shown


def _limit(resource: str, limit: float | None) -> str:
    return "all" if limit is None else format_amount(resource, limit)


def _why(reserved: QuotaReserved | None) -> str:
    return "" if reserved is None else f"{reserved.reason}: {reserved.message}"


def state_of(queue: Queue) -> Text:
    return out.styled(queue.state, style=QUEUE_STATE_STYLES.get(queue.state, ""))


def format_share(share: float | None) -> str:
    """Return the weighted share: a dash for a queue that does not borrow, ∞ for a borrower of weight 0."""
    if share is None:
        return "∞"
    return f"{share:.0f}" if share else DASH


def print_queue_detail(queue: QueueDetail) -> None:
    """Print one queue: its quota and usage, the jobs that hold quota, and the pending jobs in order."""
    _print_head(queue)
    if queue.cells:
        typer.echo()
        out.print_table(_CELLS, queue.cells)
    if queue.holding:
        typer.echo()
        _title("workloads with quota", len(queue.holding), queue.running)
        out.print_table(_HOLDING, queue.holding)
    typer.echo()
    if queue.waiting:
        _title("waiting workloads, the next one first", len(queue.waiting), queue.pending)
        out.print_table(_WAITING, queue.waiting)
    else:
        typer.echo("no job waits in it")


def _print_head(queue: QueueDetail) -> None:
    share = format_share(queue.share)
    parked = f", {queue.suspended} parked" if queue.suspended else ""
    facts: list[tuple[str, str | Text]] = [
        ("queue", queue.name),
        ("state", state_of(queue) + out.styled(f": {queue.message}" if queue.message else "")),
        ("cohort", queue.cohort),
        ("weight", f"{queue.weight:g}" + (f", weighted share {share}" if share != DASH else "")),
        ("strategy", queue.strategy if queue.cells else ""),
        ("priority", "" if queue.max_priority is None else f"users may ask for up to {queue.max_priority}"),
        ("jobs", f"{queue.running} running, {queue.pending} waiting{parked}"),
        ("they need", ", ".join(format_requests(queue.needs))),
        ("reached by", _local_queues(queue)),
    ]
    out.print_rich(out.facts_table(facts))


def _local_queues(queue: QueueDetail) -> str:
    """Return the names of its LocalQueues; empty for a single one of the same name."""
    names = [f"{one.namespace}/{one.name}" if one.namespace else one.name for one in queue.local_queues]
    return "" if names == [queue.name] else ", ".join(names)


def _title(what: str, shown: int, total: int) -> None:
    typer.echo(f"{what} (the first {shown} of {total}):" if shown < total else f"{what}:")


OWN, BORROWED, LENT, IDLE = "█", "▓", "▒", "·"
_STYLES = {OWN: "green", BORROWED: "yellow", LENT: "magenta", IDLE: "dim"}
_LEGEND = ((OWN, "used"), (BORROWED, "borrowed"), (LENT, "lent to others"), (IDLE, "idle"))
_WIDEST, _NARROWEST = 32, 8
_GAP = 2


class TreeLine(NamedTuple):
    """A line of the tree: one flavor and resource; the first line of an owner has its name."""

    guide: str
    name: str
    style: str
    cell: QuotaCell | None
    note: str = ""


def print_queue_tree(tree: Queues) -> None:
    from rich.table import Table

    lines = list(tree_lines(tree))
    names = [out.assembled((line.guide, "dim"), (line.name, line.style)) for line in lines]
    kinds = ["" if line.cell is None else flavor_resource_name(line.cell.flavor, line.cell.resource) for line in lines]
    usage = [_usage_text(line) for line in lines]
    width = bar_width([name.cell_len for name in names], list(map(len, kinds)), list(map(len, usage)))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, kind, line, text in zip(names, kinds, lines, usage, strict=True):
        bar = out.styled() if line.cell is None else draw_bar(line.cell, width)
        table.add_row(name, out.styled(kind), bar, out.styled(text))
    out.print_rich(table)
    legend = out.styled("\n")
    for sign, meaning in _LEGEND:
        legend.append(f"{sign * 2} ", style=_STYLES[sign]).append(f"{meaning}  ", style="dim")
    out.print_rich(legend)


def bar_width(names: list[int], kinds: list[int], usage: list[int]) -> int:
    """Return the width that the terminal leaves for bars, so that the numbers fit on one line if possible."""
    if not out.is_terminal():
        return _WIDEST
    left = out.console().width - 3 * _GAP - sum(max(widths, default=0) for widths in (names, kinds, usage))
    return max(_NARROWEST, min(_WIDEST, left))


def draw_bar(cell: QuotaCell, width: int) -> Text:
    whole = max(cell.total, cell.used)
    text = out.styled()
    for sign, part in bar_parts(cell, width if whole else 0):
        text.append(sign * part, style=_STYLES[sign])
    return text


def bar_parts(cell: QuotaCell, width: int) -> list[tuple[str, int]]:
    """Return the characters of each part: at least one for an amount above 0, `width` in all."""
    own = cell.used - cell.borrowed
    idle = max(0.0, cell.total - own - cell.lent)
    amounts = {OWN: own, BORROWED: cell.borrowed, IDLE: idle, LENT: cell.lent}
    whole = sum(amounts.values())
    if not whole or not width:
        return []
    parts = {sign: max(1, round(width * amount / whole)) if amount > 0 else 0 for sign, amount in amounts.items()}
    largest = max(parts, key=lambda sign: parts[sign])
    parts[largest] += width - sum(parts.values())
    return list(parts.items())


def tree_lines(tree: Queues) -> Iterator[TreeLine]:
    """Return cohorts with their members, then queues without a cohort."""
    known = {cohort.name for cohort in tree.cohorts}
    for cohort in tree.cohorts:
        if cohort.parent not in known:
            yield from _cohort_lines(tree, cohort, "", "")
    for queue in tree.queues:
        if queue.cohort not in known:
            yield from _queue_lines(queue, "", "")


def _cohort_lines(tree: Queues, cohort: Cohort, guide: str, below: str) -> Iterator[TreeLine]:
    inner = [one for one in tree.cohorts if one.parent == cohort.name]
    queues = [one for one in tree.queues if one.cohort == cohort.name]
    left = len(inner) + len(queues)
    yield from _owner_lines(cohort, guide, below + ("│  " if left else ""), cohort.name, "bold", _pending_text(cohort))
    for one in inner:
        left -= 1
        yield from _cohort_lines(tree, one, *_guides(below, last=not left))
    for queue in queues:
        left -= 1
        yield from _queue_lines(queue, *_guides(below, last=not left))


def _guides(below: str, *, last: bool) -> tuple[str, str]:
    """Return the prefix of a name, and that of the lines under it."""
    return (f"{below}└─ ", f"{below}   ") if last else (f"{below}├─ ", f"{below}│  ")


def _queue_lines(queue: Queue, guide: str, below: str) -> Iterator[TreeLine]:
    state = "" if queue.state in ("active", "open") else queue.state
    limit = f"{queue.used.get('*', 0):.0f} used, {NO_LIMIT}" if queue.state == "open" else ""
    note = ", ".join(part for part in (limit, state, _pending_text(queue)) if part)
    yield from _owner_lines(queue, guide, below, queue.name, QUEUE_STATE_STYLES.get(state, ""), note)


def _pending_text(owner: Cohort | Queue) -> str:
    return f"{owner.pending} waiting" if owner.pending else ""


def _owner_lines(owner: Cohort | Queue, guide: str, below: str, name: str, style: str, note: str) -> Iterator[TreeLine]:
    if not owner.cells:
        yield TreeLine(guide, name, style, None, note)
    for number, cell in enumerate(owner.cells):
        first = number == 0
        yield TreeLine(guide if first else below, name if first else "", style, cell, note if first else "")


def _usage_text(line: TreeLine) -> str:
    cell = line.cell
    if cell is None:
        return line.note
    used, total = (format_amount(cell.resource, amount) for amount in (cell.used, cell.total))
    parts = [f"{used} used, {NO_LIMIT}" if total == NO_LIMIT else f"{used} of {total}"]
    if cell.borrowed:
        parts.append(f"{format_amount(cell.resource, cell.borrowed)} borrowed")
    if cell.lent:
        parts.append(f"{format_amount(cell.resource, cell.lent)} lent")
    return ", ".join((*parts, *([line.note] if line.note else [])))


app.command(name="try")(quota.try_out)
app.command()(quota.apply)
app.command()(quota.delete)
app.command()(quota.export)
