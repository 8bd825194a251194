"""Jobs: submit, list, look at, change, cancel."""

from __future__ import annotations

import json
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Response

from batuta.api.asked import JobPatch
from batuta.api.auth import User, Viewer
from batuta.api.desk import AtDesk, Desk
from batuta.api.event_text import tell, with_seq
from batuta.api.job_pages import page_of_jobs
from batuta.api.job_query import JobQuery
from batuta.api.models import (
    Explanation,
    Job,
    JobEvents,
    JobPage,
    JobWithTask,
    ProgressCurve,
    Result,
    Suggestions,
)
from batuta.api.plain_json import answer
from batuta.api.problems import Refusal, bad_input, not_found
from batuta.api.progress_curve import read_curve
from batuta.api.queue_view import ahead_of, view_reserved
from batuta.api.routes import CHANGES, JobIdPath, Limit, problems
from batuta.api.suggestions import suggestions_for
from batuta.api.trials import find_trial, view_trial
from batuta.api.views import Shown, view_job
from batuta.spec.problem import InputError
from batuta.spec.task_json import task_from_json

router = APIRouter(prefix="/jobs", tags=["jobs"])
_MANY = 20_000
"""Beyond so many jobs a list is made in another thread, so that nobody waits for it."""


async def find(desk: Desk, job: str) -> Shown:
    """The job as it is now, or 404."""
    shown = view_job(await desk.look(), job, desk.now_s())
    if shown is None:
        raise not_found(f"job {job}")
    return shown


@router.get("", response_model=JobPage, responses=problems())
async def list_jobs(desk: AtDesk, who: Viewer, query: Annotated[JobQuery, Query()]) -> Response:
    """Jobs that are alive and those that are over, by submit time."""
    picture, wanted = await desk.look(), query.filter()

    def page() -> Response:
        newest = query.order == "newest"
        return answer(
            page_of_jobs(picture, wanted, query.cursor, query.limit, newest=newest, now_s=desk.now_s())
        )

    is_long = len(picture.jobs) + len(picture.past) > _MANY
    return await anyio.to_thread.run_sync(page) if is_long else page()


@router.get("/{job}", response_model=JobWithTask, responses=problems(404))
async def get_job(desk: AtDesk, who: Viewer, job: JobIdPath) -> Response:
    """One job, with what it runs. Values of secrets are hidden."""
    shown, reserved = await find(desk, job), view_reserved(await desk.look(), job)
    return answer({**shown, "quota_reserved": reserved, "task": await desk.tasks.of(job)})


@router.patch("/{job}", response_model=Job, responses=problems(404, 409, *CHANGES))
async def patch_job(desk: AtDesk, who: User, job: JobIdPath, patch: JobPatch) -> Response:
    """Another size, priority or queue; `wish` parks it, or lets it run again."""
    if not patch.model_dump(exclude_none=True):
        raise bad_input("nothing is to be changed", "nodes, min_nodes, max_nodes, priority, queue, wish")
    await find(desk, job)
    legal = await anyio.to_thread.run_sync(_legal_nodes, desk, job)
    await desk.ask(desk.operations.patch(job, patch, legal, who))
    return answer(await find(desk, job))


def _legal_nodes(desk: Desk, job: str) -> tuple[int, ...] | None:
    """The sizes that the task can have; None when all will do, or nothing is known of it."""
    stored = desk.store.tasks.get(job)
    try:
        return task_from_json(stored).elastic.legal_sizes if stored else None
    except InputError:
        return None


@router.delete("/{job}", status_code=202, response_model=Job, responses=problems(404, 409, *CHANGES))
async def cancel_job(desk: AtDesk, who: User, job: JobIdPath) -> Response:
    """Ends a job. It may take its grace period until it is over."""
    await find(desk, job)
    await desk.ask(desk.operations.cancel(job, who))
    return answer(await find(desk, job), 202)


@router.get("/{job}/explain", response_model=Explanation, responses=problems(404))
async def explain_job(desk: AtDesk, who: Viewer, job: JobIdPath) -> Response:
    """Why it has what it has, and what happened to it so far."""
    shown, picture = await find(desk, job), await desk.look()

    def tell() -> Response:
        with desk.service.reading() as (world, _):
            tried = find_trial(world, job)
        return answer(
            {
                "job": job,
                "state": shown["state"],
                "reason": shown["reason"],
                "quota_reserved": view_reserved(picture, job),
                "ahead": ahead_of(picture, job),
                "story": desk.stories.of(job),
                "expected": shown["expected"],
                "size_choice": shown["size_choice"],
                "trial": None if tried is None else view_trial(tried),
            }
        )

    return await anyio.to_thread.run_sync(tell)


@router.get("/{job}/suggestions", response_model=Suggestions, responses=problems(404))
async def suggest_changes(desk: AtDesk, who: Viewer, job: JobIdPath) -> Response:
    """The smallest changes that would start it now, each tried out; empty for a job that does not wait."""
    await find(desk, job)
    found = await anyio.to_thread.run_sync(suggestions_for, desk, job, limiter=desk.questions)
    return answer({"suggestions": found})


@router.get("/{job}/events", response_model=JobEvents, responses=problems(404))
async def list_job_events(
    desk: AtDesk,
    who: Viewer,
    job: JobIdPath,
    limit: Limit = 1_000,
    cursor: Annotated[str, Query(pattern="^[0-9]{0,16}$")] = "",
) -> Response:
    """What the journal has of it, the oldest first."""
    await find(desk, job)

    def page() -> Response:
        texts = desk.journal.texts_of_job(job, int(cursor or 0), limit)
        events = [with_seq(tell(text)) for text in texts]
        return answer({"events": events, "next": str(texts[-1].seq) if len(texts) == limit else None})

    return await anyio.to_thread.run_sync(page)


@router.get("/{job}/progress", response_model=ProgressCurve, responses=problems(404))
async def get_progress(
    desk: AtDesk, who: Viewer, job: JobIdPath, points: Annotated[int, Query(ge=1, le=5_000)] = 500
) -> Response:
    """What its script reported, thinned evenly."""
    await find(desk, job)
    found = await anyio.to_thread.run_sync(read_curve, desk.parts.files.progress_path(job), points)
    return answer({"points": found})


@router.get("/{job}/result", response_model=Result, responses=problems(404))
async def get_result(desk: AtDesk, who: Viewer, job: JobIdPath) -> Response:
    """What it returned."""
    await find(desk, job)
    stored = await anyio.to_thread.run_sync(desk.store.results.get, job)
    if stored is None:
        raise Refusal(404, f"job {job} has not given a result")
    try:
        value: Any = json.loads(stored)
    except ValueError:
        value = stored
    return answer({"value": value})
