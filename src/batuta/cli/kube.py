"""`batuta install`, `operator` and `device-plugin`: install and run Batuta on Kubernetes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import OtlpOption, OwnContextOption, OwnKubeconfigOption
from batuta.cli.output import print_notes
from batuta.spec.problem import InputError, Problem
from batuta.telemetry import LogFormat

if TYPE_CHECKING:
    from batuta.bootstrap.kube import Installation


class ManifestFormat(StrEnum):
    """How manifests are printed."""

    YAML = "yaml"
    JSON = "json"


def install(
    apply: Annotated[bool, typer.Option("--apply", help="Apply it with kubectl instead of printing it.")] = False,
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
        typer.Option("--values", "-f", help="A file of values, as for Helm; may be repeated.", metavar="FILE"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="One value, as in config.policy=afs-l; may be repeated.", metavar="K=V"),
    ] = None,
    crds_only: Annotated[bool, typer.Option("--crds-only", help="Only the definition of UnifiedJob.")] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Print the commands that take it all away again.")
    ] = False,
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", help="With --apply: how to reach the cluster.", metavar="FILE")
    ] = "",
    context: Annotated[str, typer.Option("--context", help="With --apply: which cluster of it.", metavar="NAME")] = "",
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
    from batuta.bootstrap.kube import check_extra, plan_install

    check_extra()
    _check_install_options(apply=apply, uninstall=uninstall, crds_only=crds_only, cluster=kubeconfig or context)
    plan = plan_install(namespace, release, values or (), settings or (), create_namespace=create_namespace)
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
    if problems:
        raise InputError(problems)


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
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The configuration; without it, the defaults.", metavar="FILE"),
    ] = None,
    kubeconfig: OwnKubeconfigOption = None,
    context: OwnContextOption = None,
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", help="Where its Lease is.", metavar="NAME", envvar="POD_NAMESPACE"),
    ] = "batuta-system",
    identity: Annotated[
        str,
        typer.Option(
            "--identity",
            help="Its name in the Lease; default host and pid.",
            envvar="POD_NAME",
            metavar="NAME",
        ),
    ] = "",
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Where the journal is; default as configured.", metavar="DIR"),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Of the API, the metrics and the probes.", metavar="N")
    ] = None,
    leader_election: Annotated[
        bool,
        typer.Option("--leader-election/--no-leader-election", help="Wait until no other operator leads."),
    ] = True,
    otlp: OtlpOption = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="How its log looks; default as configured, else json."),
    ] = None,
) -> None:
    """Schedule a Kubernetes cluster until told to end.

    Examples:

      batuta operator --kubeconfig ~/.kube/config --state-dir ./state

      batuta operator --config /etc/batuta/config.yaml
    """
    from batuta.bootstrap.kube import OperatorOptions, operate

    options = OperatorOptions(kubeconfig, context, namespace, identity, leader_election, state_dir)
    raise typer.Exit(operate(options, config, port, otlp, log_format))


class ModeChoice(StrEnum):
    """How shares are held."""

    AUTO = "auto"
    DMEM = "dmem"
    MPS = "mps"
    PRELOAD = "preload"


def device_plugin(
    node: Annotated[
        str, typer.Option("--node", help="The name of this node.", metavar="NAME", envvar="NODE_NAME")
    ] = "",
    mode: Annotated[
        ModeChoice,
        typer.Option(
            "--mode",
            help="Who holds containers to their shares: the kernel and MPS, MPS, or a library; auto: "
            "the strictest that the node can do.",
        ),
    ] = ModeChoice.AUTO,
    memory: Annotated[
        int, typer.Option("--memory", help="Percent of each GPU's memory that is given out.", metavar="N")
    ] = 100,
    compute: Annotated[
        int, typer.Option("--compute", help="Percent of each GPU's compute that is given out.", metavar="N")
    ] = 100,
    kubelet_dir: Annotated[
        Path, typer.Option("--kubelet-dir", help="Where the kubelet expects plugins.", metavar="DIR")
    ] = Path("/var/lib/kubelet/device-plugins"),
    state_dir: Annotated[
        Path,
        typer.Option(
            "--state-dir",
            help="Where limits and accounts of containers are kept, on the node.",
            metavar="DIR",
        ),
    ] = Path("/var/lib/batuta/share"),
    library: Annotated[
        Path | None,
        typer.Option("--library", help="The share library; default: compiled here.", metavar="FILE"),
    ] = None,
    vgpu: Annotated[
        Path | None,
        typer.Option("--vgpu", help="Give containers the virtual GPUs of this file.", metavar="FILE"),
    ] = None,
    pass_device_files: Annotated[
        bool,
        typer.Option("--pass-device-files", help="Give containers /dev/nvidia*; for nodes without NVIDIA's runtime."),
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
