"""`batuta install`: what a Kubernetes cluster needs to run Batuta, printed or applied."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from batuta.bootstrap.install import Installation


class ManifestFormat(StrEnum):
    """How manifests are printed."""

    YAML = "yaml"
    JSON = "json"


def install(
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply it with kubectl instead of printing it.")
    ] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where the operator runs.", metavar="NAME")
    ] = "batuta-system",
    create_namespace: Annotated[
        bool, typer.Option("--create-namespace/--no-create-namespace", help="Make that namespace too.")
    ] = True,
    release: Annotated[
        str, typer.Option("--release", help="What names of objects begin with.", metavar="NAME")
    ] = "batuta",
    values: Annotated[
        list[Path] | None,
        typer.Option(
            "--values", "-f", help="A file of values, as for Helm; may be repeated.", metavar="FILE"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="One value, as in config.policy=afs-l; may be repeated.", metavar="K=V"),
    ] = None,
    crds_only: Annotated[
        bool, typer.Option("--crds-only", help="Only the definition of UnifiedJob.")
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Print the commands that take it all away again.")
    ] = False,
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", help="With --apply: how to reach the cluster.", metavar="FILE")
    ] = "",
    context: Annotated[
        str, typer.Option("--context", help="With --apply: which cluster of it.", metavar="NAME")
    ] = "",
    output: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="yaml for kubectl and people, or json.")
    ] = ManifestFormat.YAML,
) -> None:
    """Print or apply what a Kubernetes cluster needs.

    The same objects as the Helm chart makes of the same values, without Helm.

    Examples:

      batuta install | kubectl apply --server-side -f -

      batuta install --apply --set config.policy=afs-l --set replicas=3

      batuta install --crds-only

      batuta install --uninstall | sh
    """
    from batuta.bootstrap.install import InstallOptions, plan_install
    from batuta.cli.terminal import say

    _check(apply=apply, uninstall=uninstall, crds_only=crds_only, cluster=kubeconfig or context)
    options = InstallOptions(
        namespace=namespace,
        release=release,
        create_namespace=create_namespace,
        files=tuple(values or ()),
        settings=tuple(settings or ()),
    )
    plan = plan_install(options)
    for note in plan.notes:
        say(f"note: {note}")
    if uninstall:
        from batuta.backends.kube.install.output import as_removal

        typer.echo(
            as_removal(plan.objects, plan.definitions, namespace, own_namespace=create_namespace), nl=False
        )
    elif apply:
        _apply(plan, crds_only=crds_only, kubeconfig=kubeconfig, context=context)
    else:
        _print(plan, output, crds_only=crds_only)


def _check(*, apply: bool, uninstall: bool, crds_only: bool, cluster: str) -> None:
    from batuta.spec.problem import InputError, Problem

    problems = []
    if uninstall and apply:
        problems.append(Problem("--uninstall only prints", fix="batuta install --uninstall | sh"))
    if uninstall and crds_only:
        problems.append(Problem("--uninstall and --crds-only do not go together"))
    if cluster and not apply:
        problems.append(Problem("--kubeconfig and --context are for --apply"))
    if problems:
        raise InputError(problems)


def _print(plan: Installation, output: ManifestFormat, *, crds_only: bool) -> None:
    from batuta.backends.kube.install.output import as_json, as_yaml

    others = () if crds_only else (*plan.namespace, *plan.objects)
    show = as_json if output is ManifestFormat.JSON else as_yaml
    typer.echo(show([*plan.definitions, *others]), nl=False)


def _apply(plan: Installation, *, crds_only: bool, kubeconfig: str, context: str) -> None:
    from batuta.backends.kube.install.kubectl import Kubectl, KubectlFailed

    kubectl = Kubectl.find(kubeconfig, context)
    try:
        kubectl.apply(plan.definitions, () if crds_only else (*plan.namespace, *plan.objects))
    except KubectlFailed as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
