"""Looking ahead, as the OpenAPI document has it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from batuta.api.asked import NAME, POLICY, Asked, Submit
from batuta.api.quota_models import MOST_FILES, QuotaFile

MOST_SUBMITS, MOST_DRAINS = 64, 1_000
NodeName = Annotated[str, StringConstraints(pattern=NAME)]


class Expected(BaseModel):
    """A moment that comes with a probability of a half by `p50_s`, of nine tenths by `p90_s` (Unix time)."""

    p50_s: float | None
    p90_s: float | None


class JobEta(BaseModel):
    """When a job starts and finishes; `why` says why there is no answer."""

    id: str
    name: str
    state: str
    start: Expected
    finish: Expected
    why: str


class EtaAnswer(BaseModel):
    """When all jobs start and finish, if what is assumed is true."""

    now_s: float
    policy: str
    runs: int
    """So many futures were looked at."""
    precision: float
    """Times ahead are good to this share of them; 0: as good as what is known of the jobs."""
    assumes: list[str]
    jobs: list[JobEta]


class WhatIfPost(Asked):
    """What would be changed. All of it together, at once."""

    policy: Annotated[str, StringConstraints(pattern=POLICY)] | None = None
    add_nodes: Annotated[str, StringConstraints(max_length=1000)] = ""
    """As in 2x8:A100."""
    quota: list[QuotaFile] = Field(default_factory=list, max_length=MOST_FILES)
    submit: list[Submit] = Field(default_factory=list, max_length=MOST_SUBMITS)
    drain: list[NodeName] = Field(default_factory=list, max_length=MOST_DRAINS)
    expects_arrivals: bool = False
    """Whether jobs keep coming as they did lately."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0


class Change(BaseModel):
    """As things are, and changed; null for what does not come about in every run."""

    before: float | None
    after: float | None


class JobChange(BaseModel):
    """What becomes of one job."""

    id: str
    name: str
    jct_s: Change
    wait_s: Change
    """Without GPUs, from now on."""
    fairness: Change
    """Finish-time fairness from now on: time taken over that of a fair share of the cluster."""


class WhatIfAnswer(BaseModel):
    """The difference that it makes; means over jobs that end either way, and over all runs."""

    now_s: float
    policy: str
    changed_policy: str
    runs: int
    assumes: list[str]
    jct_s: Change
    wait_s: Change
    fairness: Change
    worst_fairness: Change
    utilisation: Change
    makespan_s: Change
    restarts: Change
    preemptions: Change
    unfinished: Change
    """Jobs that never end."""
    jobs: list[JobChange]
