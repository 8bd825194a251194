"""`POST /jobs`: submit a task file, or the task of an earlier job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import ValidationError

from batuta.api.auth import Caller, User
from batuta.api.models import Submitted
from batuta.api.operations import Submission, check_named_queue
from batuta.api.request_models import Submit
from batuta.api.responses import HttpProblem, json_response, not_found
from batuta.api.routes import CHANGES, problems
from batuta.api.state import AppState, StateDep
from batuta.api.views import view_dry_run, view_job
from batuta.backends.local.replica_plan import NO_IMAGES
from batuta.backends.local.tenants import WrongAccount
from batuta.spec.problem import InputError, Problem
from batuta.spec.skypilot_keys import ContainerSupport, endpoints
from batuta.spec.task import Task, parse_task
from batuta.spec.task_env import Overrides
from batuta.spec.task_job import DEFAULT_QUEUE
from batuta.spec.task_paths import PathRules
from batuta.spec.task_resources import emulated_types, is_without_class
from batuta.spec.task_serialization import task_from_json, task_to_json, task_with_overrides

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
        **problems(404, 409, 415, *CHANGES),
    },
    openapi_extra=_BODY,
)
async def submit_job(
    request: Request,
    state: StateDep,
    caller: User,
    dryrun: Annotated[bool, Query(description="only say what would become of it")] = False,
    idempotency_key: Annotated[
        str, Header(pattern=r"^[\x21-\x7e]{0,255}$", description="the same key and body make one job")
    ] = "",
) -> Response:
    """Makes a job of a task, or of that of another job. All problems of a bad one come at once."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise HttpProblem(415, f"a task comes as {', '.join(_KINDS)}; found {kind[:80] or 'nothing'}")
    body = await request.body()
    task, stored = await anyio.to_thread.run_sync(_read, state, caller, body, kind)
    if dryrun:
        return await _dry_run(state, task, caller)
    submission = Submission(task, stored, caller.user, caller=caller)
    if idempotency_key:
        submission.key = hashlib.sha256(f"{caller.user}\0{idempotency_key}".encode()).hexdigest()
        submission.digest = hashlib.sha256(kind.encode() + b"\0" + body).hexdigest()
    await state.request(state.operations.submit(submission), caller)
    shown = view_job(await state.snapshot(), submission.job, state.now_s())
    if shown is None:
        raise HttpProblem(409, f"this Idempotency-Key has made job {submission.job}, which is forgotten by now")
    status = 201 if submission.is_new else 200
    # A hop to another thread takes a millisecond, which most tasks do not need.
    usual = task.queue in ("", DEFAULT_QUEUE) and not task.priority_class
    notes = _task_notes(state, task) if usual else await anyio.to_thread.run_sync(_notes, state, task)
    notes += _emulation_note(task, shown["gpus"]["per_node"], (await state.snapshot()).node_types.values())
    return json_response({"job": shown, "notes": notes}, status, {"Location": f"/api/v1/jobs/{submission.job}"})


async def _dry_run(state: AppState, task: Task, caller: Caller) -> Response:
    def look() -> Response:
        with state.service.reading() as (world, _):
            job = state.operations.fitting_job(world, task, caller.user, 0, max(state.now_s(), world.now_s))
            state.operations.check_priority(world, job, caller)
            types = {node.gpu_type for node in world.nodes.nodes}
        notes = [*_notes(state, task), *_emulation_note(task, job.gpus_per_replica, types)]
        return json_response({"job": view_dry_run(job), "notes": notes})

    return await anyio.to_thread.run_sync(look)


def _emulation_note(task: Task, gpus_per_node: int, types: Collection[str]) -> list[str]:
    """Return a note if virtual GPUs emulate the types that the task asks for."""
    found = emulated_types(task.accelerators, gpus_per_node, types)
    return [f"virtual GPUs stand for {' or '.join(found)}"] if found else []


def _task_notes(state: AppState, task: Task) -> list[str]:
    """Return the notes of the task itself."""
    host = state.deps.ports_at
    if not (task.ports and host):
        return list(task.notes)
    return [*task.notes, f"ports: reached at {', '.join(endpoints(host, task.ports))} while the job runs"]


def _notes(state: AppState, task: Task) -> list[str]:
    """Return the notes for the user. An unknown queue was refused before, where there are queues."""
    notes = _task_notes(state, task)
    with state.service.reading() as (world, _):
        quota = world.quota
    if task.queue not in ("", DEFAULT_QUEUE) and not quota:
        notes.append(f"no queues are set up: {task.queue} has no limits (batuta queues apply)")
    if task.priority_class and not task.priority and is_without_class(task, quota.priority_classes):
        notes.append(f"no priority classes are set up: {task.priority_class} is not used (batuta queues apply)")
    return notes


def _read(state: AppState, caller: Caller, body: bytes, kind: str) -> tuple[Task, str]:
    """Return the task in a body, and its stored form."""
    task = _parse(state, caller, body, kind)
    try:
        return task, task_to_json(task)
    except ValueError:
        # Half of a character pair, which JSON can escape and no file can hold.
        raise InputError.of("a text of the task is not Unicode") from None


def _parse(state: AppState, caller: Caller, body: bytes, kind: str) -> Task:
    rules, images = task_rules(state, caller)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HttpProblem(400, f"the body is not UTF-8, from byte {error.start} on") from None
    if kind in _YAML:
        return parse_task(text, paths=rules, images=images)
    try:
        asked = Submit.model_validate_json(body)
    except ValidationError as error:
        # Without the values: they may be secrets.
        raise InputError(
            [
                Problem(f"{'.'.join(map(str, one['loc'])) or 'the body'}: {one['msg']}", file="body")
                for one in error.errors(include_input=False, include_url=False)
            ]
        ) from None
    overrides, rules = overrides_of(asked), paths_of(asked, rules)
    with state.service.reading() as (world, _):
        check_named_queue(overrides.queue, world.quota)
    if asked.like is not None:
        stored = _task_of(state, caller, asked.like)
        return task_with_overrides(stored, overrides, rules, f"job {asked.like}", images)
    return parse_task(text_of(asked), asked.file, overrides, rules, images=images)


def task_rules(state: AppState, caller: Caller) -> tuple[PathRules, Callable[[], ContainerSupport] | None]:
    """Return what a caller's task may name. Raises HttpProblem where jobs run as their users, and it cannot."""
    deps = state.deps
    if deps.only_submitter not in (None, caller.user):
        raise HttpProblem(
            403,
            f"all jobs of this server run as {deps.only_submitter}, and {caller.user}'s would: start it with --socket, "
            "so that each runs as its unix user, or with --jobs-run-as-me",
        )
    if deps.tenants is None:
        return deps.paths, deps.images
    try:
        account = deps.tenants.account(caller.user)
    except WrongAccount as problem:
        raise HttpProblem(403, str(problem)) from None
    if account is None:
        return deps.paths, deps.images
    # Not looked at by the server, which may read everything: the job itself finds out, as its user.
    return replace(deps.paths, home=Path(account.home), probe=None), lambda: ContainerSupport(NO_IMAGES)


def text_of(asked: Submit) -> str:
    """Return the task file of a submit as text."""
    return asked.task if isinstance(asked.task, str) else json.dumps(asked.task, ensure_ascii=False)


def overrides_of(asked: Submit) -> Overrides:
    return Overrides(**asked.overrides.model_dump()) if asked.overrides else Overrides()


def paths_of(asked: Submit, rules: PathRules) -> PathRules:
    """Return the rules for paths, with relative ones from where the client says."""
    if asked.base_dir is None:
        return rules
    beside = None if asked.file_dir is None else Path(asked.file_dir)
    return replace(rules, base=Path(asked.base_dir), beside=beside)


def _task_of(state: AppState, caller: Caller, job: str) -> Task:
    """Return the stored task of a job with its secrets, for its user or an admin."""
    with state.service.reading() as (world, _):
        past = world.past.get(job)
        if past is None and job not in world.jobs:
            raise not_found(f"job {job}")
        caller.check_owner(world.jobs.jobs[world.jobs.row(job)] if past is None else past.job)
    stored = state.store.tasks.get(job)
    if stored is None:
        raise HttpProblem(409, f"the task of job {job} is not kept: submit its task file again")
    return task_from_json(stored)
