"""`batuta eta`: when jobs will start and finish."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, complete_jobs, connect_to_server

if TYPE_CHECKING:
    from batuta.client.foresight_answers import Eta, Expected, JobEta

ArrivalsOption = Annotated[
    bool,
    typer.Option("--arrivals/--no-arrivals", help="Whether jobs keep coming as they did lately."),
]


def eta(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Id or name of a job; default: all.", autocompletion=complete_jobs
        ),
    ] = None,
    arrivals: ArrivalsOption = True,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Tell when jobs will start and finish.

    The cluster as it is now goes on in a simulation, under the policy that decides, several times with other
    lengths of jobs, while others keep coming as they did lately. In half of these futures a job is done by
    the first time, in nine of ten by the second; how earlier answers came true is taken into account.

    Examples:

      batuta eta

      batuta eta resnet --no-arrivals
    """
    from batuta.cli.terminal import print_json, say

    told = _ask(job, home, arrivals)
    if output is Output.JSON:
        print_json(told)
        return
    _show(told)
    if told.jobs:
        say(f"under {told.policy}, {'; '.join(told.assumes)} ({told.runs} runs)")


def _ask(job: str | None, home: Path | None, arrivals: bool) -> Eta:
    from batuta.cli.terminal import spinner
    from batuta.client.errors import NoServerError

    with spinner("looking ahead"):
        try:
            with connect_to_server(home) as client:
                known = None if job is None else client.job(job).id
                return client.eta(known, expects_arrivals=arrivals)
        except NoServerError:
            return _from_journal(job, home, arrivals)


def _from_journal(job: str | None, home: Path | None, arrivals: bool) -> Eta:
    """Without a server its journal tells where things were left."""
    from batuta.bootstrap import offline
    from batuta.cli.journal_source import home_of_stopped
    from batuta.client.decoding import decode
    from batuta.client.foresight_answers import Eta

    return decode(Eta, offline.eta(home_of_stopped(home), job, expects_arrivals=arrivals))


def _show(told: Eta) -> None:
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import state_text

    columns = (
        Column("ID"),
        Column("NAME", least=8),
        Column("STATE", drop=2),
        Column("STARTS", right=True),
        Column("AT THE LATEST", right=True, drop=3),
        Column("FINISHES", right=True),
        Column("AT THE LATEST", right=True),
        Column("", drop=1, least=10),
    )
    rows = [
        (
            *(one.id, one.name, state_text(one.state)),
            *_moments(told, one),
            one.why,
        )
        for one in told.jobs
    ]
    print_table(columns, rows, empty="there is no job that is not over")


def _moments(told: Eta, one: JobEta) -> tuple[str, str, str, str]:
    """Start and finish, each by P50 and P90; a job that has GPUs has started."""
    started = one.start.p50_s is not None and one.start.p50_s <= told.now_s
    start = ("started", "") if started else _pair(told, one.start)
    return (*start, *_pair(told, one.finish))


def _pair(told: Eta, moment: Expected) -> tuple[str, str]:
    return _moment(told, moment.p50_s), _moment(told, moment.p90_s)


def _moment(told: Eta, moment_s: float | None) -> str:
    """`in 12m 5s (14:05)`; times of a World that begins at 0 are durations anyway."""
    from batuta.cli.terminal import NOTHING, show_seconds

    if moment_s is None:
        return NOTHING
    ahead = f"in {show_seconds(max(moment_s - told.now_s, 0.0))}"
    if abs(told.now_s - time.time()) > 7 * 86_400:
        return ahead
    then, now = time.localtime(moment_s), time.localtime()
    return f"{ahead} ({time.strftime('%H:%M' if then[:3] == now[:3] else '%a %H:%M', then)})"
