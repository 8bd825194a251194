"""What is answered about the cluster, and who may do what in it, as the OpenAPI document has it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from batuta.api.models import Share
from batuta.core.job import JobState
from batuta.store.records import Role


class GpuTenant(BaseModel):
    """A job on a GPU; `share` is null when it has all of it."""

    id: str
    share: Share | None


class HealthShown(BaseModel):
    """What is known of the health of a GPU or node."""

    state: Literal["healthy", "suspect", "ill", "burn-in", "probation"]
    reason: str
    since_s: float
    who: str
    """Who brought it into this state: `health`, or a human's name."""
    remedy: str
    """What has to be done about it; empty: nothing, or it is done."""
    held: bool
    """Ill, and yet in service: too much of its pool is out already."""
    until_s: float | None
    """When its probation ends."""
    flaps: int
    """How many returns in a row did not last."""
    incidents: int
    """Errors that are remembered."""


class HealthAlert(BaseModel):
    """People have to look: this should be out of service, and too much of its pool is already."""

    pool: str
    node: str
    gpu: int | None
    reason: str


class Gpu(BaseModel):
    """One GPU of a node."""

    index: int
    healthy: bool
    jobs: list[GpuTenant]
    utilisation: float | None
    health: HealthShown | None = None
    """Null: nothing is known against it."""


class Node(BaseModel):
    """A node and its GPUs."""

    name: str
    state: Literal["ready", "cordoned", "draining", "lost", "unhealthy"]
    """`unhealthy`: as a whole; a GPU alone has its own word."""
    gpu_type: str
    gpu_memory_mib: int
    rack: str
    labels: dict[str, str]
    address: str
    cordoned_by: str = ""
    """Who did, where that is known."""
    cordoned_s: float | None = None
    """Since when, where that is known."""
    health: HealthShown | None = None
    gpus: list[Gpu]


class Nodes(BaseModel):
    """All nodes."""

    nodes: list[Node]
    alerts: list[HealthAlert] = []


class PolicySeen(BaseModel):
    """A policy that can be chosen."""

    name: str
    summary: str


class PolicyAnswer(BaseModel):
    """The policy that decides, and all that can be chosen."""

    name: str
    policies: list[PolicySeen]


class GpuCounts(BaseModel):
    """All GPUs: `total` is the sum of the others."""

    total: int
    used: int
    free: int
    cordoned: int
    """Without a job, on a node that gets no new ones."""
    unhealthy: int


class Cycle(BaseModel):
    """What deciding costs."""

    count: int
    last_ms: float
    engine_cpu_s: float


class Cluster(BaseModel):
    """The server and its cluster at a glance."""

    version: str
    policy: str
    virtual: bool
    read_only: str
    """Where jobs, nodes and queues are changed, if not here."""
    foresight: bool
    """Whether it tells when jobs start and finish."""
    gpus: GpuCounts
    jobs: dict[JobState, int]
    trouble: str
    pid: int
    started_s: float
    now_s: float
    seq: int
    """The number of the last event: a stream that begins after it misses nothing that lists do not show."""
    cycle: Cycle


# ---------------------------------------------------------------------------------------------- who may what


class TokenSeen(BaseModel):
    """Who a token stands for."""

    hash: str
    user: str
    role: Role
    created_s: float


class TokenList(BaseModel):
    """All tokens."""

    tokens: list[TokenSeen]


class TokenMade(TokenSeen):
    """A new token."""

    token: str
    """Shown this once."""


class SessionLink(BaseModel):
    """A link that logs a browser in."""

    url: str


class Session(BaseModel):
    """Who asks."""

    user: str
    role: Role


class Accepted(BaseModel):
    """It will be done."""

    accepted: Literal[True] = True


class Health(BaseModel):
    """How the server is."""

    status: str
