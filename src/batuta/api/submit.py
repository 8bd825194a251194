"""Submitting a task: as a file, or with what a command line adds to it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import ValidationError

from batuta.api.asked import Submit
from batuta.api.auth import User, Who
from batuta.api.desk import AtDesk, Desk
from batuta.api.models import Submitted
from batuta.api.operations import Submission
from batuta.api.plain_json import answer
from batuta.api.problems import Refusal, refused_input
from batuta.api.routes import CHANGES, problems
from batuta.api.views import view_job, view_unborn
from batuta.spec.overrides import Overrides
from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task, parse_task
from batuta.spec.task_job import DEFAULT_QUEUE
from batuta.spec.task_json import task_to_json
from batuta.spec.task_priority import is_without_class

router = APIRouter(prefix="/jobs", tags=["jobs"])
_YAML = ("application/yaml", "text/yaml", "application/x-yaml", "text/x-yaml")
_KINDS = (*_YAML, "application/json")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Submit"}},
            "application/yaml": {"schema": {"type": "string", "description": "a task file"}},
        },
    }
}


@router.post(
    "",
    status_code=201,
    response_model=Submitted,
    responses={
        200: {"model": Submitted, "description": "a dry run, or the job that this key has made already"},
        **problems(409, 415, *CHANGES),
    },
    openapi_extra=_BODY,
)
async def submit_job(
    request: Request,
    desk: AtDesk,
    who: User,
    dryrun: Annotated[bool, Query(description="only say what would become of it")] = False,
    idempotency_key: Annotated[
        str, Header(pattern=r"^[\x21-\x7e]{0,255}$", description="the same key and body make one job")
    ] = "",
) -> Response:
    """Makes a job of a task. All problems of a bad one come at once."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise Refusal(415, f"a task comes as {', '.join(_KINDS)}; found {kind[:80] or 'nothing'}")
    body = await request.body()
    task, stored = await anyio.to_thread.run_sync(_read, desk, body, kind)
    if dryrun:
        return await _dry_run(desk, task, who)
    submission = Submission(task, stored, who.user)
    if idempotency_key:
        submission.key = hashlib.sha256(f"{who.user}\0{idempotency_key}".encode()).hexdigest()
        submission.digest = hashlib.sha256(kind.encode() + b"\0" + body).hexdigest()
    await desk.ask(desk.operations.submit(submission))
    shown = view_job(await desk.look(), submission.job, desk.now_s())
    if shown is None:
        raise Refusal(409, f"this Idempotency-Key has made job {submission.job}, which is forgotten by now")
    status = 201 if submission.is_new else 200
    # A hop to another thread takes a millisecond, which most tasks do not need.
    usual = task.queue in ("", DEFAULT_QUEUE) and not task.priority_class
    notes = list(task.notes) if usual else await anyio.to_thread.run_sync(_notes, desk, task)
    return answer({"job": shown, "notes": notes}, status, {"Location": f"/api/v1/jobs/{submission.job}"})


async def _dry_run(desk: Desk, task: Task, who: Who) -> Response:
    def look() -> Response:
        with desk.service.reading() as (world, _):
            job = desk.operations.fitting_job(world, task, who.user, 0, max(desk.now_s(), world.now_s))
        return answer({"job": view_unborn(job), "notes": _notes(desk, task)})

    return await anyio.to_thread.run_sync(look)


def _notes(desk: Desk, task: Task) -> list[str]:
    """What the user should know. Where there are queues, one that is unknown has been refused before."""
    notes = list(task.notes)
    if task.queue not in ("", DEFAULT_QUEUE):
        with desk.service.reading() as (world, _):
            if not world.quota:
                notes.append(f"no queues are set up: {task.queue} has no limits (batuta queues apply)")
    if task.priority_class and not task.priority:
        with desk.service.reading() as (world, _):
            if is_without_class(task, world.quota.priority_classes):
                notes.append(
                    f"no priority classes are set up: {task.priority_class} is not used (batuta queues apply)"
                )
    return notes


def _read(desk: Desk, body: bytes, kind: str) -> tuple[Task, str]:
    """The task in a body, and how it is stored."""
    task = _parse(desk, body, kind)
    return task, _stored(task)


def _parse(desk: Desk, body: bytes, kind: str) -> Task:
    rules = desk.parts.paths
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8, from byte {error.start} on") from None
    if kind in _YAML:
        return parse_task(text, paths=rules)
    try:
        asked = Submit.model_validate_json(body)
    except ValidationError as error:
        raise refused_input(
            InputError([_problem_of(one) for one in error.errors(include_input=False, include_url=False)])
        ) from None
    if asked.base_dir is not None:
        rules = replace(rules, base=Path(asked.base_dir))
    overrides = Overrides(**asked.overrides.model_dump()) if asked.overrides else Overrides()
    written = asked.task if isinstance(asked.task, str) else json.dumps(asked.task, ensure_ascii=False)
    return parse_task(written, asked.file, overrides, rules)


def _problem_of(error: Any) -> Problem:
    return Problem(f"{'.'.join(map(str, error['loc'])) or 'the body'}: {error['msg']}", file="body")


def _stored(task: Task) -> str:
    """The task as it is stored."""
    try:
        return task_to_json(task)
    except ValueError:
        # Half of a character pair, which JSON can escape and no file can hold.
        raise refused_input(InputError([Problem("a text of the task is not Unicode")])) from None
