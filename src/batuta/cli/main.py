"""`batuta`: registers the verbs and turns bad input into clear errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from batuta import __version__
from batuta.cli import (
    allocate,
    change,
    compare,
    completion,
    doctor,
    events,
    explain,
    install,
    launch,
    logs,
    nodes,
    operator,
    policies,
    policy,
    queue,
    queues,
    simulate,
    status,
    token,
    top,
    trace,
    up,
)
from batuta.cli.cluster_options import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    choose_cluster,
    cluster_of,
)
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

JOBS, CLUSTER, SERVER = "Jobs", "Cluster", "Server"
RESEARCH, VODA = "Simulation and research", "Voda's names"

app.command(cls=launch.LaunchCommand, rich_help_panel=JOBS)(launch.launch)
app.command(rich_help_panel=JOBS)(queue.queue)
app.command(rich_help_panel=JOBS)(status.status)
app.command(rich_help_panel=JOBS)(logs.logs)
app.command(rich_help_panel=JOBS)(explain.explain)
app.command(rich_help_panel=JOBS)(explain.result)
app.command(rich_help_panel=JOBS)(change.cancel)
app.command(rich_help_panel=JOBS)(change.stop)
app.command(rich_help_panel=JOBS)(change.start)
app.command(rich_help_panel=JOBS)(change.resize)
app.command(rich_help_panel=JOBS)(queue.history)
app.command(rich_help_panel=CLUSTER)(top.top)
app.add_typer(nodes.app, rich_help_panel=CLUSTER)
app.command(rich_help_panel=CLUSTER)(nodes.gpus)
app.add_typer(queues.app, rich_help_panel=CLUSTER)
app.add_typer(policy.app, rich_help_panel=CLUSTER)
app.command(rich_help_panel=CLUSTER)(events.events)
app.command(rich_help_panel=SERVER)(up.up)
app.command(rich_help_panel=SERVER)(up.down)
app.command(rich_help_panel=SERVER)(install.install)
app.command(rich_help_panel=SERVER)(operator.operator)
app.command(rich_help_panel=SERVER)(doctor.doctor)
app.command(rich_help_panel=SERVER)(token.dashboard)
app.add_typer(token.app, rich_help_panel=SERVER)
app.add_typer(completion.app, rich_help_panel=SERVER)
app.command(rich_help_panel=RESEARCH)(simulate.simulate)
app.command(rich_help_panel=RESEARCH)(compare.compare)
app.command(rich_help_panel=RESEARCH)(allocate.allocate)
app.command(name="policies", rich_help_panel=RESEARCH)(policies.policies)
app.add_typer(trace.app, name="trace", rich_help_panel=RESEARCH)
app.command(rich_help_panel=VODA)(launch.create)
app.add_typer(queue.get, rich_help_panel=VODA)
app.command(rich_help_panel=VODA)(change.delete)


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
    if completion.VARIABLE in os.environ:
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
