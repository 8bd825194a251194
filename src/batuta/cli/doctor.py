"""`batuta doctor`: is everything all right, and if not, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.cluster_options import chosen_cluster
from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption

if TYPE_CHECKING:
    from batuta.cli.checks.finding import Finding

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def doctor(
    output: OutputOption = Output.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Look through a large journal for damage, too.")
    ] = False,
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
    from batuta.cli.checks.finding import Severity
    from batuta.cli.terminal import print_json, spinner

    with spinner("looking around"):
        findings = list(_look(home, full))
    if as_json or output is Output.JSON:
        print_json(findings)
    else:
        _print(findings)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


def _look(home: Path | None, full: bool) -> Iterator[Finding]:
    from batuta.spec.problem import InputError

    cluster = chosen_cluster()
    if cluster is None or (home is not None and not cluster.is_said):
        yield from _look_here(home, full)
        return
    if home is not None:
        raise InputError.of("--home is for a server, and the options before the verb for a cluster")
    from batuta.bootstrap.doctor import check_cluster

    yield from check_cluster(cluster.kubeconfig, cluster.context, cluster.namespace)


def _look_here(home: Path | None, full: bool) -> Iterator[Finding]:
    from batuta.cli.checks.job_python import check_sdk
    from batuta.cli.checks.machine import check_machine
    from batuta.cli.checks.ports import check_ports
    from batuta.cli.checks.server import check_server
    from batuta.cli.checks.state_dir import check_state_dir
    from batuta.client.address import find_home

    folder = find_home(home)
    yield from check_machine(folder)
    yield check_sdk()
    yield from check_state_dir(folder)
    yield from check_ports(folder)
    told = list(check_server(home, full=full))
    yield from told
    if not any(one.check == "journal" for one in told):
        # Nobody is there who would have looked at it.
        from batuta.store.journal_checkup import check_journal

        yield from check_journal(folder / "journal.db", full=full)


def _print(findings: Sequence[Finding]) -> None:
    """Whole sentences: a fix that is cut is none."""
    from rich.table import Table
    from rich.text import Text

    from batuta.cli.terminal import console, show

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("CHECK", no_wrap=True)
    table.add_column("RESULT", no_wrap=True)
    table.add_column("FOUND", overflow="fold")
    for finding in findings:
        found = Text(finding.found)
        if finding.fix:
            found.append(f"\n→ {finding.fix}", style="italic")
        severity = finding.severity.value
        table.add_row(Text(finding.check), Text(severity, style=_STYLES[severity]), found)
    show(table)
    counts = {name: sum(1 for one in findings if one.severity == name) for name in ("error", "warning")}
    said = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items() if count)
    console().print(said or "all is well", style="bold")
