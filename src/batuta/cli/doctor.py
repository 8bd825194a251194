"""`batuta doctor`: is everything all right, and if not, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption

if TYPE_CHECKING:
    from batuta.cli.checks.finding import Finding

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def doctor(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Check machine, state directory, server and cluster.

    It says what to do about what it finds. The exit code is 1 when something is an error.

    Examples:

      batuta doctor

      batuta doctor -o json
    """
    from batuta.cli.checks.finding import Severity
    from batuta.cli.checks.machine import check_machine
    from batuta.cli.checks.server import check_server
    from batuta.cli.checks.state_dir import check_state_dir
    from batuta.cli.terminal import print_json, spinner
    from batuta.client.address import find_home

    folder = find_home(home)
    with spinner("looking around"):
        findings = [*check_machine(folder), *check_state_dir(folder), *check_server(home)]
    if output is Output.JSON:
        print_json(findings)
    else:
        _print(findings)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


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
