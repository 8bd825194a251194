"""`batuta up` and `batuta down`: start and stop the server of this machine."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.bootstrap.local_facts import prepare_home, run_server, server_pid
from batuta.cli.options import HomeOption, OtlpOption, Output, OutputOption, argument, check_otlp_option, flag, option
from batuta.cli.output import print_result, print_stderr, spinner
from batuta.client.address import find_home, read_server_file, show_path
from batuta.client.errors import ClientError, NoServerError
from batuta.spec.problem import InputError, Problem, collect_problems, refuse
from batuta.spec.quantity import parse_duration_s
from batuta.telemetry import LogFormat

if TYPE_CHECKING:
    from batuta.bootstrap.local_server import Server
    from batuta.engine.stragglers.rank_watch import RankRules


NOTE_PREFIX = "note: "  # begins the lines of the server's log that `batuta up -d` prints too
STARTUP_TIMEOUT_S = 60.0
SHUTDOWN_TIMEOUT_S = 150.0  # the server gives its jobs two minutes to save a checkpoint and to end
_SHOWN_LINES = 20
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Stragglers = StrEnum("Stragglers", {"MOVE": "move", "REPORT": "report", "OFF": "off"})


ShareOrder = StrEnum("ShareOrder", {"BIN_PACK": "bin-pack", "SPREAD": "spread"})

IdleAction = StrEnum("IdleAction", {"REPORT": "report", "SHRINK": "shrink", "PARK": "park"})


def up(
    shape: Annotated[
        str | None, argument("[SHAPE]", "Of virtual GPUs: NODESxGPUS[:TYPE], as in 1x8 or 2x4:A100.")
    ] = None,
    nodes: Annotated[int | None, option("How many nodes this machine is; default 1, or 2 virtual ones.", "N")] = None,
    gpus: Annotated[int | None, option("GPUs of each node; default all, or 4 virtual ones.", "M")] = None,
    virtual: Annotated[bool, flag("--virtual", "Virtual GPUs: everything can be tried without a real one.")] = False,
    gpu_type: Annotated[
        str | None, option("What virtual GPUs are, as in H100; default: they stand for every type.", "TYPE")
    ] = None,
    cpus: Annotated[
        float | None,
        option(
            "CPUs of each node; default its part of this machine's, or 16 for each virtual GPU.",
            "N",
            min=0.001,
            max=100_000,
        ),
    ] = None,
    memory: Annotated[
        float | None,
        option(
            "GiB of memory of each node; default as for --cpus, or 128 for each virtual GPU.",
            "GIB",
            min=0.001,
            max=10_000_000,
        ),
    ] = None,
    port: Annotated[
        int | None, option("TCP port; default 7077 or a free one; 0: a free one.", min=0, max=65535)
    ] = None,
    listen: Annotated[str, option("Address to listen at.", "ADDR")] = "127.0.0.1",
    socket: Annotated[
        Path | None,
        option(
            "As root: a unix socket for all users of this machine; each job runs as the user who submits it. "
            "Clients look at /run/batuta/batuta.sock.",
            "PATH",
        ),
    ] = None,
    job_files: Annotated[
        Path | None,
        option("With --socket: where jobs of other users have their files; default /var/lib/batuta/jobs.", "DIR"),
    ] = None,
    jobs_run_as_me: Annotated[
        bool,
        flag(
            "--jobs-run-as-me", "With --listen, or as root: every caller's jobs run as the user who starts this server."
        ),
    ] = False,
    policy: Annotated[
        str, option("Who decides; default: the last one, else rent.", names="--policy -p", complete="policies")
    ] = "",
    shadow: Annotated[str, option("A second policy that only watches: see batuta shadow.", "NAME")] = "",
    demo: Annotated[bool, flag("--demo", "Virtual GPUs, and some elastic jobs that arrive by themselves.")] = False,
    stay: Annotated[bool, flag("--stay", "With --demo: go on when its jobs are over.")] = False,
    user_priority: Annotated[
        int,
        option(
            "The highest priority that users may give jobs where the queue has no max_priority.",
            "N",
            min=-1000,
            max=1000,
        ),
    ] = 0,
    open_metrics: Annotated[bool, flag("--open-metrics", "Prometheus may read /metrics without a token.")] = False,
    metrics_per_job: Annotated[int, option("How many jobs have metrics of their own.", "N", min=0)] = 50,
    pass_env: Annotated[
        list[str] | None,
        option("A variable that jobs inherit beside PATH, HOME, PYTHON*, CUDA* and the like; repeatable.", "NAME"),
    ] = None,
    shares: Annotated[
        ShareOrder, option("Shares of GPUs go to full cards first, or to empty ones.")
    ] = ShareOrder.BIN_PACK,
    busiest: Annotated[
        float,
        option("A GPU is shared further while all on it together are not busier than this.", "SHARE", min=0.0, max=1.0),
    ] = 0.7,
    over_allocate: Annotated[
        int,
        option("Soft shares of a GPU have so much of its compute together, in percent.", "PERCENT", min=100, max=1000),
    ] = 100,
    idle_after: Annotated[str, option("A job that uses none of its GPUs for so long is idle.", "TIME")] = "15m",
    idle_action: Annotated[
        IdleAction, option("What becomes of idle jobs, where their queue says nothing.")
    ] = IdleAction.REPORT,
    stragglers: Annotated[
        Stragglers, option("What becomes of jobs with a rank that is slower than the others.")
    ] = Stragglers.MOVE,
    hang_after: Annotated[
        str, option("A job that used to report and says nothing for so long is restarted; off: never.", "TIME")
    ] = "30m",
    job_processes: Annotated[
        int | None,
        option(
            "Processes and threads of each node of a job that sets no limit; default 4096 or more.",
            "N",
            min=16,
        ),
    ] = None,
    job_memory: Annotated[
        float | None,
        option("GiB for each node of a job that sets no limit; default all but the reserve.", "GIB", min=0.001),
    ] = None,
    reserve_memory: Annotated[
        float | None,
        option("GiB that all jobs together leave free; default 1 or a sixteenth.", "GIB", min=0.0),
    ] = None,
    retain_jobs: Annotated[int, option("How many jobs that are over are kept.", "N", min=0)] = 10_000,
    retain_days: Annotated[float, option("How long jobs that are over are kept.", "D")] = 7.0,
    set_aside: Annotated[
        bool,
        flag("--set-aside", "Start although the journal is not that of the jobs' folders: move those to set-aside/."),
    ] = False,
    otlp: OtlpOption = None,
    log_format: Annotated[LogFormat, option("How the lines of server.log look.")] = LogFormat.JSON,
    health_log: Annotated[
        Path | None,
        option("The kernel log with errors of GPUs; default: /dev/kmsg, or that of the virtual GPUs.", "FILE"),
    ] = None,
    health_rules: Annotated[
        Path | None, option("What errors of GPUs mean: an edited copy of what batuta health rules prints.", "FILE")
    ] = None,
    detach: Annotated[bool, flag("--detach -d", "Run in the background.")] = False,
    home: HomeOption = None,
) -> None:
    """Turn this machine into a cluster.

    Engine, journal, API and dashboard run in one process, until Ctrl-C or batuta down. It is a server for one
    user: all jobs run as the user who starts it. With --socket root starts a server for all users of the machine:
    each job runs as the unix user who submits it. Who asks from another machine needs --listen and a token.

    Examples:
      batuta up -d
      batuta up --virtual --nodes 2 --gpus 4 --policy afs-l
      batuta up --virtual 2x8:H100
      batuta up --demo
      sudo batuta up -d --home /var/lib/batuta/state --socket /run/batuta/batuta.sock
    """
    folder = find_home(home)
    virtual = virtual or demo
    problems: list[Problem] = []
    if shape is not None:
        nodes, gpus, gpu_type = _read_shape(shape, (nodes, gpus, gpu_type), problems, virtual=virtual)
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
    if job_files is not None and socket is None:
        problems.append(Problem("--job-files is for a server with --socket", fix="add --socket"))
    idle_after_s = _parse_idle_after(idle_after, problems)
    if health_log is not None or health_rules is not None:
        from batuta.gpu.health.rules import read_health

        with collect_problems(problems):
            read_health(health_log, health_rules)
    hang_after_s = parse_hang_after(hang_after, problems)
    check_otlp_option(otlp, problems)
    refuse(problems)
    if not virtual:
        from batuta.gpu.devices import find_devices

        if not find_devices():
            raise InputError.of("this machine has no GPU that NVML knows of", fix="batuta up --virtual")
    if detach:
        start_detached(folder, sys.argv[1:])
        return
    from batuta.backends.local.limits import LimitOptions
    from batuta.bootstrap.local_server import UpOptions
    from batuta.core import quota
    from batuta.core.utilisation import IdleRules
    from batuta.engine.retention import Keep

    options = UpOptions(
        home=folder,
        nodes=nodes,
        gpus=gpus,
        virtual=virtual,
        cpus=cpus,
        memory_gib=memory,
        port=port,
        listen=listen,
        jobs_run_as_me=jobs_run_as_me,
        policy=policy,
        shadow=shadow,
        user_priority=user_priority,
        open_metrics=open_metrics,
        metrics_per_job=metrics_per_job,
        pass_env=tuple(pass_env or ()),
        shares=shares.value,
        busiest=busiest,
        over_allocate=over_allocate,
        idle=IdleRules(idle_after_s, quota.IdleAction(idle_action.value)),
        keep=Keep(retain_jobs, retain_days * 86_400.0),
        health_log=None if health_log is None else health_log.absolute(),
        health_rules=None if health_rules is None else health_rules.absolute(),
        ranks=rank_rules(hang_after_s, stragglers),
        set_aside=set_aside,
        otlp=otlp or "",
        log_format=log_format,
        limits=LimitOptions(job_processes, job_memory, reserve_memory),
    )
    if socket is not None:
        options = replace(options, unix_socket=socket.absolute())
    if job_files is not None:
        options = replace(options, job_files=job_files.absolute())
    if gpu_type is not None:
        options = replace(options, gpu_type=gpu_type)
    raise typer.Exit(run_server(options, _print_ready, demo=demo, stay=stay))


def parse_hang_after(text: str, problems: list[Problem]) -> float:
    """Return the seconds of --hang-after; add what is wrong with it to `problems`."""
    from batuta.spec.task_resources import parse_hang_after_s

    with collect_problems(problems, "--hang-after"):
        return parse_hang_after_s(text)
    return 0.0


def rank_rules(hang_after_s: float, stragglers: Stragglers) -> RankRules:
    from batuta.engine.stragglers.rank_watch import RankRules, StragglerAction
    from batuta.prediction.hang import HangRules

    return RankRules(StragglerAction(stragglers.value), hang=HangRules(after_s=hang_after_s))


def _read_shape(
    shape: str, given: tuple[int | None, int | None, str | None], problems: list[Problem], *, virtual: bool
) -> tuple[int | None, int | None, str | None]:
    """Return nodes, GPUs of each and their type for a shape like `2x4:A100`; `given` if it is not valid."""
    from batuta.spec.cluster import DEFAULT_TYPE, parse_cluster_string

    if not virtual:
        problems.append(Problem(f"{shape}: a shape is for virtual GPUs", fix="add --virtual"))
    options = zip(("--nodes", "--gpus", "--gpu-type"), given, strict=True)
    if doubled := [option for option, value in options if value is not None]:
        problems.append(Problem(f"{shape} and {', '.join(doubled)} say the same", fix="leave one of them out"))
    with collect_problems(problems):
        found = parse_cluster_string(shape)
        if len({(node.gpus, node.gpu_type) for node in found}) > 1:
            problems.append(Problem(f"{shape} has nodes that differ", fix="one NODESxGPUS[:TYPE] for all nodes"))
        kind = found[0].gpu_type
        return len(found), found[0].gpus, None if kind == DEFAULT_TYPE else kind
    return given


def _parse_idle_after(text: str, problems: list[Problem]) -> float:
    with collect_problems(problems):
        found = parse_duration_s(text, "--idle-after")
        if 0 < found < math.inf:
            return found
        problems.append(Problem(f"--idle-after must be more than 0, found {text}", fix="as in 15m"))
    return 0.0


def _print_ready(server: Server) -> None:
    """Print where the server listens, and what to do next."""
    home = show_path(server.state.path)
    typer.echo(f"Batuta serves at {server.url} (pid {os.getpid()}, state in {home}); Ctrl-C ends it", err=True)
    typer.echo("batuta dashboard opens the dashboard, batuta launch starts a job", err=True)
    typer.echo(f"it is a server {server.whom_it_serves}", err=True)
    for note in server.gpus.notes:
        typer.echo(f"{NOTE_PREFIX}{note}", err=True)


def start_detached(home: Path, words: list[str]) -> None:
    """Start `batuta up` in a session of its own, and return when it is ready; print its log where it ends."""
    prepare_home(home)
    if (pid := server_pid(home)) is not None:
        # Before its log is truncated.
        raise ClientError(f"a server (pid {pid}) has {show_path(home)} already; batuta down ends it")
    log = home / "up.log"
    command = [sys.executable, "-m", "batuta", *(word for word in words if word not in ("-d", "--detach"))]
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"BATUTA_HOME": str(home)},
        )
    with spinner("the server starts"):
        url = _wait_until_ready(home, child, log)
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(NOTE_PREFIX):
            typer.echo(line, err=True)
    print_stderr(f"the server runs at {url} (pid {child.pid}); its log is {show_path(log)}")
    if not sys.stdout.isatty():  # for scripts: a user has just read it
        typer.echo(url)


def _wait_until_ready(home: Path, child: subprocess.Popen[bytes], log: Path) -> str:
    from batuta.client.client import Client

    give_up = time.monotonic() + STARTUP_TIMEOUT_S
    while time.monotonic() < give_up:
        code = child.poll()
        if code is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
            for line in lines or [f"error: the server ended at once with exit code {code}"]:
                typer.echo(line, err=True)
            raise typer.Exit(code if code > 0 else 1)
        if read_server_file(home).get("pid") == child.pid:
            try:
                with Client(home=home, timeout_s=5.0) as client:
                    if client.is_ready() and client.address is not None:
                        return client.address.url
            except ClientError:
                pass  # it is still starting
        time.sleep(0.05)
    raise ClientError(f"the server (pid {child.pid}) is not ready after {STARTUP_TIMEOUT_S:.0f} s: see {log}")


def down(
    keep_jobs: Annotated[bool, flag("--keep-jobs", "Let jobs run on; the next server takes them over.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Stop the server. Jobs make a checkpoint and stop as well, and go on at the next start.

    Examples:
      batuta down
      batuta down --keep-jobs
    """
    from batuta.client.client import Client

    folder = find_home(home)
    pid = server_pid(folder)
    if pid is None:
        sentence = f"no server is running for {show_path(folder)}"
        print_result({"stopped": False, "pid": None}, output, lambda _: typer.echo(sentence))
        return
    try:
        with Client(home=folder) as client:
            client.shut_down(keep_jobs=keep_jobs)
    except NoServerError:
        raise ClientError(f"the server (pid {pid}) does not answer; to end it: kill {pid}") from None
    with spinner("the server shuts down"):
        give_up = time.monotonic() + SHUTDOWN_TIMEOUT_S
        while server_pid(folder) == pid:
            if time.monotonic() > give_up:
                raise ClientError(f"the server (pid {pid}) still runs after {SHUTDOWN_TIMEOUT_S:.0f} s")
            time.sleep(0.05)
    sentence = f"the server for {show_path(folder)} (pid {pid}) has stopped{'; its jobs run on' if keep_jobs else ''}"
    print_result({"stopped": True, "pid": pid}, output, lambda _: typer.echo(sentence))
