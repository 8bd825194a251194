"""Jobs, nodes, tasks and trial runs as the JSON objects that the API returns."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, TypeAlias

import anyio.to_thread
import numpy as np

from batuta.api.dependencies import NodeFacts
from batuta.api.responses import to_json
from batuta.api.snapshot import StillView, WorldSnapshot
from batuta.apitypes import resources as a
from batuta.core.cluster import Placement
from batuta.core.job import DesiredState, Job, JobId, JobState
from batuta.core.plan import Decision
from batuta.core.reason import Evidence, Reason
from batuta.core.trial import TrialMeasurement, never_fits, run_id
from batuta.core.world import PastJob, World
from batuta.engine.trials.measurement import learn
from batuta.spec.skypilot_keys import endpoints
from batuta.spec.task_resources import Accelerator, emulated_types
from batuta.store.codec import codec_of
from batuta.store.database import Database, storable_text

JsonObject: TypeAlias = dict[str, Any]

_WISHES = tuple(
    {DesiredState.EVICT: "run", DesiredState.TRY: "run"}.get(wish, wish.name.lower()) for wish in DesiredState
)
NO_CHECKPOINT_SEEN = (
    "No checkpoint of it was seen yet, so it keeps its size while it runs: a resize would lose its work. "
    "It is restarted with fewer GPUs only so that another job can start"
)
_ANY = "any"
_MAX_PAST_VIEWS = 5_000
_past_views: dict[JobId, tuple[PastJob, bytes]] = {}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def filled(kind: type, source: object, **given: Any) -> JsonObject:
    """Return the JSON object of an API type; fields that are not given are those of the source."""
    return {name: getattr(source, name) for name in _names(kind) if name not in given} | given


def copied(kind: type, source: object | None) -> JsonObject | None:
    """Return the source as the JSON object of an API type that has the same fields."""
    return None if source is None else filled(kind, source)


def view_job(snapshot: WorldSnapshot, job: JobId, now_s: float) -> JsonObject | None:
    """Return a job, living or past; None when it is unknown."""
    text = job_as_json(snapshot, job, now_s)
    return None if text is None else json.loads(text)


def job_as_json(snapshot: WorldSnapshot, job: JobId, now_s: float) -> bytes | None:
    """Return `view_job` as JSON."""
    row = snapshot.row_of(job)
    if row is not None:
        return living_as_json(snapshot, row, now_s, snapshot.forecast_finishes())
    past = snapshot.past_by_id.get(job)
    return None if past is None else past_as_json(past)


def living_as_json(snapshot: WorldSnapshot, row: int, now_s: float, finishes_s: Mapping[JobId, float]) -> bytes:
    """Return a living job as JSON. Lists have hundreds of jobs, of which few have changed since the last one."""
    started_s, submitted_s = snapshot.shown_columns.first_start_s.item(row), snapshot.jobs[row].submit_s
    eta_s = _eta_s(snapshot, row, now_s, finishes_s)
    eta = "null" if eta_s is None else float.__repr__(eta_s)
    has_run = math.isfinite(started_s)
    duration = float.__repr__(_run_s(snapshot, row, now_s)) if has_run else "null"
    waited = float.__repr__(max(0.0, (started_s if has_run else now_s) - submitted_s))
    moving = f',"eta_s":{eta},"duration_s":{duration},"waited_s":{waited}}}'
    return _still(snapshot, row).text + moving.encode()


def _still(snapshot: WorldSnapshot, row: int) -> StillView:
    """Return what time alone does not change: found once per snapshot, made anew when it says something else."""
    found = snapshot.shown.get(row)
    if found is None:
        job, placement = snapshot.jobs[row], snapshot.placements[row]
        progress = snapshot.progress.get(job.id)
        gpu_type = _accepted(job) if placement is None or job.cpu_only else snapshot.node_types[placement.spans[0].node]
        facts = (
            snapshot.states[row],
            snapshot.shown_columns.wish.item(row),
            _known(snapshot.shown_columns.first_start_s.item(row)),
            snapshot.shown_columns.restarts.item(row),
            job.id in snapshot.checkpoints,
            snapshot.checkpoints.get(job.id),
            gpu_type,
        )
        found, decisions = snapshot.known.get(job.id), snapshot.decisions
        if found is None or not (found.holds(job, placement, progress, facts) and found.decides(decisions, row)):
            decision = decisions.on(job.id, row)
            text = to_json(_view_static(snapshot, row, gpu_type, decision))[:-1]
            found = StillView(job, placement, progress, facts, decision, decisions.mark, text)
            snapshot.known[job.id] = found
        snapshot.shown[row] = found
    return found


def _run_s(snapshot: WorldSnapshot, row: int, now_s: float) -> float:
    """Return how long a living job has run, over all its runs, without the time that it took to start."""
    run_s, anchor_s = snapshot.shown_columns.run_s.item(row), snapshot.shown_columns.anchor_s.item(row)
    runs = snapshot.placements[row] is not None and snapshot.states[row] is not JobState.SETTING_UP
    since_s = max(0.0, now_s - anchor_s) if runs else 0.0
    return run_s + since_s


def _view_static(snapshot: WorldSnapshot, row: int, gpu_type: str, decision: Decision | None) -> JsonObject:
    job, placement = snapshot.jobs[row], snapshot.placements[row]
    return {
        **_request(job, snapshot.states[row], _WISHES[snapshot.columns.wish_of(row)]),
        "gpus": _gpus(job, placement, gpu_type),
        "cpu": _cpu(job, placement),
        "placement": _placement(placement),
        "progress": copied(a.ProgressSeen, snapshot.progress.get(job.id)),
        "started_s": _known(snapshot.columns.first_start_s.item(row)),
        "ended_s": None,
        "restarts": snapshot.columns.restarts.item(row),
        "exit_code": None,
        "detail": "",
        "reason": view_decision(decision),
        "checkpoint": view_checkpoint(job, snapshot.checkpoints),
    }


def past_as_json(past: PastJob) -> bytes:
    """Return a past job as JSON. It never changes, so recent ones are kept."""
    shown = _past_views.get(past.job.id)
    if shown is None or shown[0] is not past:
        if len(_past_views) >= _MAX_PAST_VIEWS:
            _past_views.clear()
        shown = _past_views[past.job.id] = (past, to_json(_view_past(past)))
    return shown[1]


def _view_past(past: PastJob) -> JsonObject:
    job = past.job
    started_s = _known(past.first_start_s)
    ran_s = max(0.0, past.end_s - past.first_start_s) if past.run_s is None else past.run_s
    evidence, ended_by = past.evidence or (), None
    if past.reason is not None:
        ended_by = view_reason(past.reason, past.reason.sentence(evidence), evidence)
    return {
        **_request(job, past.state, "cancel" if past.state is JobState.CANCELLED else "run"),
        "gpus": _gpus(job, None, _accepted(job)),
        "cpu": _cpu(job, None),
        "placement": [],
        "progress": copied(a.ProgressSeen, past.progress),
        "eta_s": None,
        "started_s": started_s,
        "ended_s": past.end_s,
        "duration_s": None if started_s is None else ran_s,
        "waited_s": max(0.0, (past.end_s if started_s is None else started_s) - job.submit_s),
        "restarts": past.restarts,
        "exit_code": past.exit_code,
        "detail": past.detail,
        "reason": ended_by,
        "checkpoint": None,
    }


def view_dry_run(job: Job) -> JsonObject:
    """Return the job that a submit would create."""
    shown = _view_past(PastJob(job, JobState.PENDING, math.nan, job.submit_s, 0.0, 0))
    return shown | {"ended_s": None, "checkpoint": view_checkpoint(job, {})}


def view_checkpoint(job: Job, checkpoints: Mapping[JobId, float | None]) -> JsonObject | None:
    """Return whether a restart keeps the work of an elastic job; None for a rigid one."""
    if job.min == job.max:
        return None
    seen = job.id in checkpoints
    return {
        "seen": seen,
        "saved_s": checkpoints.get(job.id),
        "restartable": job.restartable,
        "sentence": "" if seen or job.restartable else NO_CHECKPOINT_SEEN,
    }


def view_decision(decision: Decision | None) -> JsonObject | None:
    return None if decision is None else view_reason(decision.reason, str(decision), decision.evidence)


def view_reason(reason: Reason, sentence: str, evidence: Evidence) -> JsonObject:
    return {"code": reason.name, "sentence": sentence, "evidence": dict(evidence)}


def _request(job: Job, state: JobState, wish: str) -> JsonObject:
    return {
        "id": job.id,
        "name": job.name,
        "user": job.user,
        "queue": job.queue,
        "kind": job.kind.value,
        "priority": job.priority,
        "state": state.value,
        "wish": wish,
        "submitted_s": job.submit_s,
        "expected": copied(a.ExpectedWork, job.expected),
        "size_choice": copied(a.SizeChoice, job.size_choice),
    }


def _gpus(job: Job, placement: Placement | None, gpu_type: str) -> JsonObject:
    return {
        "now": 0 if placement is None else placement.size,
        "wanted": job.gpus,
        "min": 0 if job.cpu_only else job.min,
        "max": 0 if job.cpu_only else job.max,
        "per_node": job.gpus_per_replica,
        "type": gpu_type,
        "share": copied(a.Share, job.share),
    }


def _cpu(job: Job, placement: Placement | None) -> JsonObject | None:
    """What a CPU-only job has and asks for; None for one with GPUs."""
    if not job.cpu_only:
        return None
    return {
        "replicas": job.size,
        "now": 0 if placement is None else placement.units,
        "cpus": job.cpus_milli_per_gpu / 1000,
        "memory_mib": job.memory_mib_per_gpu,
    }


def _accepted(job: Job) -> str:
    if job.cpu_only:
        return ""
    return " or ".join(name for name, _ in job.gpu_types) or _ANY


def _placement(placement: Placement | None) -> list[JsonObject]:
    by_node: dict[str, list[int]] = defaultdict(list)
    for node, gpus in () if placement is None else placement.spans:
        by_node[node] += gpus
    return [{"node": node, "gpus": gpus} for node, gpus in by_node.items()]


def _eta_s(snapshot: WorldSnapshot, row: int, now_s: float, finishes_s: Mapping[JobId, float]) -> float | None:
    """Return the seconds left by a recent forecast, else by the job's progress; None when unknown."""
    finish_s = finishes_s.get(snapshot.jobs[row].id)
    if finish_s is not None:
        return max(0.0, finish_s - now_s)
    progress = snapshot.progress.get(snapshot.jobs[row].id)
    if progress is None or progress.fraction is None or snapshot.states[row] is not JobState.RUNNING:
        return None
    columns = snapshot.columns
    rate, since_s = columns.rate.item(row), max(0.0, now_s - columns.anchor_s.item(row))
    return _known(max(0.0, columns.remaining_s.item(row) / rate - since_s)) if rate > 0 else None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def view_nodes(snapshot: WorldSnapshot, facts: NodeFacts) -> list[JsonObject]:
    on_gpu: dict[str, dict[int, list[JsonObject]]] = defaultdict(lambda: defaultdict(list))
    on_cpu: dict[str, list[JobId]] = defaultdict(list)
    for job, placement in zip(snapshot.jobs, snapshot.placements, strict=True):
        if placement is None:
            continue
        share = copied(a.Share, job.share)
        for node, gpus in placement.spans:
            for gpu in gpus:
                on_gpu[node][gpu].append({"id": job.id, "share": share})
        for node in placement.nodes if job.cpu_only else ():
            on_cpu[node].append(job.id)
    leaving = {snapshot.jobs[row].id for row in np.flatnonzero(snapshot.columns.wish).tolist()}
    return [_view_node(snapshot, i, on_gpu, on_cpu, leaving, facts) for i in range(len(snapshot.nodes))]


def view_node(snapshot: WorldSnapshot, name: str, facts: NodeFacts) -> JsonObject | None:
    return next((node for node in view_nodes(snapshot, facts) if node["name"] == name), None)


def _view_node(
    snapshot: WorldSnapshot,
    i: int,
    tenants: Mapping[str, Mapping[int, list[JsonObject]]],
    on_cpu: Mapping[str, list[JobId]],
    leaving: set[JobId],
    facts: NodeFacts,
) -> JsonObject:
    node = snapshot.nodes[i]
    own = tenants.get(node.name, {})
    utilisation = facts.utilisation(node.name)
    state = "ready"
    if snapshot.lost >> i & 1:
        state = "lost"
    elif snapshot.cordoned >> i & 1:
        here = [job["id"] for jobs in own.values() for job in jobs] + on_cpu.get(node.name, [])
        drains = any(job in leaving for job in here)
        state = "draining" if drains else "cordoned"
    return {
        "name": node.name,
        "state": state,
        "gpu_type": node.gpu_type if node.gpus else "",
        "gpu_memory_mib": node.gpu_memory_mib if node.gpus else 0,
        "rack": node.rack,
        "labels": dict(node.labels),
        "address": facts.address(node.name),
        "gpus": [
            {
                "index": gpu,
                "healthy": bool(snapshot.healthy[i] >> gpu & 1),
                "jobs": own.get(gpu, []),
                "utilisation": utilisation.get(gpu),
            }
            for gpu in range(node.gpus)
        ],
        "cpu": {
            "total": node.cpus_milli / 1000 if node.cpus_milli else None,
            "free": snapshot.cpus_milli[i] / 1000 if node.cpus_milli else None,
            "memory_mib": node.memory_mib or None,
            "memory_free_mib": snapshot.memory_mib[i] if node.memory_mib else None,
            "jobs": on_cpu.get(node.name, []),
        },
    }


def count_gpus(snapshot: WorldSnapshot) -> JsonObject:
    """Count the GPUs: used, free, unused ones of cordoned nodes, and those that are broken or lost."""
    total = sum(node.gpus for node in snapshot.nodes)
    healthy = sum(mask.bit_count() for mask in snapshot.healthy)
    idle = [(mask & own).bit_count() for mask, own in zip(snapshot.free, snapshot.healthy, strict=True)]
    closed = sum(count for i, count in enumerate(idle) if snapshot.cordoned >> i & 1)
    return {
        "total": total,
        "used": healthy - sum(idle),
        "free": sum(idle) - closed,
        "cordoned": closed,
        "unhealthy": total - healthy,
    }


_HIDDEN = "<hidden>"
_MOST_TASK_BYTES = 16 << 20
_BESIDE_TEXT_BYTES = 200  # that the cache takes for each task beside its JSON


class TaskViewCache:
    """Tasks as they are shown. They never change, so recent ones are kept, as many as the limit on memory allows."""

    def __init__(self, database: Database, most_bytes: int = _MOST_TASK_BYTES) -> None:
        self._database, self._most_bytes = database, most_bytes
        self.kept_bytes = 0
        self._known: OrderedDict[str, bytes] = OrderedDict()  # as JSON, which takes a third of the memory

    async def of(self, job: str) -> dict[str, Any] | None:
        known = self._known.get(job)
        if known is not None:
            self._known.move_to_end(job)
            shown: dict[str, Any] = json.loads(known)
            return shown
        found = await anyio.to_thread.run_sync(self._read, job)
        if found is not None:
            self._keep(job, to_json(found))
        return found

    def _keep(self, job: str, text: bytes) -> None:
        if job in self._known:  # another request has read it meanwhile
            return
        self._known[job] = text
        self.kept_bytes += len(text) + _BESIDE_TEXT_BYTES
        while self.kept_bytes > self._most_bytes:
            _, oldest = self._known.popitem(last=False)
            self.kept_bytes -= len(oldest) + _BESIDE_TEXT_BYTES

    def _read(self, job: str) -> dict[str, Any] | None:
        # Only what is committed: the table's own `get` would wait for the disk while the engine commits.
        row = self._database.row("SELECT task_json FROM tasks WHERE job_id = ?", storable_text(job))
        return view_task(row[0] if row else None)


def view_task(stored: str | None) -> dict[str, Any] | None:
    """Return a stored task much as its file was written, with secrets hidden; None if it cannot be read."""
    if not stored:
        return None
    try:
        task = json.loads(stored)["task"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(task, dict):
        return None
    return {key: _VIEWS[key](value) if key in _VIEWS else value for key, value in task.items()}


def without_values(task: dict[str, Any] | None, *, with_scripts: bool) -> dict[str, Any] | None:
    """Return a task as users see those of other users: values of variables may be keys and passwords.

    `with_scripts`: with what it runs, as among people whose jobs all run as one user.
    """
    if task is None:
        return None
    scripts = {} if with_scripts else {name: _HIDDEN for name in ("setup", "run") if task.get(name)}
    return {**task, **scripts, "envs": dict.fromkeys(task.get("envs") or (), _HIDDEN)}


def emulated_gpu_types(task: dict[str, Any] | None, gpus_per_node: int, types: Collection[str]) -> list[str]:
    """Return the types of GPU that virtual ones emulate for a job of this task; mostly none."""
    choices = (task or {}).get("any_of") or [(task or {}).get("needs") or {}]
    asked = [Accelerator(**one) for choice in choices for one in choice.get("accelerators") or ()]
    return list(emulated_types(asked, gpus_per_node, types))


def endpoints_of(task: Mapping[str, Any] | None, host: str) -> list[str]:
    """Return where the ports of a task are reached while its job runs."""
    return endpoints(host, (task or {}).get("ports") or ()) if host else []


_VIEWS: dict[str, Callable[[Any], Any]] = {
    "envs": dict,
    "labels": dict,
    "secrets": lambda value: dict.fromkeys((name for name, _ in value), _HIDDEN),
    "file_mounts": lambda value: {mount["target"]: mount["source"] for mount in value},
}


@dataclass(frozen=True, slots=True)
class TrialSnapshot:
    """What the World has of a job's trial runs, copied under its lock."""

    job: Job
    measured: tuple[TrialMeasurement, ...]
    over: bool
    living: dict[int, str]  # by size: the state of a run that is not over


def find_trial(world: World, job_id: str) -> TrialSnapshot | None:
    """Return the trial runs of a job, living or past; None for a job without any."""
    past = world.past.get(job_id)
    if past is not None:
        return None if past.job.trial is None else TrialSnapshot(past.job, past.trials, True, {})
    if job_id not in world.jobs:
        return None
    jobs, row = world.jobs, world.jobs.row(job_id)
    job, measured = jobs.jobs[row], world.trials.get(job_id, ())
    if job.trial is None:
        return None
    runs = {gpus: run_id(job_id, gpus) for gpus in job.trial.sizes}
    living = {
        gpus: "waits" if jobs.placements[jobs.row(run)] is None else "runs" for gpus, run in runs.items() if run in jobs
    }
    over = jobs.wish_of(row) is not DesiredState.TRY or never_fits(measured, job.trial.sizes)
    return TrialSnapshot(job, measured, over, living)


def view_trial(tried: TrialSnapshot) -> JsonObject:
    """Return the trial runs as JSON, with the size that they suggest."""
    plan, measured = tried.job.trial, tried.measured
    assert plan is not None
    lesson = learn(tried.job, measured) if tried.over else None
    known = {one.gpus: one for one in measured}
    speeds = {one.gpus: one.units_per_s / one.gpus for one in measured if one.units_per_s is not None}
    first = speeds[min(speeds)] if speeds else None
    runs = [
        _view_measured_run(known[gpus], speeds[gpus] / first if first and gpus in speeds else None)
        if gpus in known
        else _view_unmeasured_run(tried, gpus)
        for gpus in plan.sizes
    ]
    return {
        "over": tried.over,
        "only": plan.only,
        "budget_s": plan.budget_s,
        "each_s": plan.each_s,
        "runs": runs,
        "chosen_gpus": lesson.choice.gpus if lesson is not None and lesson.choice is not None else None,
        "sentence": lesson.sentence if lesson is not None else "",
    }


def _view_measured_run(one: TrialMeasurement, efficiency: float | None) -> JsonObject:
    steps_per_s = 1.0 / one.step_s if one.step_s else None
    known = {"state": one.outcome.value, "batch": one.batch or None, "steps_per_s": steps_per_s}
    return filled(a.TrialRun, one, efficiency=efficiency, **known)


def _view_unmeasured_run(tried: TrialSnapshot, gpus: int) -> JsonObject:
    state = "not tried" if tried.over else tried.living.get(gpus, "planned")
    return asdict(a.TrialRun(run_id(tried.job.id, gpus), gpus, state))


def measurement_sentence(stored: Any) -> str:
    """Return the sentence of a stored measurement."""
    read = codec_of(TrialMeasurement).read
    assert read is not None
    measured: TrialMeasurement = read(stored)
    return measured.sentence
