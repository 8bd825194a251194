"""`/jobs`: list, get, change and cancel jobs; their explanation, suggestions, events, progress and result."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Response

from batuta.api.auth import Caller, User, Viewer
from batuta.api.event_text import public_event, with_seq
from batuta.api.forecast_cache import usual_wait_s
from batuta.api.job_list import JobQuery, page_of_jobs
from batuta.api.models import (
    Explanation,
    GpuUse,
    Job,
    JobEvents,
    JobPage,
    JobWithTask,
    ProgressCurve,
    Result,
    Suggestions,
)
from batuta.api.operations import TaskSizes
from batuta.api.queue_views import ahead_of, view_reserved
from batuta.api.request_models import JobPatch
from batuta.api.responses import HttpProblem, bad_input, json_response, not_found, to_json
from batuta.api.routes import CHANGES, JobIdPath, Limit, problems
from batuta.api.state import AppState, StateDep
from batuta.api.views import (
    JsonObject,
    emulated_gpu_types,
    endpoints_of,
    filled,
    find_trial,
    job_as_json,
    view_job,
    view_trial,
    without_values,
)
from batuta.apitypes import resources as a
from batuta.backends.local.files import open_regular
from batuta.core.event import JobEnded
from batuta.core.job import Job as JobRequest
from batuta.core.job import JobId
from batuta.engine.suggest import Suggestion, suggest
from batuta.spec.problem import InputError
from batuta.spec.progress import ProgressReport, parse_line
from batuta.spec.task import Task
from batuta.spec.task_serialization import task_from_json, task_to_yaml

router = APIRouter(prefix="/jobs", tags=["jobs"])
_LONG_LIST = 20_000  # longer lists are made in another thread, so that other requests do not wait


async def find_request(state: AppState, job: str) -> JobRequest:
    """Return what a job asks for, or raise 404."""
    snapshot = await state.snapshot()
    row = snapshot.row_of(job)
    if row is not None:
        return snapshot.jobs[row]
    past = snapshot.past_by_id.get(job)
    if past is None:
        raise not_found(f"job {job}")
    return past.job


async def find_job(state: AppState, job: str) -> JsonObject:
    """Return the job as it is now, or raise 404."""
    shown = view_job(await state.snapshot(), job, state.now_s())
    if shown is None:
        raise not_found(f"job {job}")
    return shown


async def find_readable_job(state: AppState, caller: Caller, job: str) -> JsonObject:
    """Return the job whose script or output is asked for; raise 403 where jobs run as their users."""
    shown = await find_job(state, job)
    if state.deps.tenants is not None and not caller.owns(shown["user"]):
        raise HttpProblem(403, f"job {job} belongs to {shown['user']}: only they or an admin see its script and output")
    return shown


@router.get("", response_model=JobPage, responses=problems())
async def list_jobs(state: StateDep, caller: Viewer, query: Annotated[JobQuery, Query()]) -> Response:
    """Jobs that are alive and those that are over, by submit time."""
    snapshot = await state.snapshot()

    def page() -> Response:
        return Response(page_of_jobs(snapshot, query, state.now_s()), media_type="application/json")

    is_long = len(snapshot.jobs) + len(snapshot.past) > _LONG_LIST
    return await anyio.to_thread.run_sync(page) if is_long else page()


@router.get("/{job}", response_model=JobWithTask, responses=problems(404))
async def get_job(state: StateDep, caller: Viewer, job: JobIdPath) -> Response:
    """One job, with what it runs. Values of secrets are hidden; those of envs are for its user and admins.

    So are its scripts, where jobs run as their users.
    """
    known, task, snapshot = await find_request(state, job), await state.tasks.of(job), await state.snapshot()
    shown = job_as_json(snapshot, job, state.now_s())
    if shown is None:
        raise not_found(f"job {job}")
    more = {
        "quota_reserved": view_reserved(snapshot, job),
        "stands_for": emulated_gpu_types(task, known.gpus_per_replica, snapshot.node_types.values()),
        "endpoints": endpoints_of(task, state.deps.ports_at),
        "task": task if caller.owns(known.user) else without_values(task, with_scripts=state.deps.tenants is None),
    }
    return Response(b"%b,%b" % (shown[:-1], to_json(more)[1:]), media_type="application/json")


@router.patch("/{job}", response_model=Job, responses=problems(404, 409, *CHANGES))
async def patch_job(state: StateDep, caller: User, job: JobIdPath, patch: JobPatch) -> Response:
    """Another size, priority or queue; `wish` parks it, or lets it run again."""
    if not patch.model_dump(exclude_none=True):
        raise bad_input("nothing is to be changed", "nodes, min_nodes, max_nodes, auto, priority, queue, wish")
    if patch.auto and (patch.nodes, patch.min_nodes, patch.max_nodes) != (None, None, None):
        raise bad_input("auto and a size", "one of both")
    await find_request(state, job)
    task = await anyio.to_thread.run_sync(_stored_task, state, job)
    sizes = None if task is None else TaskSizes.of(task)
    await state.request(state.operations.patch(job, patch, sizes, caller), caller)
    return json_response(await find_job(state, job))


def _stored_task(state: AppState, job: str) -> Task | None:
    """Return the stored task of a job; None when it is not kept, or cannot be read any more."""
    stored = state.store.tasks.get(job)
    try:
        return task_from_json(stored) if stored else None
    except InputError:
        return None


@router.delete("/{job}", status_code=202, response_model=Job, responses=problems(404, 409, *CHANGES))
async def cancel_job(state: StateDep, caller: User, job: JobIdPath) -> Response:
    """Ends a job. It may take its grace period until it is over."""
    await find_request(state, job)
    await state.request(state.operations.cancel(job, caller), caller)
    return json_response(await find_job(state, job), 202)


@router.get(
    "/{job}/task",
    response_class=Response,
    responses={200: {"content": {"application/yaml": {"schema": {"type": "object"}}}}, **problems(404)},
)
async def get_task_file(state: StateDep, caller: Viewer, job: JobIdPath) -> Response:
    """A task file that makes the same job again.

    Values of secrets are null, and have to be given; so are those of envs, but for the job's user and admins. Where
    jobs run as their users, the file is for the job's user and admins.
    """
    shown = await find_readable_job(state, caller, job)
    task = await anyio.to_thread.run_sync(_stored_task, state, job)
    if task is None:
        raise HttpProblem(404, f"the task of job {job} is not kept")
    text = task_to_yaml(task, with_envs=caller.owns(shown["user"]))
    return Response(text, media_type="application/yaml")


@router.get("/{job}/explain", response_model=Explanation, responses=problems(404))
async def explain_job(state: StateDep, caller: Viewer, job: JobIdPath) -> Response:
    """Why it has what it has, and what happened to it so far."""
    shown, snapshot, task = await find_job(state, job), await state.snapshot(), await state.tasks.of(job)

    def explain() -> Response:
        with state.service.reading() as (world, _):
            tried = find_trial(world, job)
        return json_response(
            {
                "job": job,
                "state": shown["state"],
                "reason": shown["reason"],
                "quota_reserved": view_reserved(snapshot, job),
                "ahead": ahead_of(snapshot, job),
                "story": state.stories.of(job),
                "expected": shown["expected"],
                "size_choice": shown["size_choice"],
                "stands_for": emulated_gpu_types(task, shown["gpus"]["per_node"], snapshot.node_types.values()),
                "endpoints": endpoints_of(task, state.deps.ports_at),
                "checkpoint": shown["checkpoint"],
                "trial": None if tried is None else view_trial(tried),
                **_start_of(state, job, waits=shown["gpus"]["now"] == 0),
            }
        )

    return await anyio.to_thread.run_sync(explain)


def _start_of(state: AppState, job: str, *, waits: bool) -> JsonObject:
    found = None if state.forecasts is None or not waits else state.forecasts.last_of(job)
    if found is None:
        return {"start": None, "start_coarse": False}
    moments = (("p50_s", found.start_p50_s), ("p90_s", found.start_p90_s))
    start = {name: value if math.isfinite(value) else None for name, value in moments}
    return {"start": start, "start_coarse": found.coarse}


@router.get("/{job}/suggestions", response_model=Suggestions, responses=problems(404))
async def suggest_changes(state: StateDep, caller: Viewer, job: JobIdPath) -> Response:
    """The smallest changes that would start it now, each tried out; empty for a job that does not wait."""
    await find_request(state, job)
    ends_s = await _forecast_ends_s(state, job)
    found = await anyio.to_thread.run_sync(suggestions_for, state, job, ends_s, limiter=state.slow_questions)
    return json_response({"suggestions": found})


@router.get("/{job}/events", response_model=JobEvents, responses=problems(404))
async def list_job_events(
    state: StateDep,
    caller: Viewer,
    job: JobIdPath,
    limit: Limit = 1_000,
    cursor: Annotated[str, Query(pattern="^[0-9]{0,16}$")] = "",
) -> Response:
    """What the journal has of it, the oldest first."""
    await find_request(state, job)

    def page() -> Response:
        texts = state.journal.texts_of_job(job, int(cursor or 0), limit)
        events = [with_seq(public_event(text)) for text in texts]
        return json_response({"events": events, "next": str(texts[-1].seq) if len(texts) == limit else None})

    return await anyio.to_thread.run_sync(page)


@router.get("/{job}/progress", response_model=ProgressCurve, responses=problems(404))
async def get_progress(
    state: StateDep, caller: Viewer, job: JobIdPath, points: Annotated[int, Query(ge=1, le=5_000)] = 500
) -> Response:
    """What its script reported, thinned evenly."""
    await find_readable_job(state, caller, job)
    path = state.deps.files.progress_path(job)
    is_tenants = state.deps.tenants is not None
    found = await anyio.to_thread.run_sync(partial(read_progress_curve, path, points, is_tenants=is_tenants))
    return json_response({"points": found})


@router.get("/{job}/gpu-use", response_model=GpuUse, responses=problems(404))
async def get_gpu_use(state: StateDep, caller: Viewer, job: JobIdPath) -> Response:
    """How busy its GPUs were over time, as the server measured it."""
    await find_request(state, job)
    return json_response({"points": state.timeline.use(job)})


@router.get("/{job}/result", response_model=Result, responses=problems(404))
async def get_result(state: StateDep, caller: Viewer, job: JobIdPath) -> Response:
    """What it returned."""
    await find_readable_job(state, caller, job)
    stored = await anyio.to_thread.run_sync(state.store.results.get, job)
    if stored is None:
        raise HttpProblem(404, f"job {job} has not given a result")
    try:
        value: Any = json.loads(stored)
    except ValueError:
        value = stored
    return json_response({"value": value})


MAX_PROGRESS_BYTES = 4 << 20
_BLOCK_BYTES = 8 << 10
_WINDOW = 5  # reports over which speed is measured


def read_progress_curve(path: Path, points: int, *, is_tenants: bool = False) -> list[dict[str, Any]]:
    """Return at most `points` reports, in the order of the file, with the first and the last one.

    `is_tenants`: the file has to belong to the user whose folder it is in. The server may read what that user may not.
    """
    try:
        owner = os.stat(path.parent).st_uid if is_tenants else None
    except OSError:
        return []
    parts = (path.with_name(path.name + ".1"), path)
    read = (parse_line(line) for part in parts for line in _lines(part, owner))
    reports = [report for report in read if report is not None and not report.is_checkpoint]
    # All ranks do the same steps.
    lowest = min((report.rank or 0 for report in reports), default=0)
    own = [report for report in reports if (report.rank or 0) == lowest]
    return [_point(own, k) for k in thin(range(len(own)), points)]


def thin(numbers: Sequence[int], points: int) -> list[int]:
    count = len(numbers)
    if count <= points:
        return list(numbers)
    if points == 1:
        return [numbers[-1]]
    return [numbers[round(k * (count - 1) / (points - 1))] for k in range(points)]


def _lines(path: Path, owner: int | None) -> Iterator[bytes]:
    try:
        file = open_regular(path, owner)
    except OSError:
        return
    try:
        found = os.fstat(file)
        size = found.st_size
        if not stat.S_ISREG(found.st_mode):
            return
        if size <= MAX_PROGRESS_BYTES:
            yield from os.pread(file, size, 0).splitlines()
            return
        blocks = MAX_PROGRESS_BYTES // _BLOCK_BYTES
        for k in range(blocks):
            begin = k * (size - _BLOCK_BYTES) // (blocks - 1)
            lines = os.pread(file, _BLOCK_BYTES, begin).split(b"\n")
            # Cut off on both sides, but at the ends of the file.
            yield from lines[0 if begin == 0 else 1 : None if k == blocks - 1 else -1]
    finally:
        os.close(file)


def _point(reports: list[ProgressReport], k: int) -> JsonObject:
    speed = _speed(reports[max(0, k - _WINDOW) : k + 1])
    return filled(a.ProgressPoint, reports[k], samples_per_s=speed, metrics=dict(reports[k].metrics))


def _speed(window: list[ProgressReport]) -> float | None:
    """Return the samples per second over the last reports of the same run."""
    last = window[-1]
    if last.samples is None or last.time_s is None:
        return None
    for first in window[:-1]:
        if first.restart != last.restart or first.samples is None or first.time_s is None:
            continue
        if last.time_s > first.time_s and last.samples >= first.samples:
            return (last.samples - first.samples) / (last.time_s - first.time_s)
    return None


_log = logging.getLogger(__name__)


def suggestions_for(state: AppState, job: str, ends_s: Mapping[JobId, float]) -> list[dict[str, Any]]:
    """Return the changes that would start a job now. It takes several cycles: not for the event loop."""
    world, deps = state.service.fork(), state.deps
    policy, now_s = world.policy or deps.policy, max(state.now_s(), world.now_s)
    found = suggest(world, now_s, job, lambda: deps.rules_of(policy))
    return [_view_suggestion(one, _within_s(one, ends_s, now_s)) for one in found]


async def _forecast_ends_s(state: AppState, job: str) -> Mapping[JobId, float]:
    """Return when jobs end, by the forecast of `GET /eta`; empty where there is none."""
    snapshot = await state.snapshot()
    if state.forecasts is None or job not in snapshot.keys:
        return {}
    policy = snapshot.policy or state.deps.policy
    try:
        found = await state.forecasts.forecast(
            snapshot.version,
            policy,
            state.now_s(),
            expects_arrivals=True,
            job=job,
            within_s=usual_wait_s(len(snapshot.jobs)),
        )
    except Exception as error:
        _log.warning("no forecast is available: %s", error)
        return {}
    return {one.job: one.finish_p50_s for one in found.jobs if math.isfinite(one.finish_p50_s)}


def _within_s(found: Suggestion, ends_s: Mapping[JobId, float], now_s: float) -> float | None:
    """Return when a change comes about by itself: when the last job that it waits for has ended."""
    ending = [event.job for event in found.events if isinstance(event, JobEnded)]
    if found.within_s is None or not all(job in ends_s for job in ending):
        return found.within_s
    return max(0.0, *(ends_s[job] - now_s for job in ending))


def _view_suggestion(found: Suggestion, within_s: float | None) -> JsonObject:
    facts = dict(found.facts)
    return filled(a.SuggestedChange, found, code=found.remedy.name, sentence=str(found), facts=facts, within_s=within_s)
