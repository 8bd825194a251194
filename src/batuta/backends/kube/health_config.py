"""How the operator looks after the health of nodes, as its configuration file says it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from batuta.backends.kube.settings import Settings


class BurnIn(Settings):
    """The pod that proves that a node or GPU works again."""

    image: Annotated[str, StringConstraints(pattern=r"^\S*$", max_length=500)] = Field(
        default="", description="the image of burn-ins; empty means the operator's own"
    )
    command: Annotated[list[str], Field(min_length=1)] = Field(
        default=["python", "-m", "batuta.gpu.health.burn_in", "--gpu", "0"],
        description="what tests the first GPU that it sees, and ends with 0 if that works",
    )
    runtime_class_name: Annotated[str, StringConstraints(pattern=r"^[-a-z0-9.]*$", max_length=253)] = Field(
        default="nvidia", description="the RuntimeClass that brings NVIDIA's library; empty means none"
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=1800, description="a burn-in that takes longer has failed"
    )


class HealthConfig(Settings):
    """Detect, act, prove, return."""

    enabled: bool = Field(
        default=False,
        description="take GPUs and nodes that are ill out of service, and back when they have proved "
        "themselves; the operator may change nodes then",
    )
    rules: str = Field(
        default="",
        description="text of a file of rules, as `batuta health rules` prints it; empty means Batuta's own",
    )
    pool_label: Annotated[str, StringConstraints(pattern=r"^[-A-Za-z0-9_./]*$", max_length=316)] = Field(
        default="",
        description="the node label that tells pools apart, of which only a share is taken out of service; "
        "empty means that nodes with the same GPUs are a pool",
    )
    burn_in: BurnIn = Field(default=BurnIn(), description="the pod that proves that something works again")
