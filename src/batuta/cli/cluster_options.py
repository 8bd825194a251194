"""Options before the verb that send it to a Kubernetes cluster instead of a server of ours."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from batuta.client.connection import Connection

CONTEXT_VARIABLE = "BATUTA_CONTEXT"
OWN_OPTIONS = frozenset(("install", "operator"))
"""Verbs that say themselves which cluster they mean."""
OF_OPERATOR = frozenset(("eta", "whatif", "replay", "shadow", "report", "dashboard"))
"""Verbs that a cluster's operator answers, as a server does."""
NO_CLUSTER = OF_OPERATOR | frozenset(
    (
        *("up", "down", "token", "completion"),
        *("simulate", "compare", "allocate", "policies", "trace"),
    )
)
"""Verbs that have nothing to do with a cluster."""

ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help=f"A Kubernetes cluster of your kubeconfig; default ${CONTEXT_VARIABLE}.",
        metavar="NAME",
        show_default=False,
    ),
]
KubeconfigOption = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Another kubeconfig.", metavar="FILE", show_default=False),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="A namespace of the cluster.", metavar="NAME", show_default=False),
]
AllNamespacesOption = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Jobs of all its namespaces.")
]

# Behind the verb: of programs that look after a cluster, and mostly run in it.
OwnKubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        help="How to reach the cluster; default $KUBECONFIG, ~/.kube/config, or the pod's own account.",
        metavar="FILE",
        show_default=False,
    ),
]
OwnContextOption = Annotated[
    str | None, typer.Option("--context", help="Which cluster of it.", metavar="NAME", show_default=False)
]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which cluster, and which part of it."""

    context: str | None = None
    kubeconfig: Path | None = None
    namespace: str | None = None
    all_namespaces: bool = False
    is_said: bool = True
    """Said on the command line, and not just by the environment."""

    def connect(self) -> Connection:
        from batuta.bootstrap.kube_client import connect_to_cluster

        return connect_to_cluster(
            self.kubeconfig, self.context, self.namespace, all_namespaces=self.all_namespaces
        )

    @property
    def words(self) -> list[str]:
        """The options as they were given; what the environment says need not be repeated."""
        if not self.is_said:
            return []
        named = {"--kubeconfig": self.kubeconfig, "--context": self.context, "-n": self.namespace}
        return [word for name, value in named.items() if value for word in (name, str(value))]


_chosen: ContextVar[ClusterOptions | None] = ContextVar("cluster", default=None)


def cluster_of(
    context: str | None, kubeconfig: Path | None, namespace: str | None, all_namespaces: bool
) -> ClusterOptions | None:
    """The cluster that is meant; None when it is a server of ours."""
    import os

    from batuta.spec.problem import InputError

    if namespace and all_namespaces:
        raise InputError.of("--namespace and --all-namespaces", fix="one of both")
    usual = os.environ.get(CONTEXT_VARIABLE) or None
    is_said = bool(context or kubeconfig or namespace or all_namespaces)
    if not is_said and usual is None:
        return None
    # A kubeconfig that is named has a current context of its own.
    context = context or (usual if kubeconfig is None else None)
    return ClusterOptions(context, kubeconfig, namespace, all_namespaces, is_said)


def choose_cluster(options: ClusterOptions | None, verb: str | None) -> None:
    """Notes for the verb which cluster it shall talk to."""
    from batuta.spec.problem import InputError

    if options is not None and options.is_said and verb in OWN_OPTIONS | NO_CLUSTER:
        fix = "leave the options before it out"
        if verb in OWN_OPTIONS:
            fix = f"write it behind {verb}"
        elif verb in OF_OPERATOR:
            fix = "ask the cluster's operator: kubectl port-forward, then $BATUTA_SERVER and $BATUTA_TOKEN"
        raise InputError.of(f"batuta {verb} takes no cluster before it", fix=fix)
    _chosen.set(options)


def chosen_cluster() -> ClusterOptions | None:
    return _chosen.get()


def cluster_in(ctx: Any) -> ClusterOptions | None:
    """The same for the Tab key, where no verb runs yet."""
    said = ctx.find_root().params if ctx is not None else {}
    return cluster_of(
        said.get("context"),
        said.get("kubeconfig"),
        said.get("namespace"),
        bool(said.get("all_namespaces")),
    )


def command(*words: str) -> str:
    """`batuta logs 17`, with the options that lead to the same cluster."""
    options = chosen_cluster()
    return " ".join(["batuta", *(options.words if options is not None else ()), *words])
