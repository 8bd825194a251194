"""What clients send, as the OpenAPI document has it, and which names they may use in paths."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from batuta.spec.task_elastic import MOST_NODES
from batuta.spec.task_priority import HIGHEST_PRIORITY, LOWEST_PRIORITY
from batuta.store.records import Role

JOB_ID = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._:-]{0,270})?$"
"""A number, or what a cluster calls it: its namespace and name, with its kind where it is no UnifiedJob."""
NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$"
USER = r"^[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}$"
POLICY = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
GPU_TYPE = r"^(\*|[A-Za-z0-9][A-Za-z0-9._ -]{0,63})$"
MOST_GPUS = 10_000_000
Count = Annotated[int, Field(ge=1, le=MOST_NODES)]


class Asked(BaseModel):
    """What a client sends: a key that is not known is its mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)


class AskedTrial(Asked):
    """How a task is to be tried out, over what its file says."""

    sizes: list[Annotated[int, Field(ge=1)]] | None = None
    budget_s: Annotated[float, Field(strict=False, allow_inf_nan=False)] | None = None
    each_s: Annotated[float, Field(strict=False, allow_inf_nan=False)] | None = None
    priority: int | None = None
    only: bool = False
    """The job is over when it is tried out."""


class AskedOverrides(Asked):
    """What a command line says over what the task file says."""

    name: str | None = None
    gpus: str | None = None
    num_nodes: int | str | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    queue: str | None = None
    priority: int | str | None = None
    workdir: str | None = None
    trial: AskedTrial | None = None
    env: dict[str, str] = {}
    secret: dict[str, str] = {}


class Submit(Asked):
    """A task, and what is said over it."""

    task: dict[str, Any] | str
    """The task file, as an object or as YAML text."""
    overrides: AskedOverrides | None = None
    base_dir: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)] | None = None
    """Where relative paths of the task start."""
    file: Annotated[str, StringConstraints(max_length=4096)] = "task.yaml"
    """How problems name the task file."""


class JobPatch(Asked):
    """`nodes` alone fixes the size; with `min_nodes` and `max_nodes` it is the size asked for within them."""

    nodes: Count | None = None
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    priority: Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] | None = None
    queue: Annotated[str, StringConstraints(pattern=NAME)] | None = None
    wish: Literal["run", "park"] | None = None


class QueuePut(Asked):
    """A queue as it shall be. No quota: no limit."""

    quota: dict[
        Annotated[str, StringConstraints(pattern=GPU_TYPE)], Annotated[int, Field(ge=0, le=MOST_GPUS)]
    ] = {}
    cohort: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9._-]{1,128})?$")] = ""
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False, strict=False)] = 1.0
    held: bool = False


class PolicyPut(Asked):
    """The policy that shall decide."""

    name: Annotated[str, StringConstraints(pattern=POLICY)]


class TokenPost(Asked):
    """Whom a new token shall stand for."""

    user: Annotated[str, StringConstraints(pattern=USER)]
    role: Annotated[Role, Field(strict=False)]


class MendedPost(Asked):
    """What was mended: a GPU, or the node as a whole."""

    gpu: Annotated[int, Field(ge=0, le=1_000)] | None = None


class ShutdownPost(Asked):
    """Whether jobs go on without the server."""

    keep_jobs: bool = True
