"""The way from a verb to a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from batuta.bootstrap.kube import check_extra

if TYPE_CHECKING:
    from batuta.client.connection import Connection


def connect_to_cluster(
    kubeconfig: Path | None, context: str | None, namespace: str | None, *, all_namespaces: bool
) -> Connection:
    """The cluster of a kubeconfig. Nothing is opened yet."""
    check_extra()
    from batuta.bootstrap import version
    from batuta.client.kube.client import KubeClient

    return KubeClient(kubeconfig, context, namespace, all_namespaces=all_namespaces, version=version())
