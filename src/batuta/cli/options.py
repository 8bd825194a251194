"""Options, arguments and completions that several verbs share, and the connection that they select."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from batuta.client.errors import NoServerError
from batuta.spec.problem import InputError, Problem, collect_problems

if TYPE_CHECKING:
    from batuta.client.client import Client
    from batuta.client.connection import Connection

T = TypeVar("T")


def _job_words(client: Connection, active: bool | None) -> list[tuple[str, str]]:
    jobs = client.jobs(active=active, newest_first=True, limit=200)
    names = [(job.name, f"{job.id} {job.state}") for job in jobs if job.name not in ("", job.id)]
    return [*((job.id, f"{job.name} {job.state}") for job in jobs), *names]


def _completion(words: Callable[[Connection], Iterable[tuple[str, str]]]) -> Callable[..., list[tuple[str, str]]]:
    """Return a function that completes words, with descriptions; with none if no server answers soon.

    No verb runs yet, so the cluster comes from the context of the command line.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        from batuta.client.client import Client

        given = ctx.find_root().params
        try:
            cluster = read_cluster_options(
                given.get("context"), given.get("kubeconfig"), given.get("namespace"), bool(given.get("all_namespaces"))
            )
            with Client(timeout_s=1.0) if cluster is None else cluster.connect() as client:
                return [(word, text) for word, text in words(client) if word.startswith(incomplete)]
        except Exception:
            return []

    return complete


def _complete_policies(incomplete: str) -> list[tuple[str, str]]:
    from batuta.policies.registry import policy_summaries

    return [(name, text) for name, text in policy_summaries() if name.startswith(incomplete)]


COMPLETIONS: dict[str, Callable[..., list[tuple[str, str]]]] = {
    "active jobs": _completion(lambda client: _job_words(client, active=True)),
    "jobs": _completion(lambda client: _job_words(client, active=None)),
    "nodes": _completion(lambda client: [(one.name, one.state) for one in client.nodes()]),
    "queues": _completion(
        lambda client: [(one.name, f"{one.running} running, {one.pending} waiting") for one in client.queues()]
    ),
    "policies": _complete_policies,
}


def option(help: str, metavar: str | None = None, *, names: str = "", complete: str = "", **settings: Any) -> Any:
    """Declare an option with a value. Without `names` it is called like its parameter; see COMPLETIONS."""
    completion = COMPLETIONS.get(complete)
    return typer.Option(*names.split(), help=help, metavar=metavar, autocompletion=completion, **settings)


def flag(names: str, help: str, **settings: Any) -> Any:
    return typer.Option(*names.split(), help=help, **settings)


def argument(metavar: str, help: str, *, complete: str = "") -> Any:
    return typer.Argument(metavar=metavar, help=help, autocompletion=COMPLETIONS.get(complete))


class Output(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, option("table for people, json for programs.", names="--output -o")]

_TIME_FORMATS = "write it like 2026-11-16, '2026-11-16 09:30', 09:30, or 24h for 24 hours ago"
_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")

CONTEXT_VARIABLE = "BATUTA_CONTEXT"
OWN_CLUSTER_OPTIONS = frozenset(("install", "operator"))  # verbs with --kubeconfig and --context of their own
ANSWERED_BY_OPERATOR = frozenset(("eta", "whatif", "replay", "shadow", "report", "dashboard"))
"""Verbs that the operator of a cluster answers over HTTP, as a server does."""
NO_CLUSTER = ANSWERED_BY_OPERATOR | frozenset(
    (
        *("up", "down", "token", "audit", "backup", "restore", "completion"),
        *("simulate", "compare", "allocate", "policies", "trace"),
    )
)
"""Verbs that take no cluster before them."""

ContextOption = Annotated[
    str | None, option(f"A Kubernetes cluster of your kubeconfig; default ${CONTEXT_VARIABLE}.", "NAME")
]
KubeconfigOption = Annotated[Path | None, option("Another kubeconfig.", "FILE")]
NamespaceOption = Annotated[str | None, option("A namespace of the cluster.", "NAME", names="--namespace -n")]
AllNamespacesOption = Annotated[bool, flag("--all-namespaces -A", "Jobs of all its namespaces.")]

# After the verb: for programs that serve a cluster and mostly run in it.
OwnKubeconfigOption = Annotated[
    Path | None,
    option("How to reach the cluster; default $KUBECONFIG, ~/.kube/config, or the pod's own account.", "FILE"),
]
OwnContextOption = Annotated[str | None, option("Which cluster of it.", "NAME")]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which cluster, and which part of it."""

    context: str | None = None
    kubeconfig: Path | None = None
    namespace: str | None = None
    all_namespaces: bool = False
    explicit: bool = True  # whether the command line names it, and not only the environment

    def connect(self) -> Connection:
        from batuta.bootstrap.kube import connect_to_cluster

        return connect_to_cluster(self.kubeconfig, self.context, self.namespace, all_namespaces=self.all_namespaces)

    @property
    def words(self) -> list[str]:
        """Return the options as the user gave them; the environment still sets the others."""
        if not self.explicit:
            return []
        named = {"--kubeconfig": self.kubeconfig, "--context": self.context, "-n": self.namespace}
        return [word for name, value in named.items() if value for word in (name, str(value))]


_selected: ContextVar[ClusterOptions | None] = ContextVar("cluster", default=None)


def read_cluster_options(
    context: str | None, kubeconfig: Path | None, namespace: str | None, all_namespaces: bool
) -> ClusterOptions | None:
    """Return the cluster that the options and the environment name; None for a Batuta server."""
    if namespace and all_namespaces:
        raise InputError.of("--namespace and --all-namespaces", fix="one of both")
    default = os.environ.get(CONTEXT_VARIABLE) or None
    explicit = bool(context or kubeconfig or namespace or all_namespaces)
    if not explicit and default is None:
        return None
    # A kubeconfig that is named has a current context of its own.
    context = context or (default if kubeconfig is None else None)
    return ClusterOptions(context, kubeconfig, namespace, all_namespaces, explicit)


def select_cluster(options: ClusterOptions | None, verb: str | None) -> None:
    """Set the cluster for the verb that follows; refuse it for verbs that take none."""
    if options is not None and options.explicit and verb in OWN_CLUSTER_OPTIONS | NO_CLUSTER:
        fix = "leave the options before it out"
        if verb in OWN_CLUSTER_OPTIONS:
            fix = f"write it behind {verb}"
        elif verb in ANSWERED_BY_OPERATOR:
            fix = "ask the cluster's operator: kubectl port-forward, then $BATUTA_SERVER and $BATUTA_TOKEN"
        raise InputError.of(f"batuta {verb} takes no cluster before it", fix=fix)
    _selected.set(options)


def selected_cluster() -> ClusterOptions | None:
    """Return the cluster that the options before the verb or the environment name."""
    return _selected.get()


def target_cluster(home: Path | None) -> ClusterOptions | None:
    """Return the cluster that the verb talks to; None for a server. --home beats the environment."""
    cluster = selected_cluster()
    if cluster is None or (home is not None and not cluster.explicit):
        return None
    if home is not None:
        raise InputError.of("--home is for a server, and the options before the verb for a cluster")
    return cluster


def command_line(*words: str) -> str:
    """Return a command such as `batuta logs 17`, with the options that select the same cluster."""
    options = selected_cluster()
    return " ".join(["batuta", *(options.words if options is not None else ()), *words])


HomeOption = Annotated[
    Path | None, option("State directory of the server; default $BATUTA_HOME, else ~/.batuta.", "DIR")
]
YesOption = Annotated[bool, flag("--yes -y", "Do not ask.")]


def connect(home: Path | None) -> Connection:
    """Return a connection to the selected cluster, else to a server. It opens on first use."""
    cluster = target_cluster(home)
    return connect_to_server(home) if cluster is None else cluster.connect()


def connect_to_server(home: Path | None) -> Client:
    """Return a client of the server of --home, of $BATUTA_SERVER, or of the default state directory."""
    from batuta.client.client import Client

    return Client(home=home)


JobArgument = Annotated[str, argument("JOB", "Id or name of a job.", complete="active jobs")]
JobsArgument = Annotated[list[str] | None, argument("JOB…", "Ids or names of jobs.", complete="active jobs")]
NodeArgument = Annotated[str, argument("NODE", "Name of a node.", complete="nodes")]


OtlpOption = Annotated[
    str | None, option("Send traces of cycles there over OTLP/HTTP, as in http://127.0.0.1:4318.", "URL")
]


def check_otlp_option(url: str | None, problems: list[Problem]) -> None:
    if url is None:
        return
    from batuta.telemetry.exporter import check_otlp

    with collect_problems(problems):
        check_otlp(url)


def parse_time_s(text: str, option: str, now_s: float) -> float:
    """Return Unix seconds of a date, a date and time, a time of today, Unix seconds, or an age like 24h."""
    from batuta.spec.quantity import parse_duration_s

    text = text.strip()
    if re.fullmatch(r"[0-9]{9,11}(\.[0-9]+)?", text):
        return float(text)
    if clock := _TIME_OF_DAY.fullmatch(text):
        year, month, day, *_ = time.localtime(now_s)
        return time.mktime((year, month, day, int(clock[1]), int(clock[2]), 0, 0, 0, -1))
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        return now_s - parse_duration_s(text.removesuffix(" ago"), option)
    except InputError:
        raise InputError.of(f"{option}: {text!r} is not a moment", fix=_TIME_FORMATS) from None


def ask_server_or_journal(home: Path | None, ask: Callable[[Client], T], offline: Callable[[Path], T]) -> T:
    """Return what a server answers; without one, what its journal says, as it was at the last event.

    Raises NoServerError where the directory has no journal, or where $BATUTA_SERVER names another server.
    """
    from batuta.client.address import SERVER_VARIABLE, find_home, no_server, show_path

    try:
        with connect_to_server(home) as client:
            return ask(client)
    except NoServerError:
        folder = find_home(home)
        if home is None and os.environ.get(SERVER_VARIABLE):
            raise NoServerError(f"{os.environ[SERVER_VARIABLE]} cannot be reached") from None
        if not (folder / "journal.db").is_file():
            raise no_server(folder) from None
    told = "this is by its journal, as it was at the last event"
    typer.echo(f"no server is running for {show_path(folder)}: {told}", err=True)
    return offline(folder)
