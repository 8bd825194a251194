"""`batuta up`: the server of this machine."""

from __future__ import annotations

import math
import os
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.detached import NOTE, start_detached
from batuta.cli.rank_options import (
    HangAfterOption,
    Stragglers,
    StragglersOption,
    rank_rules,
    read_hang_after,
)
from batuta.cli.server_options import HomeOption
from batuta.cli.telemetry_options import OtlpOption, check_otlp_option
from batuta.telemetry.log_format import LogFormat

if TYPE_CHECKING:
    from batuta.bootstrap.server import Server
    from batuta.spec.problem import Problem

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ShareOrder(StrEnum):
    """The words of --shares."""

    BIN_PACK = "bin-pack"
    SPREAD = "spread"


class IdleActions(StrEnum):
    """The words of --idle-action."""

    REPORT = "report"
    SHRINK = "shrink"
    PARK = "park"


def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", help="How many nodes this machine is; default 1, or 2 virtual ones.", metavar="N"
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", help="GPUs of each node; default all, or 4 virtual ones.", metavar="M"),
    ] = None,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="Virtual GPUs: everything can be tried without a real one.")
    ] = False,
    gpu_type: Annotated[
        str | None,
        typer.Option("--gpu-type", help="What virtual GPUs call themselves, as in H100.", metavar="TYPE"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="TCP port; default 7077 or a free one; 0: a free one."),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", help="Address to listen at.", metavar="ADDR")
    ] = "127.0.0.1",
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Who decides; default: the last one, else rent.")
    ] = "",
    shadow: Annotated[
        str,
        typer.Option(
            "--shadow", help="A second policy that only watches: see batuta shadow.", metavar="NAME"
        ),
    ] = "",
    demo: Annotated[
        bool, typer.Option("--demo", help="Virtual GPUs, and some elastic jobs that arrive by themselves.")
    ] = False,
    stay: Annotated[bool, typer.Option("--stay", help="With --demo: go on when its jobs are over.")] = False,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="Prometheus may read /metrics without a token.")
    ] = False,
    metrics_per_job: Annotated[
        int,
        typer.Option(
            "--metrics-per-job", min=0, help="How many jobs have metrics of their own.", metavar="N"
        ),
    ] = 50,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-env",
            help="A variable that jobs inherit beside PATH, HOME, PYTHON*, CUDA* and the like; repeatable.",
            metavar="NAME",
        ),
    ] = None,
    shares: Annotated[
        ShareOrder,
        typer.Option("--shares", help="Shares of GPUs go to full cards first, or to empty ones."),
    ] = ShareOrder.BIN_PACK,
    busiest: Annotated[
        float,
        typer.Option(
            "--busiest",
            min=0.0,
            max=1.0,
            help="A GPU is shared further while all on it together are not busier than this.",
            metavar="SHARE",
        ),
    ] = 0.7,
    over_allocate: Annotated[
        int,
        typer.Option(
            "--over-allocate",
            min=100,
            max=1000,
            help="Soft shares of a GPU have so much of its compute together, in percent.",
            metavar="PERCENT",
        ),
    ] = 100,
    idle_after: Annotated[
        str,
        typer.Option(
            "--idle-after", help="A job that uses none of its GPUs for so long is idle.", metavar="TIME"
        ),
    ] = "15m",
    idle_action: Annotated[
        IdleActions,
        typer.Option("--idle-action", help="What becomes of idle jobs, where their queue says nothing."),
    ] = IdleActions.REPORT,
    stragglers: StragglersOption = Stragglers.MOVE,
    hang_after: HangAfterOption = "30m",
    retain_jobs: Annotated[
        int, typer.Option("--retain-jobs", min=0, help="How many jobs that are over are kept.", metavar="N")
    ] = 10_000,
    retain_days: Annotated[
        float, typer.Option("--retain-days", help="How long jobs that are over are kept.", metavar="D")
    ] = 7.0,
    otlp: OtlpOption = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="How the lines of server.log look.")
    ] = LogFormat.JSON,
    health_log: Annotated[
        Path | None,
        typer.Option(
            "--health-log",
            help="The kernel log with errors of GPUs; default: /dev/kmsg, or that of the virtual GPUs.",
            metavar="FILE",
        ),
    ] = None,
    health_rules: Annotated[
        Path | None,
        typer.Option(
            "--health-rules",
            help="What errors of GPUs mean: an edited copy of what batuta health rules prints.",
            metavar="FILE",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")] = False,
    home: HomeOption = None,
) -> None:
    """Turn this machine into a cluster.

    Engine, journal, API and dashboard run in one process, until Ctrl-C or batuta down. Who asks from
    another machine needs --listen and a token.

    Examples:

      batuta up -d

      batuta up --virtual --nodes 2 --gpus 4 --policy afs-l

      batuta up --demo
    """
    from batuta.client.address import find_home
    from batuta.spec.problem import InputError, Problem

    folder = find_home(home)
    virtual = virtual or demo
    problems = []
    if gpu_type is not None and not virtual:
        problems.append(Problem("--gpu-type is for virtual GPUs", fix="add --virtual"))
    if stay and not demo:
        problems.append(Problem("--stay is for the demo: any other server stays anyway", fix="add --demo"))
    if not 0 < retain_days < math.inf:
        problems.append(Problem(f"--retain-days takes more than 0 days, found {retain_days:g}"))
    problems += [
        Problem(f"--pass-env takes the name of a variable, found {name!r}")
        for name in pass_env or ()
        if not _VARIABLE.fullmatch(name)
    ]
    idle_after_s = _seconds(idle_after, problems)
    if health_log is not None or health_rules is not None:
        _check_health(health_log, health_rules, problems)
    hang_after_s = read_hang_after(hang_after, problems)
    check_otlp_option(otlp, problems)
    if problems:
        raise InputError(problems)
    if not virtual:
        _check_gpus()
    if detach:
        start_detached(folder, sys.argv[1:])
        return
    from batuta.bootstrap.local_facts import run_server
    from batuta.bootstrap.server import Keep, UpOptions, idle_rules

    options = UpOptions(
        home=folder,
        nodes=nodes,
        gpus=gpus,
        virtual=virtual,
        port=port,
        listen=listen,
        policy=policy,
        shadow=shadow,
        open_metrics=open_metrics,
        metrics_per_job=metrics_per_job,
        pass_env=tuple(pass_env or ()),
        shares=shares.value,
        busiest=busiest,
        over_allocate=over_allocate,
        idle=idle_rules(idle_after_s, idle_action.value),
        keep=Keep(retain_jobs, retain_days * 86_400.0),
        health_log=None if health_log is None else health_log.absolute(),
        health_rules=None if health_rules is None else health_rules.absolute(),
        ranks=rank_rules(hang_after_s, stragglers),
        otlp=otlp or "",
        log_format=log_format,
        **({"gpu_type": gpu_type} if gpu_type is not None else {}),
    )
    raise typer.Exit(run_server(options, _tell_ready, demo=demo, stay=stay))


def _check_health(log: Path | None, rules: Path | None, problems: list[Problem]) -> None:
    from batuta.bootstrap.health_local import read_health
    from batuta.spec.problem import InputError

    try:
        read_health(log, rules)
    except InputError as error:
        problems.extend(error.problems)


def _seconds(text: str, problems: list[Problem]) -> float:
    from batuta.spec.duration import parse_duration_s
    from batuta.spec.problem import InputError, Problem

    try:
        found = parse_duration_s(text, "--idle-after")
    except InputError as error:
        problems.extend(error.problems)
        return 0.0
    if not 0 < found < math.inf:
        problems.append(Problem(f"--idle-after must be more than 0, found {text}", fix="as in 15m"))
    return found


def _tell_ready(server: Server) -> None:
    """Two lines for who started it; a browser needs a link that logs it in."""
    from batuta.client.address import show_path

    home = show_path(server.state.path)
    typer.echo(
        f"Batuta serves at {server.url} (pid {os.getpid()}, state in {home}); Ctrl-C ends it", err=True
    )
    typer.echo("batuta dashboard opens the dashboard, batuta launch starts a job", err=True)
    for note in server.gpus.notes:
        typer.echo(f"{NOTE}{note}", err=True)


def _check_gpus() -> None:
    from batuta.bootstrap.local_facts import count_gpus
    from batuta.spec.problem import InputError

    if count_gpus() == 0:
        raise InputError.of("this machine has no GPU that NVML knows of", fix="batuta up --virtual")
