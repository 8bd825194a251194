"""`batuta device-plugin`: shares of this node's GPUs for the kubelet."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from batuta.cli.cluster_options import OwnContextOption, OwnKubeconfigOption


class ModeChoice(StrEnum):
    """How shares are held."""

    AUTO = "auto"
    DMEM = "dmem"
    MPS = "mps"
    PRELOAD = "preload"


def device_plugin(
    node: Annotated[
        str,
        typer.Option("--node", help="The name of this node.", metavar="NAME", envvar="NODE_NAME"),
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
        int,
        typer.Option("--memory", help="Percent of each GPU's memory that is given out.", metavar="N"),
    ] = 100,
    compute: Annotated[
        int,
        typer.Option("--compute", help="Percent of each GPU's compute that is given out.", metavar="N"),
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
        typer.Option(
            "--pass-device-files", help="Give containers /dev/nvidia*; for nodes without NVIDIA's runtime."
        ),
    ] = False,
    kubeconfig: OwnKubeconfigOption = None,
    context: OwnContextOption = None,
) -> None:
    """Offer shares of this node's GPUs to its kubelet.

    Resources are batuta.dev/gpu-memory, in units of 256 MiB, and batuta.dev/gpu-compute, in percent.

    Example: batuta device-plugin --node "$(hostname)" --mode preload
    """
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
