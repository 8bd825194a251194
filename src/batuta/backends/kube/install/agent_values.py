"""The chart's values of the node agent: a DaemonSet of `batuta agent`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from batuta.backends.kube.install.value_types import Amount, OptionalName, Raw, Strings
from batuta.backends.kube.settings import Settings


class AgentResources(Settings):
    """What an agent asks for."""

    requests: dict[str, Amount] = Field(
        default={"cpu": "20m", "memory": "96Mi"}, description="what it is given for sure"
    )
    limits: dict[str, Amount] = Field(default={"memory": "256Mi"}, description="what it never gets more of")


class Agent(Settings):
    """The node agent."""

    enabled: bool = Field(
        default=False,
        description="run an agent on every node with GPUs; it sees the node's processes (hostPID), so the "
        "namespace must allow privileged pods",
    )
    interval_seconds: Annotated[int, Field(ge=1, le=60)] = Field(
        default=1, description="time between looks at the GPUs"
    )
    report_every_seconds: Annotated[int, Field(ge=5, le=60)] = Field(
        default=30, description="time between reports; the binder forgets one after 90 s"
    )
    metrics_port: Annotated[int, Field(ge=1, le=65535)] = Field(
        default=9477, description="port of its metrics and probes"
    )
    dcgm_url: Annotated[str, StringConstraints(pattern=r"^(https?://\S+)?$")] = Field(
        default="",
        description="where DCGM exporter's series are on each node, as in http://$(HOST_IP):9400/metrics",
    )
    kernel_log: Annotated[str, StringConstraints(pattern=r"^(/\S+)?$")] = Field(
        default="",
        description="the node's kernel log, as in /dev/kmsg or /var/log/kern.log, where errors of GPUs are "
        "looked for; empty means none; for /dev/kmsg the agent is privileged",
    )
    state_dir: Annotated[str, StringConstraints(pattern=r"^/\S+$")] = Field(
        default="/var/lib/batuta/agent",
        description="folder of the node that keeps how far the kernel log was read",
    )
    runtime_class_name: OptionalName = Field(
        default="nvidia", description="the RuntimeClass that brings NVIDIA's library; empty means none"
    )
    disk_counters: bool = Field(
        default=False,
        description="see how much jobs read and write, which tells input bottlenecks and checkpoints; "
        "takes the capability SYS_PTRACE",
    )
    node_selector: Strings = Field(
        default={"nvidia.com/gpu.present": "true"}, description="labels of the nodes that have an agent"
    )
    tolerations: list[Raw] = Field(default=[{"operator": "Exists"}], description="tolerations of the agents")
    priority_class_name: OptionalName = Field(default="", description="priority class of the agents")
    resources: AgentResources = Field(default=AgentResources(), description="what an agent asks for")
