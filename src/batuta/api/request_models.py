"""Request bodies as the OpenAPI document has them, and the patterns of names in paths."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from batuta.spec.kueue.objects import MOST_PRIORITY
from batuta.spec.task_elastic import MOST_NODES
from batuta.spec.task_resources import HIGHEST_PRIORITY, LOWEST_PRIORITY
from batuta.store.records import Role

JOB_ID = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._:-]{0,270})?$"
"""A number, or what a cluster calls it: its namespace and name, with its kind where it is no UnifiedJob."""
NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$"
USER = r"^[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}$"
POLICY = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
GPU_TYPE = r"^(\*|[A-Za-z0-9][A-Za-z0-9._ -]{0,63})$"
MAX_GPUS = 10_000_000
Count = Annotated[int, Field(ge=1, le=MOST_NODES)]


class RequestModel(BaseModel):
    """What a client sends: a key that is not known is its mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)


class AskedTrial(RequestModel):
    """How a task is to be tried out, over what its file says."""

    sizes: list[Annotated[int, Field(ge=1)]] | None = None
    budget_s: Annotated[float, Field(strict=False, allow_inf_nan=False)] | None = None
    each_s: Annotated[float, Field(strict=False, allow_inf_nan=False)] | None = None
    priority: int | None = None
    only: bool = False
    """The job is over when it is tried out."""


class AskedOverrides(RequestModel):
    """What a command line says over what the task file says."""

    name: str | None = None
    gpus: str | None = None
    num_nodes: int | str | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    restartable: bool | None = None
    queue: str | None = None
    priority: int | str | None = None
    workdir: str | None = None
    trial: AskedTrial | None = None
    env: dict[str, str] = {}
    secret: dict[str, str] = {}


class Submit(RequestModel):
    """A task, or a job whose task is to run again, and what is said over it."""

    task: dict[str, Any] | str | None = None
    """The task file, as an object or as YAML text."""
    like: Annotated[str, StringConstraints(pattern=JOB_ID)] | None = None
    """The id of a job, alive or over: its task, with its secrets. Only its user and admins may say it."""
    overrides: AskedOverrides | None = None
    base_dir: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)] | None = None
    """Where relative paths of the task start: the folder from which the command was called."""
    file_dir: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)] | None = None
    """The folder of the task file: where a relative path is looked for that is not below base_dir."""
    file: Annotated[str, StringConstraints(max_length=4096)] = "task.yaml"
    """How problems name the task file."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Submit:
        if (self.task is None) == (self.like is None):
            raise ValueError("either task or like is wanted")
        return self


class JobPatch(RequestModel):
    """`nodes` alone fixes the size; with `min_nodes` and `max_nodes` it is the size asked for within them.

    `auto` makes the sizes those of the task again.
    """

    nodes: Count | None = None
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    auto: Literal[True] | None = None
    priority: Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] | None = None
    queue: Annotated[str, StringConstraints(pattern=NAME)] | None = None
    wish: Literal["run", "park"] | None = None


class QueuePut(RequestModel):
    """A queue as it shall be. No quota: no limit."""

    quota: dict[Annotated[str, StringConstraints(pattern=GPU_TYPE)], Annotated[int, Field(ge=0, le=MAX_GPUS)]] = {}
    cohort: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9._-]{1,128})?$")] = ""
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False, strict=False)] = 1.0
    held: bool = False
    max_priority: Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] | None = None
    """The highest priority that users may give its jobs; null: what the server says."""


class PolicyPut(RequestModel):
    """The policy that shall decide."""

    name: Annotated[str, StringConstraints(pattern=POLICY)]


class ShadowPut(RequestModel):
    """The policy that shall watch; empty for none."""

    policy: Annotated[str, StringConstraints(pattern=rf"^$|{POLICY}")]


TOKEN_VALID_S = 90 * 86_400.0  # of a new token, unless said otherwise


class TokenPost(RequestModel):
    """Whom a new token shall stand for."""

    user: Annotated[str, StringConstraints(pattern=USER)]
    role: Annotated[Role, Field(strict=False)]
    valid_s: Annotated[float, Field(gt=0, le=100 * 365 * 86_400)] | None = TOKEN_VALID_S
    """How long it is valid; null: until it is revoked."""


class MendedPost(RequestModel):
    """What was mended: a GPU, or the node as a whole."""

    gpu: Annotated[int, Field(ge=0, le=1_000)] | None = None


class ShutdownPost(RequestModel):
    """Whether jobs go on without the server."""

    keep_jobs: bool = True


MAX_QUOTA_FILES = 256


class QuotaFile(RequestModel):
    """A file as it was written: YAML or JSON, Kueue's objects or queues in short form."""

    name: Annotated[str, StringConstraints(max_length=4096)] = "quota.yaml"
    text: str


class QuotaPatch(RequestModel):
    """Files that are applied as a whole, or not at all."""

    files: Annotated[list[QuotaFile], Field(min_length=1, max_length=MAX_QUOTA_FILES)]
    dry_run: bool = False


MAX_SUBMITS, MAX_DRAINS = 64, 1_000
NodeName = Annotated[str, StringConstraints(pattern=NAME)]


class WhatIfPost(RequestModel):
    """What would be changed. All of it together, at once."""

    policy: Annotated[str, StringConstraints(pattern=POLICY)] | None = None
    add_nodes: Annotated[str, StringConstraints(max_length=1000)] = ""
    """As in 2x8:A100."""
    quota: list[QuotaFile] = Field(default_factory=list, max_length=MAX_QUOTA_FILES)
    submit: list[Submit] = Field(default_factory=list, max_length=MAX_SUBMITS)
    drain: list[NodeName] = Field(default_factory=list, max_length=MAX_DRAINS)
    expects_arrivals: bool = False
    """Whether jobs keep coming as they did lately."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
