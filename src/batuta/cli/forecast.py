"""`batuta eta` and `batuta whatif`: simulate the cluster's future, as it is and with changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batuta.apitypes.forecasts import Change, EtaAnswer, JobChange, JobEta, WhatIfAnswer
from batuta.cli import output as out
from batuta.cli.options import HomeOption, Output, OutputOption, argument, ask_server_or_journal, flag, option
from batuta.cli.output import DASH, Column
from batuta.client.decoding import decode
from batuta.spec.problem import Problem, collect_problems, read_text, refuse

if TYPE_CHECKING:
    from batuta.client.client import Client

_SHOWN_JOBS = 20

ArrivalsOption = Annotated[bool, flag("--arrivals/--no-arrivals", "Whether jobs keep coming as they did lately.")]


def eta(
    job: Annotated[str | None, argument("[JOB]", "Id or name of a job; default: all.", complete="active jobs")] = None,
    arrivals: ArrivalsOption = True,
    wait: Annotated[
        float | None,
        option("How long to wait for a fine forecast; default: 10, or 0.5 with many jobs.", "SECONDS", min=0, max=60),
    ] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Tell when jobs will start and finish.

    The cluster as it is now goes on in a simulation, under the policy that decides, several times with other
    lengths of jobs, while others keep coming as they did lately. In half of these futures a job is done by
    the first time, in nine of ten by the second; how earlier answers came true is taken into account.
    With thousands of jobs that takes a while: the answer is then an earlier or a coarse one, and says so.

    Examples:
      batuta eta
      batuta eta resnet --no-arrivals
      batuta eta --wait 30
    """
    out.print_result(_request_eta(job, home, arrivals, wait), output, _print_eta)


def _request_eta(job: str | None, home: Path | None, arrivals: bool, wait_s: float | None) -> EtaAnswer:
    def ask(client: Client) -> EtaAnswer:
        own = None if job is None else client.job(job).id
        return client.eta(own, expects_arrivals=arrivals, within_s=wait_s)

    def look(folder: Path) -> EtaAnswer:
        from batuta.bootstrap import offline

        return decode(EtaAnswer, offline.eta(folder, job, expects_arrivals=arrivals))

    with out.spinner("looking ahead"):
        return ask_server_or_journal(home, ask, look)


def _print_eta(forecast: EtaAnswer) -> None:
    def start(at_s: float | None, one: JobEta, started: str) -> str:
        """Return a time of the start; `started` for a job that has GPUs."""
        has_started = one.start.p50_s is not None and one.start.p50_s <= forecast.now_s
        return started if has_started else _time(forecast, at_s)

    columns: tuple[Column[JobEta], ...] = (
        Column("ID", lambda one: one.id),
        Column("NAME", lambda one: one.name, least=8),
        Column("STATE", lambda one: out.state_text(one.state), drop=2),
        Column("STARTS", lambda one: start(one.start.p50_s, one, "started"), right=True),
        Column("AT THE LATEST", lambda one: start(one.start.p90_s, one, ""), right=True, drop=3),
        Column("FINISHES", lambda one: _time(forecast, one.finish.p50_s), right=True),
        Column("AT THE LATEST", lambda one: _time(forecast, one.finish.p90_s), right=True),
        Column("", lambda one: one.why, drop=1, least=10),
    )
    out.print_table(columns, forecast.jobs, empty="there is no job that is not over")
    if forecast.jobs:
        runs = f" ({forecast.runs} runs)" if forecast.runs else ""
        out.print_stderr(f"under {forecast.policy}, {'; '.join(forecast.assumes)}{runs}")


def _time(forecast: EtaAnswer, time_s: float | None) -> str:
    """Return `in 12m 5s (14:05)`; without the time of day for a World whose clock begins at 0."""
    if time_s is None:
        return DASH
    ahead = f"in {out.format_seconds(max(time_s - forecast.now_s, 0.0))}"
    if abs(forecast.now_s - time.time()) > 7 * 86_400:
        return ahead
    then, now = time.localtime(time_s), time.localtime()
    return f"{ahead} ({time.strftime('%H:%M' if then[:3] == now[:3] else '%a %H:%M', then)})"


def whatif(
    policy: Annotated[
        str | None, option("Another policy decides.", "NAME", names="--policy -p", complete="policies")
    ] = None,
    add_nodes: Annotated[str, option("Nodes join, as in 2x8:A100.", "NODES")] = "",
    quota: Annotated[list[Path] | None, option("Quota of a file is applied.", "FILE")] = None,
    submit: Annotated[list[Path] | None, option("A task is submitted.", "TASK.yaml")] = None,
    gpus: Annotated[str | None, option("GPUs of the submitted tasks, as in A100:4.", "GPUS")] = None,
    num_nodes: Annotated[str | None, option("Nodes of the submitted tasks.", "N")] = None,
    drain: Annotated[list[str] | None, option("A node is drained.", "NODE", complete="nodes")] = None,
    arrivals: ArrivalsOption = False,
    seed: Annotated[int, option("Other luck of the jobs.", min=0)] = 0,
    all_jobs: Annotated[bool, flag("--all -a", "Also jobs for which little changes.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Tell what a change would do to every job. Nothing is changed.

    The cluster as it is goes on twice in a simulation, as things are and changed, with the same luck.
    Several changes come together; --quota, --submit and --drain may be repeated.

    Examples:
      batuta whatif --policy afs-l
      batuta whatif --add-nodes 2x8:A100 --drain node-3
      batuta whatif --submit train.yaml --gpus A100:8
    """
    from batuta.client.submission import Submission

    problems: list[Problem] = []
    if (gpus or num_nodes) and not submit:
        problems.append(Problem("--gpus and --num-nodes are for tasks", fix="add --submit TASK.yaml"))
    overrides = {"gpus": gpus, "num_nodes": int(num_nodes) if num_nodes and num_nodes.isdecimal() else num_nodes}
    texts, tasks = list[tuple[str, str]](), list[Submission]()
    for path in quota or ():
        with collect_problems(problems):
            texts.append((str(path), read_text(path)))
    for path in submit or ():
        with collect_problems(problems):
            tasks.append(Submission.of(path, overrides=overrides))
    request: dict[str, Any] = {
        "policy": policy,
        "add_nodes": add_nodes,
        "quota": [(name, text) for name, text in texts if text],
        "submit": tasks,
        "drain": drain or [],
        "expects_arrivals": arrivals,
        "seed": seed,
    }
    if not any((policy, add_nodes, quota, submit, drain)):
        problems.append(Problem("what shall be changed?", fix="--policy, --add-nodes, --quota, --submit or --drain"))
    refuse(problems)
    result = _request_what_if(request, home)
    out.print_result(result, output, lambda found: _print_what_if(found, all_jobs))


def _request_what_if(request: dict[str, Any], home: Path | None) -> WhatIfAnswer:
    def look(folder: Path) -> WhatIfAnswer:
        from batuta.bootstrap import offline
        from batuta.client.client import what_if_body

        return decode(WhatIfAnswer, offline.what_if(folder, dict(what_if_body(**request))))

    with out.spinner("looking ahead twice"):
        return ask_server_or_journal(home, lambda client: client.what_if(**request), look)


def _print_what_if(result: WhatIfAnswer, all_jobs: bool) -> None:
    shown = [
        ("mean completion time", result.jct_s, out.format_seconds, _share_grown),
        ("mean waiting from now on", result.wait_s, out.format_seconds, _share_grown),
        ("finish-time fairness, mean", result.fairness, _form(".2f"), _share_grown),
        ("finish-time fairness, worst", result.worst_fairness, _form(".2f"), _share_grown),
        ("GPUs in use", result.utilisation, _form(".0%"), _share_grown),
        ("until all are done", result.makespan_s, out.format_seconds, _share_grown),
        ("restarts", result.restarts, _form(".1f"), _count_grown),
        ("preemptions", result.preemptions, _form(".1f"), _count_grown),
    ]
    if result.unfinished.before or result.unfinished.after:
        shown.append(("jobs that never end", result.unfinished, lambda value: f"{value or 0:.0f}", _share_grown))
    rows = [(name, show(one.before), show(one.after), grown(one)) for name, one, show, grown in shown]
    out.print_table((Column(""), *(Column(title, right=True) for title in ("NOW", "CHANGED", ""))), rows)
    jobs = _most_changed(result, all_jobs)
    if jobs:
        typer.echo("")
        out.print_table(_JOB_CHANGES, jobs)
        if len(jobs) < len(result.jobs):
            left = len(result.jobs) - len(jobs)
            out.print_stderr(f"{left} more job{'' if left == 1 else 's'}: --all shows {'it' if left == 1 else 'them'}")
    out.print_stderr(f"{'; '.join(result.assumes)} ({result.runs} runs)")


def _form(form: str) -> Callable[[float | None], str]:
    return lambda value: out.format_number(value, form)


def _share_grown(change: Change) -> str:
    before, after = change.before, change.after
    share = f"{after / before - 1:+.0%}" if before and after is not None and before > 0 else ""
    return "" if share in ("+0%", "-0%") else share


def _count_grown(change: Change) -> str:
    """Return the difference as a number: a percentage of small counts says little."""
    grown = "" if change.before is None or change.after is None else f"{change.after - change.before:+.1f}"
    return "" if grown in ("+0.0", "-0.0") else grown


_JOB_CHANGES: tuple[Column[JobChange], ...] = (
    Column("ID", lambda one: one.id),
    Column("NAME", lambda one: one.name, drop=2, least=8),
    Column("DONE AFTER", lambda one: out.format_seconds(one.jct_s.before), right=True),
    Column("CHANGED", lambda one: out.format_seconds(one.jct_s.after), right=True),
    Column("", lambda one: _share_grown(one.jct_s), right=True),
    Column("WAITS", lambda one: out.format_seconds(one.wait_s.before), right=True, drop=1),
    Column("CHANGED", lambda one: out.format_seconds(one.wait_s.after), right=True, drop=1),
)


def _most_changed(result: WhatIfAnswer, all_jobs: bool) -> list[JobChange]:
    if all_jobs:
        return list(result.jobs)

    def weight(one: JobChange) -> float:
        before, after = one.jct_s.before, one.jct_s.after
        if before is None or after is None:
            return float("inf") if before is not after else 0.0
        return abs(after - before)

    chosen = {one.id for one in sorted(result.jobs, key=weight, reverse=True)[:_SHOWN_JOBS] if weight(one) >= 1.0}
    return [one for one in result.jobs if one.id in chosen]
