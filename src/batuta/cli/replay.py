"""`batuta replay`: yesterday's journal under another policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption


def replay(
    since: Annotated[
        str,
        typer.Option("--from", help="From when on: a date, a time, or 24h for so long ago.", metavar="TIME"),
    ],
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="One policy, or several as in srjf,afs-l.", metavar="NAMES")
    ],
    until: Annotated[
        str | None, typer.Option("--to", help="Until when; default: now.", metavar="TIME")
    ] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Run the journal's past again under other policies.

    The jobs that came, with the work that they turned out to be, the nodes that failed and what people did
    are the same. What is compared are the jobs that ended within this time.

    Examples:

      batuta replay --from 24h --policy srjf,afs-l

      batuta replay --from '2026-11-15 09:00' --to '2026-11-15 18:00' -p elastic-tiresias
    """
    from batuta import bootstrap
    from batuta.cli.moments import parse_moment_s
    from batuta.cli.terminal import print_json
    from batuta.client.address import find_home
    from batuta.spec.problem import InputError, Problem

    problems: list[Problem] = []
    now_s, moments = time.time(), dict[str, float]()
    for option, text in (("--from", since), ("--to", until)):
        try:
            moments[option] = now_s if text is None else parse_moment_s(text, option, now_s)
        except InputError as error:
            problems += error.problems
    names = [name.strip() for name in policy.split(",") if name.strip()]
    if not names:
        problems.append(Problem("--policy names no policy", fix="see batuta policies"))
    for name in names:
        try:
            bootstrap.find_policy(name)
        except InputError as error:
            problems += error.problems
    if len(moments) == 2 and moments["--from"] >= moments["--to"]:
        problems.append(Problem("--from must be before --to"))
    if problems:
        raise InputError(problems)
    told = _replayed(find_home(home), moments["--from"], moments["--to"], names)
    if output is Output.JSON:
        print_json(told)
    else:
        _show(told)


def show_replayed(home: Path, from_s: float, policies: Sequence[str]) -> None:
    """The same for another verb, up to now."""
    _show(_replayed(home, from_s, time.time(), policies))


def _replayed(home: Path, from_s: float, to_s: float, policies: Sequence[str]) -> dict[str, Any]:
    from batuta.bootstrap import journal_replay
    from batuta.cli.terminal import spinner

    with spinner("reading the journal") as status:
        return journal_replay.replay(
            home, from_s, to_s, policies, lambda name: status.update(f"replaying {name}")
        )


def _show(told: dict[str, Any]) -> None:
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import say, show_seconds

    really = told["rows"][0]
    columns = (
        Column(""),
        *(Column("MEAN COMPLETION", right=True), Column("", right=True)),
        *(Column("MEAN WAITING", right=True), Column("GPU-HOURS", right=True)),
        *(Column("RESTARTS", right=True), Column("PREEMPTIONS", right=True, drop=1)),
    )
    rows = [
        (
            *((one["policy"] and f"{one['policy']}, replayed") or "really", show_seconds(one["jct_s"])),
            *(_against(one["jct_s"], really["jct_s"]) if one["policy"] else "", show_seconds(one["wait_s"])),
            *(f"{one['gpu_hours']:.2f}", str(one["restarts"]), str(one["preemptions"])),
        )
        for one in told["rows"]
    ]
    print_table(columns, rows)
    say(f"over {really['jobs']} jobs that ended, of {told['jobs']} that lived within this time")
    for one in told["rows"]:
        if one["missing"]:
            say(f"{one['missing']} jobs that ended really do not end under {one['policy']}, and are left out")
    say("; ".join(told["assumes"]))


def _against(seconds: float | None, really_s: float | None) -> str:
    return f"{seconds / really_s - 1:+.0%}" if seconds and really_s else ""
