"""The entry point of `batuta`: options before the verb, errors and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from batuta import __version__
from batuta.cli.completion import VARIABLE as COMPLETION_VARIABLE
from batuta.cli.options import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    flag,
    read_cluster_options,
    select_cluster,
)
from batuta.cli.verbs import RootGroup
from batuta.client.errors import ApiError, ClientError, UnknownJobError
from batuta.spec.problem import InputError, Problem

_SHOWN = 100  # problems that are printed of one input
_BAD_INPUT = (400, 413, 422)

app = typer.Typer(
    name="batuta",
    cls=RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # The verb `completion` replaces the two options of Typer.
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
    version: Annotated[bool, flag("--version", "Print the version.", callback=_show_version, is_eager=True)] = False,
) -> None:
    """A GPU cluster scheduler for elastic deep-learning training.

    To begin: batuta up --virtual -d, then batuta launch -- echo hello

    On a Kubernetes cluster: batuta --context NAME queue

    Without a server: batuta compare --workload sample
    """
    select_cluster(read_cluster_options(context, kubeconfig, namespace, all_namespaces), ctx.invoked_subcommand)


def run() -> None:
    """Run the verb. Exit codes: 2 for bad input with all problems on standard error, 1 where a server refuses
    or there is none, 102 for an unknown job, 130 after Ctrl-C.
    """
    # Matrices are small: threads of BLAS would only wait for each other. Set before NumPy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        app(prog_name="batuta")
    except InputError as error:
        _print_problems(error.problems)
        sys.exit(2)
    except ApiError as error:
        _print_problems(error.problems or [Problem(str(error))])
        sys.exit(2 if error.status in _BAD_INPUT else 1)
    except UnknownJobError as error:
        from batuta.cli.job_view import NOT_FOUND

        _print_problems([Problem(line) for line in str(error).splitlines()])
        sys.exit(NOT_FOUND)
    except ClientError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)


def _print_problems(problems: tuple[Problem, ...] | list[Problem]) -> None:
    for problem in problems[:_SHOWN]:
        typer.echo(f"error: {problem}", err=True)
    if len(problems) > _SHOWN:
        typer.echo(f"error: … and {len(problems) - _SHOWN} more", err=True)
