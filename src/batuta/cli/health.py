"""`batuta health`: the rules about errors of GPUs, and what they would do."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption, option
from batuta.cli.output import DASH, Column, print_json, print_table
from batuta.cli.verbs import CommandGroup
from batuta.spec.problem import InputError

if TYPE_CHECKING:
    from batuta.gpu.health.rules import DryRunResult

app = typer.Typer(
    cls=CommandGroup,
    name="health",
    help="Show the rules about errors of GPUs, and try them on a log.\n\n"
    "Example: batuta health check-rules --log /var/log/kern.log",
    no_args_is_help=True,
    rich_markup_mode=None,
)

RulesOption = Annotated[Path | None, option("An edited copy of the rules; default: Batuta's.", "FILE")]
LogOption = Annotated[str | None, option("A kernel log, or what a job printed; - reads standard input.", "FILE")]


@app.command()
def rules() -> None:
    """Print the rules that come with Batuta, to keep a copy and change it.

    Example: batuta health rules > my-rules.yaml
    """
    from batuta.gpu.health.rules import default_rules_text

    typer.echo(default_rules_text(), nl=False)


@app.command(name="check-rules")
def check_rules(log: LogOption = None, rules: RulesOption = None, output: OutputOption = Output.TABLE) -> None:
    """Check a file of rules, and tell for each line of a log what would be done. Nothing is done.

    Examples:
      batuta health check-rules --rules my-rules.yaml
      batuta health check-rules --log /var/log/kern.log
      dmesg | batuta health check-rules --rules my-rules.yaml --log -
    """
    from batuta.gpu.health.rules import dry_run_rules, read_rules

    found = read_rules(rules)
    if log is None:
        typer.echo(f"{rules or 'the rules of Batuta'}: {len(found.rules)} rules, nothing wrong", err=True)
        tried = []
    else:
        with _opened(log) as lines:
            tried = list(dry_run_rules(found, lines))
    if output is Output.JSON:
        print_json(tried)
    elif log is not None:
        print_table(_TRIED, tried, "no line of this log reports a GPU error")


@contextmanager
def _opened(log: str) -> Iterator[Iterable[str]]:
    if log == "-":
        yield sys.stdin
        return
    try:
        with Path(log).open(encoding="utf-8", errors="replace") as file:
            yield file
    except OSError as error:
        raise InputError.of(f"cannot be read: {error.strerror or error}", file=log) from None


_TRIED: tuple[Column[DryRunResult], ...] = (
    Column("LINE", lambda one: str(one.line), right=True),
    Column("WHAT", lambda one: one.what),
    Column("WHERE", lambda one: one.where or DASH, drop=1),
    Column("MEANS", lambda one: one.means, least=12),
    Column("WOULD BE DONE", lambda one: one.done, least=16),
)
