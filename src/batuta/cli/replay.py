"""`batuta replay` and `batuta shadow`: compare other policies with what the cluster really did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from batuta.apitypes.forecasts import ShadowAnswer, ShadowDifference
from batuta.cli import output as out
from batuta.cli.options import HomeOption, Output, OutputOption, connect_to_server, flag, option, parse_time_s
from batuta.cli.output import DASH, Column
from batuta.client.address import find_home
from batuta.client.errors import ClientError
from batuta.spec.problem import Problem, collect_problems, refuse

_SHOWN_JOBS = 20
_COMMANDS = ("start", "resize", "migrate", "preempt", "stop")
_DIFFERENCES: tuple[Column[ShadowDifference], ...] = (
    Column("JOB", lambda one: one.id),
    Column("GPUS", lambda one: str(one.has), right=True),
    Column("WOULD HAVE", lambda one: str(one.would_have), right=True),
    Column("SINCE", lambda one: out.format_age(one.since_s)),
)


def replay(
    since: Annotated[str, option("From when on: a date, a time, or 24h for so long ago.", "TIME", names="--from")],
    policy: Annotated[
        list[str], option("A policy, or several as in srjf,afs-l; may be repeated.", "NAMES", names="--policy -p")
    ],
    until: Annotated[str | None, option("Until when; default: now.", "TIME", names="--to")] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Run the journal's past again under other policies.

    The jobs that came, with the work that they turned out to be, the nodes that failed and what people did
    are the same. What is compared are the jobs that ended within this time.

    Examples:
      batuta replay --from 24h --policy srjf,afs-l
      batuta replay --from 24h -p srjf -p afs-l
      batuta replay --from '2026-11-15 09:00' --to '2026-11-15 18:00' -p elastic-tiresias
    """
    from batuta.engine.profile import find_policy

    problems: list[Problem] = []
    now_s, times = time.time(), dict[str, float]()
    for name, text in (("--from", since), ("--to", until)):
        with collect_problems(problems):
            times[name] = now_s if text is None else parse_time_s(text, name, now_s)
    names = [name.strip() for text in policy for name in text.split(",") if name.strip()]
    if not names:
        problems.append(Problem("--policy names no policy", fix="see batuta policies"))
    for name in names:
        with collect_problems(problems):
            find_policy(name)
    if len(times) == 2 and times["--from"] >= times["--to"]:
        problems.append(Problem("--from must be before --to"))
    refuse(problems)
    result = _run_replay(find_home(home), times["--from"], times["--to"], names)
    out.print_result(result, output, _print_replay)


def _run_replay(home: Path, from_s: float, to_s: float, policies: Sequence[str]) -> dict[str, Any]:
    from batuta.bootstrap import offline

    with out.spinner("reading the journal") as status:
        return offline.replay(home, from_s, to_s, policies, lambda name: status.update(f"replaying {name}"))


def _print_replay(result: dict[str, Any]) -> None:
    actual = result["rows"][0]
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("", lambda one: f"{one['policy']}, replayed" if one["policy"] else "really"),
        Column("MEAN COMPLETION", lambda one: out.format_seconds(one["jct_s"]), right=True),
        Column("", lambda one: _against(one, actual), right=True),
        Column("MEAN WAITING", lambda one: out.format_seconds(one["wait_s"]), right=True),
        Column("GPU-HOURS", lambda one: f"{one['gpu_hours']:.2f}", right=True),
        Column("RESTARTS", lambda one: str(one["restarts"]), right=True),
        Column("PREEMPTIONS", lambda one: str(one["preemptions"]), right=True, drop=1),
    )
    out.print_table(columns, result["rows"])
    out.print_stderr(f"over {actual['jobs']} jobs that ended, of {result['jobs']} that lived within this time")
    for one in result["rows"]:
        if one["missing"]:
            out.print_stderr(
                f"{one['missing']} jobs that ended really do not end under {one['policy']}, and are left out"
            )
    out.print_stderr("; ".join(result["assumes"]))


def _against(one: dict[str, Any], actual: dict[str, Any]) -> str:
    is_known = one["policy"] and one["jct_s"] and actual["jct_s"]
    return f"{one['jct_s'] / actual['jct_s'] - 1:+.0%}" if is_known else ""


def shadow(
    outcome: Annotated[
        bool, flag("--outcome", "Also replay the journal since then: what jobs would have taken.")
    ] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Tell what the policy that only watches would have done.

    It sees the same cluster at the same moments as the one that decides. `batuta up --shadow NAME`, or
    `batuta policy shadow NAME`, lets it watch.

    Example: batuta shadow --outcome
    """
    with connect_to_server(home) as client:
        report = client.shadow()
        folder = client.address.home if client.address is not None else None
    if output is Output.JSON:
        out.print_json(report)
        return
    if not report.policy:
        out.print_stderr("no policy watches: batuta policy shadow NAME lets one")
        return
    _print_shadow(report)
    if outcome:
        if folder is None:
            raise ClientError("--outcome reads the journal, which is at the server's machine")
        typer.echo("")
        policies = [report.active_policy, report.policy]
        _print_replay(_run_replay(folder, report.since_s, time.time(), policies))


def _print_shadow(report: ShadowAnswer) -> None:
    agreed = f"{report.agreed / report.cycles:.0%}" if report.cycles else DASH
    typer.echo(
        f"{report.policy} watches {report.active_policy} since {out.format_age(report.since_s)}: "
        f"{report.cycles} cycles, {agreed} alike, {report.skipped} not looked at"
    )
    counted = ((report.active_policy, report.did), (f"{report.policy}, would", report.would))
    if report.trouble:
        out.print_stderr(f"it could not decide {report.failed} times: {report.trouble}")
    commands = [(name, *(str(own.get(kind, 0)) for kind in _COMMANDS)) for name, own in counted]
    out.print_table((Column(""), *(Column(f"{kind.upper()}S", right=True) for kind in _COMMANDS)), commands)
    if report.differences:
        typer.echo("")
        out.print_table(_DIFFERENCES, report.differences[:_SHOWN_JOBS])
        if len(report.differences) > _SHOWN_JOBS:
            out.print_stderr(f"{len(report.differences) - _SHOWN_JOBS} more jobs: -o json has all")
