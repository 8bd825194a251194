"""`batuta`: the options before the verb, and bad input turned into clear errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from batuta import __version__
from batuta.cli.cluster_options import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    choose_cluster,
    cluster_of,
)
from batuta.cli.completion import VARIABLE as COMPLETION_VARIABLE
from batuta.cli.sections import Sections
from batuta.client.errors import ApiError, ClientError
from batuta.spec.problem import InputError, Problem

_SHOWN = 100
"""Problems that are printed; of a broken file with a million lines nobody reads more."""
_BAD_INPUT = (400, 413, 422)

app = typer.Typer(
    name="batuta",
    cls=Sections,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # The verb `completion` says what it does; two options more would only make the help longer.
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batuta {__version__}")
        raise typer.Exit


@app.callback()
def batuta(
    ctx: typer.Context,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A GPU cluster scheduler for elastic deep-learning training.

    To begin: batuta up --virtual -d, then batuta launch -- echo hello

    On a Kubernetes cluster: batuta --context NAME queue

    Without a server: batuta compare --workload sample
    """
    choose_cluster(cluster_of(context, kubeconfig, namespace, all_namespaces), ctx.invoked_subcommand)


def run() -> None:
    """The entry point. Exit codes: 2 for bad input with all problems on standard error, 1 for what a server
    refuses or that there is none, 130 after Ctrl-C.
    """
    # Matrices are small here: threads of BLAS would only wait for each other. NumPy is not loaded yet.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        app(prog_name="batuta")
    except InputError as error:
        _complain(error.problems)
        sys.exit(2)
    except ApiError as error:
        _complain(error.problems or [Problem(str(error))])
        sys.exit(2 if error.status in _BAD_INPUT else 1)
    except ClientError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)


def _complain(problems: tuple[Problem, ...] | list[Problem]) -> None:
    for problem in problems[:_SHOWN]:
        typer.echo(f"error: {problem}", err=True)
    if len(problems) > _SHOWN:
        typer.echo(f"error: … and {len(problems) - _SHOWN} more", err=True)
