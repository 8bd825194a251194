"""`batuta policies`: which policies there are."""

from __future__ import annotations

import json

import typer

from batuta.cli.options import Output, OutputOption


def policies(output: OutputOption = Output.TABLE) -> None:
    """List the policies, built in and installed.

    Example: batuta policies
    """
    from batuta.bootstrap import policy_summaries

    known = dict(policy_summaries())
    if output is Output.JSON:
        typer.echo(json.dumps([{"name": name, "summary": text} for name, text in known.items()], indent=2))
        return
    width = max(map(len, known))
    for name, text in known.items():
        typer.echo(f"{name:<{width}}  {text}")
