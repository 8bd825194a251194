"""`batuta report`: where the GPU time went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, connect_to_server

if TYPE_CHECKING:
    from batuta.client.report_answers import Account, QueueSpent, Report

_HOUR_S = 3600.0


def report(
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="As in 7d (ago), 2026-11-16 or '2026-11-16 08:30'."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TIME", help="The same; default: now.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it as a page with pictures.")
    ] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Tell where the GPU time went, by queue and by day.

    Used, lost to restarts and to work that was not saved, idle, fragmented, out of service: that is all GPUs
    times the time. Beside it what jobs waited for. Without times it is the last week; days are those of UTC.

    Examples:

      batuta report

      batuta report --from 30d --html waste.html

      batuta report --from 2026-11-01 --to 2026-11-08 -o json
    """
    from batuta.cli.terminal import print_json, say

    found = _ask(home, *_span(from_, to))
    if html is not None:
        _write_page(html, found)
        say(f"written to {html}")
    if output is Output.JSON:
        print_json(found)
    elif html is None:
        _show(found)
    for note in found.notes:
        say(f"note: {note}")


def _span(from_: str | None, to: str | None) -> tuple[float | None, float | None]:
    """Both times, or all that is wrong with them."""
    from batuta.cli.moments import parse_moment_s
    from batuta.spec.problem import InputError, Problem

    now_s, problems, found = time.time(), list[Problem](), list[float | None]()
    for option, text in (("--from", from_), ("--to", to)):
        try:
            found.append(None if text is None else max(0.0, parse_moment_s(text, option, now_s)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return found[0], found[1]


def _ask(home: Path | None, from_s: float | None, to_s: float | None) -> Report:
    from batuta.cli.terminal import spinner
    from batuta.client.errors import NoServerError

    with spinner("reading the journal"):
        try:
            with connect_to_server(home) as client:
                return client.report(from_s, to_s)
        except NoServerError:
            return _from_journal(home, from_s, to_s)


def _from_journal(home: Path | None, from_s: float | None, to_s: float | None) -> Report:
    """Without a server its journal tells the same, up to the last event."""
    from batuta.bootstrap.waste import account_at
    from batuta.cli.journal_source import home_of_stopped
    from batuta.client.decoding import decode
    from batuta.client.report_answers import Report

    return decode(Report, account_at(home_of_stopped(home), from_s, to_s).plain())


def _write_page(path: Path, found: Report) -> None:
    from batuta.client.decoding import encode
    from batuta.report.files import NotWritable, write_text
    from batuta.report.waste_page import render_waste
    from batuta.spec.problem import InputError

    try:
        write_text(path, render_waste(encode(found)))
    except (NotWritable, OSError) as error:
        raise InputError.of(f"--html: {error}") from error


def _show(found: Report) -> None:
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import show_moment

    total = found.total
    typer.echo(f"{show_moment(found.from_s)} to {show_moment(found.to_s)}: {_headline(total)}\n")
    shares = ("USED", "RESTARTS", "LOST", "IDLE", "FRAGMENTED", "OUT")
    columns = (
        Column("DAY (UTC)"),
        Column("GPU-HOURS", right=True),
        *(Column(title, right=True, drop=k // 3) for k, title in enumerate(shares)),
        Column("WAITED FOR", right=True),
    )
    rows = [(day.day, *_cells(day)) for day in found.days]
    print_table(columns, [*rows, ("all", *_cells(total))], "nothing was there in this time")
    typer.echo()
    names = ("QUEUE", "USED", "RESTARTS", "LOST", "WAITED FOR")
    print_table(
        [Column(name, right=k > 0) for k, name in enumerate(names)],
        [_queue_cells(queue) for queue in found.queues],
        "no job had or wanted GPUs",
    )


def _headline(total: Account) -> str:
    if not total.capacity_gpu_s:
        return "there were no GPUs"
    wasted = total.restarting_gpu_s + total.lost_gpu_s + total.fragmented_gpu_s
    return (
        f"{_hours(total.capacity_gpu_s)} GPU-hours, {_share(total.used_gpu_s, total)} used, "
        f"{_share(wasted, total)} wasted on restarts, lost work and fragments"
    )


def _cells(own: Account) -> Sequence[str]:
    parts = (own.used_gpu_s, own.restarting_gpu_s, own.lost_gpu_s)
    left = (own.idle_gpu_s, own.fragmented_gpu_s, own.unavailable_gpu_s)
    shares = [_share(part, own) for part in (*parts, *left)]
    return (_hours(own.capacity_gpu_s), *shares, _hours(own.waiting_gpu_s))


def _queue_cells(own: QueueSpent) -> Sequence[str]:
    amounts = (own.used_gpu_s, own.restarting_gpu_s, own.lost_gpu_s, own.waiting_gpu_s)
    return (own.queue, *map(_hours, amounts))


def _hours(gpu_s: float) -> str:
    hours = gpu_s / _HOUR_S
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def _share(part: float, own: Account) -> str:
    return f"{100 * part / own.capacity_gpu_s:.1f}%" if own.capacity_gpu_s else "–"
