"""`batuta doctor`: check machine, state directory, server and cluster, and say what to do."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from batuta import __version__
from batuta.apitypes.resources import Cluster, Job, Node
from batuta.bootstrap import local_facts
from batuta.cli.options import HomeOption, Output, OutputOption, flag, target_cluster
from batuta.cli.output import console, print_json, print_rich, spinner, styled
from batuta.client.address import find_home, read_server_file, show_path
from batuta.client.errors import ApiError, ClientError, NoServerError, UntrustedServerError
from batuta.engine.soundness import Finding, Severity, error, named, note, ok, warning
from batuta.store.integrity import check_disk_space

if TYPE_CHECKING:
    from batuta.client.client import Client


_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
NEEDED_PYTHON = (3, 11)
TOOLS = (
    ("torchrun", "kind torch-elastic", "install PyTorch"),
    ("mpirun", "kind mpi", "install Open MPI"),
    ("horovodrun", "kind horovod-elastic", "install Horovod"),
    ("bash", "run and setup", "install bash"),
    ("cc", "virtual GPUs", "install a C compiler"),
    ("nvidia-smi", "NVIDIA's GPUs", "install the driver"),
)
_PRINT_SDK_VERSION = "import batuta.sdk, sys; sys.stdout.write(batuta.sdk.__version__)"
_SDK_TIMEOUT_S = 10.0
_GROUP_AND_OTHERS = 0o077
DEFAULT_PORT = 7077
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CONNECT_TIMEOUT_S = 2.0
MAX_SKEW_S = 2.0
NEVER_FITS = frozenset(("EXCEEDS_CLUSTER", "NO_ACCEPTED_TYPE", "NO_MATCHING_NODE", "TOPOLOGY_UNMET", "QUEUE_HELD"))
"""Reasons that waiting does not change: the job or the cluster has to."""


def doctor(
    output: OutputOption = Output.TABLE,
    as_json: Annotated[bool, flag("--json", "The same as -o json.")] = False,
    full: Annotated[bool, flag("--full", "Look through a large journal for damage, too.")] = False,
    home: HomeOption = None,
) -> None:
    """Check machine, state directory, server and cluster.

    It says what to do about what it finds, and works while the server is down. With --context before it, it
    looks at a Kubernetes cluster instead. The exit code is 1 when something is an error.

    Examples:
      batuta doctor
      batuta doctor --json
      batuta --context prod doctor
    """
    with spinner("checking"):
        findings = list(_run_checks(home, full))
    if as_json or output is Output.JSON:
        print_json(findings)
    else:
        _print_findings(findings)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


def _run_checks(home: Path | None, full: bool) -> Iterator[Finding]:
    cluster = target_cluster(home)
    if cluster is None:
        yield from _check_local(home, full)
        return
    from batuta.bootstrap.kube import check_cluster

    yield from check_cluster(cluster.kubeconfig, cluster.context, cluster.namespace)


def _check_local(home: Path | None, full: bool) -> Iterator[Finding]:
    folder = find_home(home)
    yield from check_machine(folder)
    yield check_sdk()
    yield from check_state_dir(folder)
    yield from check_ports(folder)
    findings = list(check_server(home, full=full))
    yield from findings
    if not any(one.check == "journal" for one in findings):
        # Without a server, the journal is checked here.
        from batuta.store.integrity import check_journal

        yield from check_journal(folder / "journal.db", full=full)


def _print_findings(findings: Sequence[Finding]) -> None:
    """Print a table that wraps long cells: a fix must not be cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("CHECK", no_wrap=True)
    table.add_column("RESULT", no_wrap=True)
    table.add_column("FOUND", overflow="fold")
    for finding in findings:
        found = styled(finding.found)
        if finding.fix:
            found.append(f"\n→ {finding.fix}", style="italic")
        severity = finding.severity.value
        table.add_row(styled(finding.check), styled(severity, style=_STYLES[severity]), found)
    print_rich(table)
    counts = {name: sum(1 for one in findings if one.severity == name) for name in ("error", "warning")}
    summary = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items() if count)
    console().print(summary or "all is well", style="bold")


def check_machine(home: Path) -> Iterator[Finding]:
    """Check Python, GPUs, tools and leftover processes."""
    python = f"{platform.python_version()} ({sys.executable})"
    is_old = sys.version_info < NEEDED_PYTHON
    yield error("Python", python, "Python 3.11 or newer") if is_old else ok("Python", python)
    yield _check_gpus()
    for tool, purpose, fix in TOOLS:
        found = shutil.which(tool)
        if found:
            yield ok(tool, found)
        elif tool == "bash":
            yield error(tool, "is not on the PATH", fix)
        else:
            yield note(tool, f"is not on the PATH; needed for {purpose}", fix)
    yield from _check_leftovers(home)
    yield from _check_temporary_disk(home)


def _check_gpus() -> Finding:
    from batuta.gpu.devices import find_devices

    try:
        count = len(find_devices())
    except Exception as trouble:  # a driver that is half installed fails in its own ways
        return warning("GPUs", f"NVML fails: {trouble}", "look at nvidia-smi, or use batuta up --virtual")
    if count == 0:
        return note("GPUs", "NVML knows of none on this machine", "batuta up --virtual")
    return ok("GPUs", f"{count} by NVML")


def _check_leftovers(home: Path) -> Iterator[Finding]:
    found = local_facts.find_leftovers(home)
    if not found:
        yield ok("processes", "none is left over from a job")
        return
    shown = ", ".join(f"{one.pid} {one.command[:40]}".strip() for one in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    pids = " ".join(str(one.pid) for one in found[:20])
    yield warning("processes", f"{len(found)} are left over from jobs: {shown}{more}", f"kill {pids}")


def _check_temporary_disk(home: Path) -> Iterator[Finding]:
    """Check the disk of temporary files, if it is not the state directory's or is nearly full."""
    folder = Path(tempfile.gettempdir())
    found = check_disk_space(folder, f"disk of {folder}")
    with suppress(OSError):
        if home.stat().st_dev == folder.stat().st_dev and found.severity is Severity.OK:
            return
    yield found


def check_sdk(python: str | None = None) -> Finding:
    """Check the version of `batuta.sdk` that jobs import with the Python on the PATH."""
    python = python or shutil.which("python3") or shutil.which("python")
    if python is None:
        return note("SDK", "no python3 is on the PATH", "jobs in Python need one")
    try:
        done = subprocess.run(
            [python, "-c", _PRINT_SDK_VERSION], capture_output=True, text=True, timeout=_SDK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return warning("SDK", f"{python} does not run: {trouble}", "repair it, or its folder on the PATH")
    if done.returncode:
        return note(
            "SDK",
            f"{python} has no batuta.sdk: jobs of batuta up find it all the same, scripts elsewhere do not",
            f"{python} -m pip install batuta-sdk=={__version__}",
        )
    if done.stdout != __version__:
        return warning(
            "SDK",
            f"{python} has batuta.sdk {done.stdout[:40]}, this is {__version__}",
            f"{python} -m pip install batuta-sdk=={__version__}",
        )
    return ok("SDK", f"{done.stdout} in {python}" + (" (this one)" if python == sys.executable else ""))


def check_state_dir(home: Path) -> Iterator[Finding]:
    """Check owner, permissions, disk space and lock of the state directory."""
    name = show_path(home)
    try:
        facts = home.stat()
    except FileNotFoundError:
        yield note("state directory", f"{name} is not there yet", "batuta up makes it")
        return
    except OSError as trouble:
        yield error("state directory", f"{name}: {trouble.strerror}", "choose another with --home")
        return
    yield _check_owner(home, facts)
    yield from _check_secrets(home)
    yield check_disk_space(home)
    yield _check_lock(home)


def _check_owner(home: Path, facts: os.stat_result) -> Finding:
    name, mode = show_path(home), stat.S_IMODE(facts.st_mode)
    if not stat.S_ISDIR(facts.st_mode):
        return error("state directory", f"{name} is not a directory", "choose another with --home")
    if facts.st_uid != os.geteuid():
        return error("state directory", f"{name} belongs to uid {facts.st_uid}", "choose another with --home")
    if mode & _GROUP_AND_OTHERS:
        return error("state directory", f"{name} is open to others (mode {mode:04o})", f"chmod 700 {name}")
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return error("state directory", f"{name} is not writable", f"chmod 700 {name}")
    return ok("state directory", f"{name}, mode {mode:04o}")


def _check_secrets(home: Path) -> Iterator[Finding]:
    for file in (home / "token", home / "journal.db"):
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
        except OSError:
            continue
        if mode & _GROUP_AND_OTHERS:
            name = show_path(file)
            yield error(file.name, f"{name} can be read by others (mode {mode:04o})", f"chmod 600 {name}")


def _check_lock(home: Path) -> Finding:
    try:
        pid = local_facts.server_pid(home)
    except (ClientError, OSError) as trouble:
        return error("lock", str(trouble), "end the process that holds it")
    recorded = read_server_file(home).get("pid")
    if pid is None and recorded is not None:
        return warning(
            "lock", f"the last server (pid {recorded}) was killed", "batuta up recovers everything from the journal"
        )
    if pid is not None and recorded is not None and recorded != pid:
        return warning("lock", f"held by pid {pid}; server.json names {recorded}", "wait until it has started")
    return ok("lock", "free" if pid is None else f"held by the server (pid {pid})")


def check_ports(home: Path, default: int = DEFAULT_PORT) -> Iterator[Finding]:
    """Check that the server listens at its address; without a server, that the default port is free."""
    url = read_server_file(home).get("url")
    parts = urlsplit(str(url)) if url else None
    if parts is None or not parts.hostname or not parts.port:
        yield _check_port_free(default)
        return
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(parts.hostname, parts.hostname)
    try:
        socket.create_connection((host, parts.port), _CONNECT_TIMEOUT_S).close()
    except OSError as trouble:
        # A server that was killed leaves its address behind.
        worse = warning if local_facts.server_pid(home) is None else error
        yield worse("port", f"no server listens at {url}: {trouble.strerror or trouble}", "batuta up")
        return
    yield ok("port", f"{parts.port} answers")
    if parts.hostname not in _LOOPBACK:
        yield warning(
            "port",
            f"the server listens at {parts.hostname}, and its traffic is not encrypted",
            "only in a network that you trust, or behind a proxy with TLS",
        )


def _check_port_free(port: int) -> Finding:
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind(("127.0.0.1", port))
        except OSError as trouble:
            if trouble.errno != errno.EADDRINUSE:
                return warning("port", f"{port} cannot be had: {trouble.strerror}", "batuta up --port N")
            return note("port", f"{port} is another program's", "batuta up takes a free one; --port N chooses one")
    return ok("port", f"{port} is free")


def check_server(home: Path | None, *, full: bool = False) -> Iterator[Finding]:
    """Check version, clock, nodes and waiting jobs of the server. No server is a note, not an error."""
    from batuta.client.client import Client

    with Client(home=home, timeout_s=10.0) as client:
        try:
            before_s = time.time()
            cluster = client.cluster()
            after_s = time.time()
            yield ok("server", f"answers at {client.where} after {1000 * (after_s - before_s):.0f} ms")
            yield _check_version(cluster)
            yield check_clock(cluster.now_s, before_s, after_s, "the server's")
            yield from _check_nodes(client.nodes())
            yield from _check_stuck_jobs(client.jobs(states=("PENDING", "PREEMPTED")))
            yield from _check_inside(client, cluster, full)
        except NoServerError as trouble:
            yield note("server", str(trouble), "batuta up starts one; $BATUTA_SERVER names one elsewhere")
        except ApiError as trouble:
            token = "see $BATUTA_TOKEN and the file `token` of the state directory"
            fix = token if trouble.status == 401 else "see server.log in its state directory"
            yield error("server", f"refuses: {trouble}", fix)
        except UntrustedServerError as trouble:
            yield error("server", str(trouble), "see $BATUTA_CA_FILE")
        except ClientError as trouble:
            yield error("server", str(trouble), "batuta down, then batuta up")


def _check_version(cluster: Cluster) -> Finding:
    if cluster.version == __version__:
        return ok("version", f"{__version__}, as the server")
    both = f"this is {__version__}, the server is {cluster.version}"
    return warning("version", both, "batuta down --keep-jobs, then batuta up")


def check_clock(now_s: float | None, before_s: float, after_s: float, whose: str) -> Finding:
    """Compare clocks: `now_s` lies between the request and the response where they agree."""
    if now_s is None:
        return note("clock", f"{whose} time is unknown", "start it with this version")
    skew_s = max(before_s - now_s, now_s - after_s, 0.0)
    if skew_s > MAX_SKEW_S:
        return warning("clock", f"{whose} differs by {skew_s:.0f} s", "synchronise both (NTP)")
    return ok("clock", f"as {whose}")


def _check_nodes(nodes: Sequence[Node]) -> Iterator[Finding]:
    if not nodes:
        yield error("nodes", "there are none", "batuta up --nodes N --gpus M")
        return
    out = {state: [n.name for n in nodes if n.state == state] for state in ("lost", "cordoned", "draining")}
    ill = [f"{node.name}:{gpu.index}" for node in nodes for gpu in node.gpus if not gpu.healthy]
    if out["lost"]:
        yield warning("nodes", f"lost: {', '.join(out['lost'])}", "start the server with as many nodes as before")
    for state in ("cordoned", "draining"):
        if out[state]:
            yield warning("nodes", f"{state}: {', '.join(out[state])}", f"batuta nodes uncordon {out[state][0]}")
    if ill:
        yield warning("GPU health", f"{len(ill)} are not healthy: {named(ill, 8)}", "see batuta nodes")
    if not any(out.values()) and not ill:
        yield ok("nodes", f"{len(nodes)} ready")


def _check_stuck_jobs(jobs: Sequence[Job]) -> Iterator[Finding]:
    stuck = [job for job in jobs if job.reason is not None and job.reason.code in NEVER_FITS]
    for job in stuck[:10]:
        assert job.reason is not None
        fix = f"batuta explain {job.id}; batuta resize or cancel it"
        yield warning(f"job {job.id}", f"waits for what cannot happen: {job.reason.sentence}", fix)
    if not stuck:
        yield ok("waiting jobs", f"{len(jobs)}, none that could never run")


def _check_inside(client: Client, cluster: Cluster, full: bool) -> Iterator[Finding]:
    """Return what the server found when it examined itself."""
    try:
        found = client.examine(full=full).findings
    except ApiError as trouble:
        if cluster.trouble:
            yield error("engine", cluster.trouble, "see server.log")
        if trouble.status not in (404, 405):
            raise
        yield note("inside", "an older server does not examine itself", "start it with this version")
        return
    for one in found:
        yield Finding(one.check, Severity(one.severity), one.found, one.fix)
