"""What is answered, as the OpenAPI document has it; docs/reference/http-api.md is the contract."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from batuta.api.trial_models import Trial
from batuta.core.job import JobKind, JobState


class ProblemPlace(BaseModel):
    """One thing wrong with what was sent."""

    message: str
    file: str
    line: int
    column: int
    fix: str


class ProblemDocument(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    problems: list[ProblemPlace] = []


# ----------------------------------------------------------------------------------------------------- jobs


class Share(BaseModel):
    """A part of one GPU."""

    memory_mib: int
    compute_percent: int


class Gpus(BaseModel):
    """How many GPUs a job has, asked for and could have."""

    now: int
    wanted: int
    min: int
    max: int
    per_node: int
    type: str
    share: Share | None


class Span(BaseModel):
    """Some GPUs of one node."""

    node: str
    gpus: list[int]


class ProgressSeen(BaseModel):
    """What the job reported last; null where it does not say."""

    fraction: float | None
    step: int | None
    total_steps: int | None
    epoch: float | None
    loss: float | None
    step_s: float | None
    samples_per_s: float | None
    epoch_s: float | None


class ReasonGiven(BaseModel):
    """Why a job has what it has."""

    code: str
    sentence: str
    evidence: dict[str, float]


class ExpectedWork(BaseModel):
    """How long earlier jobs say that it takes, in seconds on one GPU of the reference type."""

    p10_s: float
    p50_s: float
    p90_s: float
    source: str
    """Whose history it is."""
    jobs: int
    """How many earlier jobs it rests upon."""


class SizeChoice(BaseModel):
    """Why it asks for as many GPUs as it does, where its user left that open."""

    gpus: int
    best_gpus: int
    """The fastest size that it may have; 0 when nothing is known of its speed."""
    speed_share: float
    """Its speed at `gpus`, as a share of that at `best_gpus`."""
    jobs: int
    """How many earlier jobs were measured."""
    sentence: str


class Job(BaseModel):
    """A job, alive or over."""

    id: str
    name: str
    user: str
    queue: str
    kind: JobKind
    priority: int
    state: JobState
    wish: Literal["run", "park", "cancel"]
    gpus: Gpus
    placement: list[Span]
    progress: ProgressSeen | None
    eta_s: float | None
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    duration_s: float | None
    waited_s: float | None
    restarts: int
    exit_code: int | None
    detail: str
    reason: ReasonGiven | None
    expected: ExpectedWork | None
    """What was believed of its length at its submit; null when nothing was known."""
    size_choice: SizeChoice | None
    """Null when its user said a size."""


class QuotaReserved(BaseModel):
    """Whether a job has quota, in Kueue's words."""

    status: bool
    reason: str
    message: str


class JobWithTask(Job):
    """A job, with what it runs."""

    quota_reserved: QuotaReserved | None
    """Null when it is over."""
    task: dict[str, Any] | None
    """What it runs; values of secrets are hidden. None when it was submitted without a task."""


class JobPage(BaseModel):
    """Some of the jobs that match."""

    jobs: list[Job]
    next: str | None
    total: int


class Submitted(BaseModel):
    """A new job, and what was accepted but is not used."""

    job: Job
    notes: list[str]


class Sentence(BaseModel):
    """Something that happened."""

    time_s: float
    sentence: str


class Explanation(BaseModel):
    """Why a job has what it has, and how that came about."""

    job: str
    state: JobState
    reason: ReasonGiven | None
    quota_reserved: QuotaReserved | None
    """Null when it is over."""
    ahead: int | None
    """How many of its queue are ahead of it; null when it does not wait."""
    story: list[Sentence]
    expected: ExpectedWork | None
    size_choice: SizeChoice | None
    trial: Trial | None
    """Null for a job that is not tried out."""


class SuggestedChange(BaseModel):
    """A change with which, and with nothing else, the next decision would start the job."""

    code: str
    sentence: str
    facts: dict[str, str | float]
    gpus: int
    """What it would start with."""
    stops: list[str]
    """Jobs that would lose all their GPUs for it."""
    shrinks: list[str]
    """Jobs that would have fewer."""
    within_s: float | None
    """When it is expected to come about by itself."""


class Suggestions(BaseModel):
    """What would start a job that waits."""

    suggestions: list[SuggestedChange]


class JobEvent(BaseModel):
    """An event as in the journal, with its number."""

    model_config = ConfigDict(extra="allow")

    seq: int
    type: str
    time_s: float


class JobEvents(BaseModel):
    """Some of the events about a job."""

    events: list[JobEvent]
    next: str | None


class ProgressPoint(BaseModel):
    """One report."""

    time_s: float | None
    step: int | None
    epoch: float | None
    loss: float | None
    samples_per_s: float | None
    metrics: dict[str, float]


class ProgressCurve(BaseModel):
    """Reports over time, thinned."""

    points: list[ProgressPoint]


class Result(BaseModel):
    """What a job returned."""

    value: Any


class Segment(BaseModel):
    """A time with the same number of GPUs."""

    from_s: float
    to_s: float
    gpus: int


class JobTimeline(BaseModel):
    """The GPUs of one job over time."""

    id: str
    name: str
    segments: list[Segment]


class Timeline(BaseModel):
    """The GPUs of all jobs over time."""

    from_s: float
    to_s: float
    gpus: int
    jobs: list[JobTimeline]
