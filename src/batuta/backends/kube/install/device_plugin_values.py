"""The chart's values of the device plugin: a DaemonSet of `batuta device-plugin`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from batuta.backends.kube.install.value_types import Amount, OptionalName, Raw, Strings
from batuta.backends.kube.settings import Settings


class ShareMode(StrEnum):
    """Who holds containers to their shares of a GPU."""

    AUTO = "auto"
    DMEM = "dmem"
    MPS = "mps"
    PRELOAD = "preload"


class PluginResources(Settings):
    """What the plugin asks for on each node."""

    requests: dict[str, Amount] = Field(
        default={"cpu": "10m", "memory": "64Mi"}, description="what it is given for sure"
    )
    limits: dict[str, Amount] = Field(default={"memory": "256Mi"}, description="what it never gets more of")


class DevicePlugin(Settings):
    """Shares of GPUs on nodes."""

    enabled: bool = Field(
        default=False,
        description="run the device plugin; it needs root, so the namespace must allow privileged pods",
    )
    mode: ShareMode = Field(
        default=ShareMode.PRELOAD,
        strict=False,
        description="who holds containers to their shares: preload (a library), mps, dmem (the kernel and "
        "MPS v3) or auto; mps and dmem run privileged",
    )
    memory_percent: Annotated[int, Field(ge=100, le=1000)] = Field(
        default=100, description="how much of each GPU's memory is given out; beyond 100 is over-allocation"
    )
    compute_percent: Annotated[int, Field(ge=100, le=1000)] = Field(
        default=100, description="the same for compute"
    )
    library: str = Field(
        default="/usr/local/lib/batuta/libbatuta-share.so",
        description="the share library in the image; empty compiles it, which takes a compiler there",
    )
    pass_device_files: bool = Field(
        default=False, description="give containers /dev/nvidia*, where NVIDIA's container runtime does not"
    )
    runtime_class_name: OptionalName = Field(
        default="", description="runtime class with which its pods see the GPUs, as in nvidia"
    )
    node_selector: Strings = Field(
        default={"batuta.dev/gpu-sharing": "true"}, description="labels of the nodes that share their GPUs"
    )
    tolerations: list[Raw] = Field(
        default=[{"operator": "Exists"}], description="tolerations of its pods: by default any taint"
    )
    resources: PluginResources = Field(
        default=PluginResources(), description="what each of its pods asks for"
    )
