"""`batuta`: registers the verbs and turns bad input into clear errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from batuta import __version__
from batuta.cli import allocate, compare, policies, simulate, trace
from batuta.spec.problem import InputError

_SHOWN = 100
"""Problems that are printed; of a broken file with a million lines nobody reads more."""

app = typer.Typer(
    name="batuta",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A GPU cluster scheduler for elastic deep-learning training.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(simulate.simulate)
app.command()(compare.compare)
app.command()(allocate.allocate)
app.command(name="policies")(policies.policies)
app.add_typer(trace.app, name="trace")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batuta {__version__}")
        raise typer.Exit


@app.callback()
def batuta(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A GPU cluster scheduler for elastic deep-learning training.

    Try: batuta compare --workload sample
    """


def run() -> None:
    """The entry point: exit code 2 for bad input with all problems on standard error, 130 after Ctrl-C."""
    # Matrices are small here: threads of BLAS would only wait for each other. NumPy is not loaded yet.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except InputError as error:
        for problem in error.problems[:_SHOWN]:
            typer.echo(f"error: {problem}", err=True)
        if len(error.problems) > _SHOWN:
            typer.echo(f"error: … and {len(error.problems) - _SHOWN} more", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
