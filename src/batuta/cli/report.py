"""`batuta report`: where the GPU time went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from batuta.apitypes.forecasts import Account, Report, Spent
from batuta.cli.options import HomeOption, Output, OutputOption, ask_server_or_journal, option, parse_time_s
from batuta.cli.output import Cells, Column, format_time, print_json, print_notes, print_stderr, print_table, spinner
from batuta.client.decoding import decode, encode
from batuta.spec.problem import InputError, Problem, collect_problems, refuse

_HOUR_S = 3600.0


def report(
    from_: Annotated[
        str | None, option("As in 7d (ago), 2026-11-16 or '2026-11-16 08:30'.", "TIME", names="--from")
    ] = None,
    to: Annotated[str | None, option("The same; default: now.", "TIME")] = None,
    html: Annotated[Path | None, option("Write it as a page with pictures.", "FILE")] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Tell where the GPU time went, by day, queue and user.

    Used, held but not busy, lost to restarts and to work that was not saved, idle, fragmented, out of
    service: that is all GPUs times the time. Where no use is measured, what jobs hold counts as used.
    Beside it what jobs waited for. Without times it is the last week; days are those of UTC.

    Examples:
      batuta report
      batuta report --from 30d --html waste.html
      batuta report --from 2026-11-01 --to 2026-11-08 -o json
    """
    found = _request_report(home, *_span(from_, to))
    if html is not None:
        _write_page(html, found)
        print_stderr(f"written to {html}")
    if output is Output.JSON:
        print_json(found)
    elif html is None:
        _print_report(found)
    print_notes(found.notes)


def _span(from_: str | None, to: str | None) -> tuple[float | None, float | None]:
    """Return both times; raise the problems of both together."""
    now_s, problems, found = time.time(), list[Problem](), list[float | None]()
    for name, text in (("--from", from_), ("--to", to)):
        with collect_problems(problems):
            found.append(None if text is None else max(0.0, parse_time_s(text, name, now_s)))
    refuse(problems)
    return found[0], found[1]


def _request_report(home: Path | None, from_s: float | None, to_s: float | None) -> Report:
    def look(folder: Path) -> Report:
        from batuta.bootstrap.offline import account_at

        return decode(Report, account_at(folder, from_s, to_s).plain())

    with spinner("reading the journal"):
        return ask_server_or_journal(home, lambda client: client.report(from_s, to_s), look)


def _write_page(path: Path, found: Report) -> None:
    from batuta.report.gpu_usage_page import render_usage
    from batuta.report.result_files import NotWritable, write_text

    try:
        write_text(path, render_usage(encode(found)))
    except (NotWritable, OSError) as error:
        raise InputError.of(f"--html: {error}") from error


def _print_report(found: Report) -> None:
    total = found.total
    typer.echo(f"{format_time(found.from_s)} to {format_time(found.to_s)}: {_headline(total)}\n")
    shares = ("USED", "NOT BUSY", "RESTARTS", "LOST", "IDLE", "FRAGMENTED", "OUT")
    columns: tuple[Column[Cells], ...] = (
        Column("DAY (UTC)"),
        Column("GPU-HOURS", right=True),
        *(Column(title, right=True, drop=k // 4) for k, title in enumerate(shares)),
        Column("WAITED FOR", right=True),
    )
    rows = [(day.day, *_cells(day)) for day in found.days]
    print_table(columns, [*rows, ("all", *_cells(total))], "nothing was there in this time")
    typer.echo()
    _print_spent("QUEUE", [(own.queue, *_spent_cells(own)) for own in found.queues])
    if found.users:
        typer.echo()
        _print_spent("USER", [(own.user or "–", *_spent_cells(own)) for own in found.users])


def _print_spent(whose: str, rows: Sequence[Sequence[str]]) -> None:
    names = (whose, "USED", "NOT BUSY", "RESTARTS", "LOST", "WAITED FOR")
    print_table([Column(name, right=k > 0) for k, name in enumerate(names)], rows, "no job had or wanted GPUs")


def _headline(total: Account) -> str:
    if not total.capacity_gpu_s:
        return "there were no GPUs"
    wasted = total.unused_gpu_s + total.restarting_gpu_s + total.lost_gpu_s + total.fragmented_gpu_s
    return (
        f"{_hours(total.capacity_gpu_s)} GPU-hours, {_share(total.used_gpu_s, total)} used, "
        f"{_share(wasted, total)} wasted on GPUs that were not busy, restarts, lost work and fragments"
    )


def _cells(own: Account) -> Sequence[str]:
    parts = (own.used_gpu_s, own.unused_gpu_s, own.restarting_gpu_s, own.lost_gpu_s)
    left = (own.idle_gpu_s, own.fragmented_gpu_s, own.unavailable_gpu_s)
    shares = [_share(part, own) for part in (*parts, *left)]
    return (_hours(own.capacity_gpu_s), *shares, _hours(own.waiting_gpu_s))


def _spent_cells(own: Spent) -> Sequence[str]:
    held = (own.used_gpu_s, own.unused_gpu_s, own.restarting_gpu_s, own.lost_gpu_s)
    return tuple(map(_hours, (*held, own.waiting_gpu_s)))


def _hours(gpu_s: float) -> str:
    hours = gpu_s / _HOUR_S
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def _share(part: float, own: Account) -> str:
    return f"{100 * part / own.capacity_gpu_s:.1f}%" if own.capacity_gpu_s else "–"
