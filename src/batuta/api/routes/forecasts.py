"""`/eta` and `/whatif`: forecasts and what-if comparisons, computed beside the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, NamedTuple, TypeAlias

import anyio.to_thread
from fastapi import APIRouter, Query, Response

from batuta.api.auth import Caller, User, Viewer
from batuta.api.forecast_cache import usual_wait_s
from batuta.api.models import EtaAnswer, WhatIfAnswer
from batuta.api.request_models import Submit, WhatIfPost
from batuta.api.responses import LATER, HttpProblem, json_response, not_found
from batuta.api.routes import problems
from batuta.api.routes.submit import overrides_of, paths_of, task_rules, text_of
from batuta.api.state import AppState, StateDep
from batuta.api.views import JsonObject, filled
from batuta.apitypes import forecasts as f
from batuta.backends.sim.forecast.forecast import Forecast, JobForecast
from batuta.backends.sim.forecast.queries import Comparison, Hypothesis, WhatIfQuery
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import Job, JobId
from batuta.core.world import World
from batuta.spec.cluster import parse_cluster_string
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import read_quota_texts
from batuta.spec.problem import InputError, Problem, collect_problems, did_you_mean, refuse
from batuta.spec.task import Task, parse_task
from batuta.spec.task_paths import PathRules

JobOf: TypeAlias = Callable[[World, Task, int], Job]
"""Makes the job of a task, if it could ever run in such a World; the number distinguishes several."""


def read_hypothesis(world: World, asked: WhatIfPost, job_of: JobOf, paths: PathRules) -> Hypothesis:
    """Return the hypothesis of a request. Raises InputError with every problem.

    It changes the World: nodes and quota are applied to it, so that tasks which need them fit.
    """
    problems, now_s = list[Problem](), world.now_s
    nodes, quota, jobs = list[Node](), None, list[Job]()
    with collect_problems(problems):
        nodes = _added_nodes(world, asked.add_nodes) if asked.add_nodes else []
    with collect_problems(problems):
        texts = [(file.name, file.text) for file in asked.quota]
        quota = merge(world.quota, read_quota_texts(texts)) if texts else None
    problems += [
        Problem(f"there is no node {name}", fix=did_you_mean(name, list(world.nodes.index)))
        for name in asked.drain
        if name not in world.nodes.index
    ]
    for node in nodes:
        apply(world, ev.NodeAdded(now_s, node))
    if quota is not None:
        apply(world, ev.QuotaSet(now_s, quota))
    for number, one in enumerate(asked.submit, start=1):
        with collect_problems(problems):
            jobs.append(_hypothetical_job(world, one, number, job_of, paths))
    refuse(problems)
    return Hypothesis(tuple(nodes), quota, tuple(jobs), tuple(dict.fromkeys(asked.drain)))


def _added_nodes(world: World, text: str) -> list[Node]:
    """Return new nodes, under unused names."""
    found, number = list[Node](), 0
    for node in parse_cluster_string(text):
        while (name := f"added-{number}") in world.nodes.index:
            number += 1
        number += 1
        found.append(replace(node, name=name))
    return found


def _hypothetical_job(world: World, asked: Submit, number: int, job_of: JobOf, paths: PathRules) -> Job:
    task = parse_task(text_of(asked), asked.file, overrides_of(asked), paths_of(asked, paths))
    job = job_of(world, task, number)
    # Without trial runs: the question is about a job that is queued at once.
    return replace(job, id=f"new-{number}", sequence=number, trial=None)


router = APIRouter(tags=["foresight"])
MAX_WAIT_S = 60.0
MAX_WHAT_IFS_WAITING = 8


class JobLabel(NamedTuple):
    """Name and state of a living job."""

    name: str
    state: str


_TOTALS = (
    *("jct_s", "wait_s", "fairness", "worst_fairness", "utilisation", "makespan_s"),
    *("restarts", "preemptions", "unfinished"),
)


@router.get("/eta", response_model=EtaAnswer, responses=problems(404, 503))
async def get_eta(
    state: StateDep,
    caller: Viewer,
    job: Annotated[str | None, Query(max_length=128, description="only this one")] = None,
    arrivals: Annotated[bool, Query(description="whether jobs keep coming as they did lately")] = True,
    within_s: Annotated[
        float | None, Query(ge=0, le=MAX_WAIT_S, description="how long to wait for a fine forecast")
    ] = None,
) -> Response:
    """When jobs start and finish, as quantiles. An answer may be some seconds old, or coarse; `assumes` says so."""
    forecasts, snapshot = state.forecasts, await state.snapshot()
    if forecasts is None:
        raise not_found("foresight at this server")
    if job is not None and job not in snapshot.keys:
        raise not_found(f"job {job} that is not over")
    policy = snapshot.policy or state.deps.policy
    within_s = usual_wait_s(len(snapshot.jobs)) if within_s is None else within_s
    with _unavailable_is_503():
        found = await forecasts.forecast(
            snapshot.version, policy, state.now_s(), expects_arrivals=arrivals, job=job, within_s=within_s
        )

    def view() -> Response:
        living = zip(snapshot.jobs, snapshot.states, strict=True)
        return json_response(
            view_forecast(found, {one.id: JobLabel(one.name, at.value) for one, at in living}, policy, job)
        )

    # Thousands of jobs take a while to write down.
    return await anyio.to_thread.run_sync(view)


@router.post("/whatif", response_model=WhatIfAnswer, responses=problems(400, 404, 413, 429, 503))
async def ask_what_if(state: StateDep, caller: User, post: WhatIfPost) -> Response:
    """What a change would do to every job. Nothing is changed."""
    snapshot = await state.snapshot()
    policy = snapshot.policy or state.deps.policy
    if state.deps.foresight is None:
        raise not_found("foresight at this server")
    foresight = state.deps.foresight

    def compute() -> Response:
        fork = state.fork()
        question = _question(state, fork, post, policy, caller)
        found = foresight(fork, question)
        assert isinstance(found, Comparison)
        names = {job.id: job.name for job in (*snapshot.jobs, *question.hypothesis.jobs)}
        return json_response(view_comparison(found, names, question))

    if state.what_ifs.statistics().tasks_waiting >= MAX_WHAT_IFS_WAITING:
        raise HttpProblem(429, f"{MAX_WHAT_IFS_WAITING} other comparisons are waiting to be computed", headers=LATER)
    with _unavailable_is_503():
        return await anyio.to_thread.run_sync(compute, limiter=state.what_ifs)


def _question(state: AppState, fork: World, post: WhatIfPost, policy: str, caller: Caller) -> WhatIfQuery:
    paths = task_rules(state, caller)[0] if post.submit else state.deps.paths
    found, wrong = Hypothesis(), list[Problem]()

    def job_of(world: World, task: Task, number: int) -> Job:
        return state.operations.fitting_job(world, task, caller.user, number, max(state.now_s(), world.now_s))

    with collect_problems(wrong):
        found = read_hypothesis(fork.fork(), post, job_of, paths)
    try:
        with collect_problems(wrong):
            if post.policy is not None:
                state.deps.check_policy(post.policy)
    except (LookupError, ValueError, RuntimeError) as error:
        wrong.append(Problem(str(error.args[0]) if error.args else repr(error)))
    refuse(wrong)
    now_s = max(state.now_s(), fork.now_s)
    return WhatIfQuery(now_s, policy, post.policy or "", found, post.expects_arrivals, seed=post.seed)


@contextmanager
def _unavailable_is_503() -> Iterator[None]:
    try:
        yield
    except (InputError, HttpProblem):
        raise
    except Exception as error:
        raise HttpProblem(503, f"no forecast is available just now: {error}") from error


def view_forecast(found: Forecast, seen: Mapping[JobId, JobLabel], policy: str, job: str | None) -> JsonObject:
    """Return a forecast as JSON, for the jobs that are still alive."""
    jobs = [view_eta(one, *seen[one.job]) for one in found.jobs if one.job in seen and job in (None, one.job)]
    precision, assumes = found.effort.precision, list(found.notes)
    return filled(f.EtaAnswer, found, policy=policy, precision=precision, assumes=assumes, jobs=jobs)


def view_eta(one: JobForecast, name: str, state: str) -> JsonObject:
    start, finish = (
        {"p50_s": getattr(one, f"{moment}_p50_s"), "p90_s": getattr(one, f"{moment}_p90_s")}
        for moment in ("start", "finish")
    )
    return {"id": one.job, "name": name, "state": state, "start": start, "finish": finish} | {
        "why": one.why,
        "coarse": one.coarse,
    }


def view_comparison(found: Comparison, names: dict[str, str], question: WhatIfQuery) -> JsonObject:
    return {
        "now_s": found.now_s,
        "policy": question.policy,
        "changed_policy": question.changed_policy or question.policy,
        "runs": found.runs,
        "assumes": list(found.notes),
        **{name: _change((getattr(found.before, name), getattr(found.after, name))) for name in _TOTALS},
        "jobs": [
            {"id": one.job, "name": names.get(one.job, "")}
            | {field: _change(getattr(one, field)) for field in ("jct_s", "wait_s", "fairness")}
            for one in found.jobs
        ],
    }


def _change(pair: Iterable[float | None]) -> JsonObject:
    return dict(zip(("before", "after"), pair, strict=True))
