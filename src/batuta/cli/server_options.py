"""Options of the verbs that talk to a server, and the way to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.cluster_options import chosen_cluster, cluster_in

if TYPE_CHECKING:
    from batuta.client.answers import Node
    from batuta.client.client import Client
    from batuta.client.connection import Connection

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="State directory of the server; default $BATUTA_HOME, else ~/.batuta.",
        metavar="DIR",
        show_default=False,
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def connect(home: Path | None) -> Connection:
    """The cluster that was named before the verb, else a server of ours. Nothing is opened yet."""
    from batuta.spec.problem import InputError

    cluster = chosen_cluster()
    if cluster is None or (home is not None and not cluster.is_said):
        return connect_to_server(home)
    if home is not None:
        raise InputError.of("--home is for a server, and the options before the verb for a cluster")
    return cluster.connect()


def connect_to_server(home: Path | None) -> Client:
    """The server of --home, of $BATUTA_SERVER, or of the state directory."""
    from batuta.client.client import Client

    return Client(home=home)


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """For the shell: ids and names of jobs that are not over. A server that is not there offers nothing."""
    try:
        with _quickly(ctx) as client:
            jobs = client.jobs(active=True, newest_first=True, limit=200)
    except Exception:
        return []
    offered = [(job.id, f"{job.name} {job.state}") for job in jobs]
    offered += [(job.name, f"{job.id} {job.state}") for job in jobs if job.name not in ("", job.id)]
    return [(word, text) for word, text in offered if word.startswith(incomplete)]


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The same for nodes."""
    try:
        with _quickly(ctx) as client:
            nodes: tuple[Node, ...] = client.nodes()
    except Exception:
        return []
    return [(node.name, node.state) for node in nodes if node.name.startswith(incomplete)]


def _quickly(ctx: typer.Context) -> Connection:
    """Whoever pressed the Tab key does not wait long."""
    from batuta.client.client import Client

    cluster = cluster_in(ctx)
    return Client(timeout_s=1.0) if cluster is None else cluster.connect()


JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Id or name of a job.", autocompletion=complete_jobs)
]
JobsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB…", help="Ids or names of jobs.", autocompletion=complete_jobs),
]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of a node.", autocompletion=complete_nodes)
]
