"""Response models: the API types as the OpenAPI document has them.

`batuta.apitypes` declares the fields once, for client and server. A client takes most fields as optional, so
that it understands older servers, and clusters; `response_model` makes a pydantic model in which the server
has to set all of them. The models describe the answers, and tests check answers with them; the routes return
plain dicts, which is quicker. docs/reference/http-api.md is the contract.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from batuta.apitypes import forecasts, queues, resources
from batuta.core.job import JobKind, JobState
from batuta.core.quota import StopPolicy, Strategy
from batuta.store.records import Role

Kind = Literal["ResourceFlavor", "ClusterQueue", "LocalQueue", "Cohort", "WorkloadPriorityClass"]
_models: dict[type, type[BaseModel]] = {}


def response_model(
    kind: type,
    name: str = "",
    doc: str = "",
    /,
    *,
    omit: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    **types: Any,
) -> type[BaseModel]:
    """Return the pydantic model of an API type, with every field required but the `optional` ones.

    `types` are narrower types that the server promises, or fields that no client reads; `omit` are fields
    that the server does not send.
    """
    hints = get_type_hints(kind) | types
    defaults = {one.name: one.default for one in fields(kind)}
    declared: dict[str, Any] = {
        field: (_described(hint), defaults[field] if field in optional else ...)
        for field, hint in hints.items()
        if field not in omit
    }
    model: type[BaseModel] = create_model(
        name or kind.__name__, __doc__=doc or kind.__doc__, __module__=__name__, **declared
    )
    _models.setdefault(kind, model)
    return model


def _described(hint: Any) -> Any:
    """Return a type hint with the models of the API types in it."""
    if isinstance(hint, type) and is_dataclass(hint):
        return _models.get(hint) or response_model(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(_described(one) for one in inner)]  # noqa: UP007  (made at run time)
    if origin is tuple:
        return list[_described(inner[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[inner[0], _described(inner[1])]  # type: ignore[misc,valid-type]
    return hint


def answer(name: str, doc: str, /, **types: Any) -> type[BaseModel]:
    """Return the pydantic model of an answer that no client of ours reads; all its fields are required."""
    declared: dict[str, Any] = {field: (hint, ...) for field, hint in types.items()}
    model: type[BaseModel] = create_model(name, __doc__=doc, __module__=__name__, **declared)
    return model


def _listed(model: type[BaseModel]) -> Any:
    return list[model]  # type: ignore[valid-type]


_DETAILS = ("quota_reserved", "stands_for", "endpoints", "task")
response_model(resources.Gpus, type=str)
response_model(resources.ReasonGiven, evidence=dict[str, float])
_job: dict[str, Any] = {
    "kind": JobKind,
    "state": JobState,
    "wish": Literal["run", "park", "cancel"],
    "submitted_s": float,
}
Job = response_model(resources.Job, "Job", "A job, alive or over.", omit=_DETAILS, **_job)
JobWithTask = response_model(resources.Job, "JobWithTask", "A job, with what it runs.", **_job)
JobPage = answer("JobPage", "Some of the jobs that match.", jobs=_listed(Job), next=str | None, total=int)
Submitted = response_model(resources.Submitted)
Explanation = response_model(resources.Explanation, omit=("suggestions",), state=JobState)
SuggestedChange = response_model(resources.SuggestedChange, facts=dict[str, str | float])
Suggestions = answer("Suggestions", "What would start a job that waits.", suggestions=_listed(SuggestedChange))
ProgressPoint = response_model(resources.ProgressPoint, metrics=dict[str, float])
ProgressCurve = answer("ProgressCurve", "Reports over time, thinned.", points=_listed(ProgressPoint))


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


Result = answer("Result", "What a job returned.", value=Any)
LogLine = answer("LogLine", "A line of a log, counted from the first one that is still there.", line=int, text=str)
_found = "Lines in which a text stands; the last ones when there are too many."
LogSearch = answer("LogSearch", _found, matches=_listed(LogLine), total=int, lines=int)
_point = "How busy the GPUs of a job were, as measured up to a time."
# The mean of its GPUs, 0 to 1, and how many of them were measured.
UsePoint = answer("UsePoint", _point, time_s=float, busy=float, gpus=int)
_use = "How busy the GPUs of a job were over time; empty where it is not measured."
GpuUse = answer("GpuUse", _use, points=_listed(UsePoint))
Segment = answer("Segment", "A time with the same number of GPUs.", from_s=float, to_s=float, gpus=int)
JobTimeline = answer("JobTimeline", "The GPUs of one job over time.", id=str, name=str, segments=_listed(Segment))
_all = "The GPUs of all jobs over time."
Timeline = answer("Timeline", _all, from_s=float, to_s=float, gpus=int, jobs=_listed(JobTimeline))


response_model(resources.HealthShown, state=Literal["healthy", "suspect", "ill", "burn-in", "probation"])
response_model(resources.Gpu, optional=("health",))
Node = response_model(
    resources.Node,
    optional=("cordoned_by", "cordoned_s", "health"),
    state=Literal["ready", "cordoned", "draining", "lost", "unhealthy"],
)
Nodes = response_model(resources.Nodes, optional=("alerts",))
PolicyAnswer = response_model(resources.PolicyAnswer)
response_model(resources.Cycle, last_ms=float, engine_cpu_s=float)
Cluster = response_model(
    resources.Cluster,
    jobs=dict[JobState, int],
    trouble=str,
    pid=int,
    started_s=float,
    now_s=float,
    read_only=str,  # where jobs, nodes and queues are changed, if not here
    foresight=bool,  # whether it forecasts when jobs start and finish
)
Report = response_model(forecasts.Report)
response_model(resources.FindingView, severity=Literal["ok", "note", "warning", "error"])
Examination = response_model(resources.Examination, now_s=float)
TokenSeen = response_model(
    resources.Token, "TokenSeen", "Who a token stands for.", omit=("token",), role=Role, created_s=float
)
TokenMade = response_model(resources.Token, "TokenMade", "A new token.", role=Role, created_s=float, token=str)
TokenList = answer("TokenList", "All tokens.", tokens=_listed(TokenSeen))


AuditList = answer("AuditList", "What users did, the newest first.", events=list[dict[str, Any]])
SessionLink = answer("SessionLink", "A link that logs a browser in.", url=str)
ServerProof = answer("ServerProof", "What shows that this is the server of its state directory.", proof=str)
Session = answer("Session", "Who asks.", user=str, role=Role)
Health = answer("Health", "How the server is.", status=str)


class Accepted(BaseModel):
    """It will be done."""

    accepted: Literal[True] = True


response_model(queues.LocalQueue, stop_policy=StopPolicy)
_queue: dict[str, Any] = {
    "state": Literal["active", "held", "draining", "leaving", "misconfigured", "open", "unknown"],
    "strategy": Strategy,
    "stop_policy": StopPolicy,
}
Queue = response_model(queues.Queue, **_queue)
Queues = response_model(queues.Queues)
response_model(queues.WaitingJob, submitted_s=float, quota_reserved=resources.QuotaReserved)
response_model(queues.HoldingJob, submitted_s=float)
QueueDetail = response_model(queues.QueueDetail, **_queue)
response_model(
    queues.ChangedObject,
    kind=Kind | Literal["Configuration"],
    change=Literal["created", "changed", "unchanged", "removed"],
)
QuotaChanged = response_model(queues.QuotaChanged)
EtaAnswer = response_model(forecasts.EtaAnswer)
WhatIfAnswer = response_model(forecasts.WhatIfAnswer)
ShadowAnswer = response_model(forecasts.ShadowAnswer)
_objects = "All that holds now, as Kueue's objects (v1beta2)."
QuotaObjects = answer("QuotaObjects", _objects, objects=list[dict[str, Any]])
