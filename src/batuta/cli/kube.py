"""`batuta install`, `operator` and `device-plugin`: install and run Batuta on Kubernetes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import OtlpOption, OwnContextOption, OwnKubeconfigOption, flag, option
from batuta.cli.output import print_notes
from batuta.spec.problem import Problem, refuse
from batuta.telemetry import LogFormat

if TYPE_CHECKING:
    from batuta.bootstrap.kube import Installation

ManifestFormat = StrEnum("ManifestFormat", {"YAML": "yaml", "JSON": "json"})


def install(
    apply: Annotated[bool, flag("--apply", "Apply it with kubectl instead of printing it.")] = False,
    namespace: Annotated[str, option("Where the operator runs.", "NAME", names="--namespace -n")] = "batuta-system",
    create_namespace: Annotated[
        bool, flag("--create-namespace/--no-create-namespace", "Make that namespace too.")
    ] = True,
    release: Annotated[str, option("What names of objects begin with.", "NAME")] = "batuta",
    values: Annotated[
        list[Path] | None, option("A file of values, as for Helm; may be repeated.", "FILE", names="--values -f")
    ] = None,
    settings: Annotated[
        list[str] | None, option("One value, as in config.policy=afs-l; may be repeated.", "K=V", names="--set")
    ] = None,
    crds_only: Annotated[bool, flag("--crds-only", "Only the definition of UnifiedJob.")] = False,
    uninstall: Annotated[bool, flag("--uninstall", "Print the commands that take it all away again.")] = False,
    kubeconfig: Annotated[str, option("With --apply: how to reach the cluster.", "FILE")] = "",
    context: Annotated[str, option("With --apply: which cluster of it.", "NAME")] = "",
    output: Annotated[
        ManifestFormat, option("yaml for kubectl and people, or json.", names="--output -o")
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
    from batuta.bootstrap.kube import InstallOptions, check_extra, plan_install

    check_extra()
    _check_install_options(apply=apply, uninstall=uninstall, crds_only=crds_only, cluster=kubeconfig or context)
    files, chosen = tuple(values or ()), tuple(settings or ())
    plan = plan_install(InstallOptions(namespace, release, create_namespace, files, chosen))
    print_notes(plan.notes)
    if uninstall:
        from batuta.backends.kube.install.manifests import as_removal

        typer.echo(as_removal(plan.objects, plan.definitions, namespace, own_namespace=create_namespace), nl=False)
    elif apply:
        _apply_manifests(plan, crds_only=crds_only, kubeconfig=kubeconfig, context=context)
    else:
        _print_manifests(plan, output, crds_only=crds_only)


def _check_install_options(*, apply: bool, uninstall: bool, crds_only: bool, cluster: str) -> None:
    problems = []
    if uninstall and apply:
        problems.append(Problem("--uninstall only prints", fix="batuta install --uninstall | sh"))
    if uninstall and crds_only:
        problems.append(Problem("--uninstall and --crds-only do not go together"))
    if cluster and not apply:
        problems.append(Problem("--kubeconfig and --context are for --apply"))
    refuse(problems)


def _print_manifests(plan: Installation, output: ManifestFormat, *, crds_only: bool) -> None:
    from batuta.backends.kube.install.manifests import as_json, as_yaml

    others = () if crds_only else (*plan.namespace, *plan.objects)
    show = as_json if output is ManifestFormat.JSON else as_yaml
    typer.echo(show([*plan.definitions, *others]), nl=False)


def _apply_manifests(plan: Installation, *, crds_only: bool, kubeconfig: str, context: str) -> None:
    from batuta.backends.kube.install.manifests import Kubectl, KubectlFailed

    kubectl = Kubectl.find(kubeconfig, context)
    try:
        kubectl.apply(plan.definitions, () if crds_only else (*plan.namespace, *plan.objects))
    except KubectlFailed as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def operator(
    config: Annotated[Path | None, option("The configuration; without it, the defaults.", "FILE")] = None,
    kubeconfig: OwnKubeconfigOption = None,
    context: OwnContextOption = None,
    namespace: Annotated[
        str, option("Where its Lease is.", "NAME", names="--namespace -n", envvar="POD_NAMESPACE")
    ] = "batuta-system",
    identity: Annotated[str, option("Its name in the Lease; default host and pid.", "NAME", envvar="POD_NAME")] = "",
    state_dir: Annotated[Path | None, option("Where the journal is; default as configured.", "DIR")] = None,
    port: Annotated[int | None, option("Of the API, the metrics and the probes.", "N")] = None,
    leader_election: Annotated[
        bool, flag("--leader-election/--no-leader-election", "Wait until no other operator leads.")
    ] = True,
    otlp: OtlpOption = None,
    log_format: Annotated[LogFormat | None, option("How its log looks; default as configured, else json.")] = None,
) -> None:
    """Schedule a Kubernetes cluster until told to end.

    Examples:
      batuta operator --kubeconfig ~/.kube/config --state-dir ./state
      batuta operator --config /etc/batuta/config.yaml
    """
    from batuta.bootstrap.kube import OperatorFlags, operate

    raise typer.Exit(
        operate(
            OperatorFlags(
                config, kubeconfig, context, namespace, identity, state_dir, port, leader_election, otlp, log_format
            )
        )
    )


ModeChoice = StrEnum("ModeChoice", {"AUTO": "auto", "DMEM": "dmem", "MPS": "mps", "PRELOAD": "preload"})


def device_plugin(
    node: Annotated[str, option("The name of this node.", "NAME", envvar="NODE_NAME")] = "",
    mode: Annotated[
        ModeChoice,
        option(
            "Who holds containers to their shares: the kernel and MPS, MPS, or a library; auto: "
            "the strictest that the node can do."
        ),
    ] = ModeChoice.AUTO,
    memory: Annotated[int, option("Percent of each GPU's memory that is given out.", "N")] = 100,
    compute: Annotated[int, option("Percent of each GPU's compute that is given out.", "N")] = 100,
    kubelet_dir: Annotated[Path, option("Where the kubelet expects plugins.", "DIR")] = Path(
        "/var/lib/kubelet/device-plugins"
    ),
    state_dir: Annotated[Path, option("Where limits and accounts of containers are kept, on the node.", "DIR")] = Path(
        "/var/lib/batuta/share"
    ),
    library: Annotated[Path | None, option("The share library; default: compiled here.", "FILE")] = None,
    vgpu: Annotated[Path | None, option("Give containers the virtual GPUs of this file.", "FILE")] = None,
    pass_device_files: Annotated[
        bool, flag("--pass-device-files", "Give containers /dev/nvidia*; for nodes without NVIDIA's runtime.")
    ] = False,
    kubeconfig: OwnKubeconfigOption = None,
    context: OwnContextOption = None,
) -> None:
    """Offer shares of this node's GPUs to its kubelet.

    Resources are batuta.dev/gpu-memory, in units of 256 MiB, and batuta.dev/gpu-compute, in percent.

    Example: batuta device-plugin --node "$(hostname)" --mode preload
    """
    from batuta.bootstrap.kube import check_extra

    check_extra()
    from batuta.bootstrap.device_plugin import DevicePluginOptions, serve_devices

    raise typer.Exit(
        serve_devices(
            DevicePluginOptions(
                node=node,
                mode=mode.value,
                kubeconfig=kubeconfig,
                context=context,
                kubelet_folder=kubelet_dir,
                state=state_dir,
                library=library,
                vgpu=vgpu,
                pass_device_files=pass_device_files,
                memory_percent=memory,
                compute_percent=compute,
            )
        )
    )
