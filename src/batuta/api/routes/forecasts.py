"""`/eta` and `/whatif`: forecasts and what-if comparisons, computed beside the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import anyio.to_thread
from fastapi import APIRouter, Query, Response

from batuta.api.auth import User, Viewer
from batuta.api.forecast_cache import ForecastCache
from batuta.api.models import EtaAnswer, WhatIfAnswer
from batuta.api.request_models import Submit, WhatIfPost
from batuta.api.responses import HttpProblem, json_response, not_found, unprocessable
from batuta.api.routes import problems
from batuta.api.routes.submit import overrides_of, paths_of, text_of
from batuta.api.state import AppState, StateDep
from batuta.backends.sim.forecast.forecast import Forecast, JobForecast
from batuta.backends.sim.forecast.queries import Comparison, Hypothesis, JobOutcome, Outcome, WhatIfQuery
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import Job, JobId
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.spec.cluster import parse_cluster_string
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import read_quota_texts
from batuta.spec.problem import InputError, Problem, did_you_mean
from batuta.spec.task import Task, parse_task
from batuta.spec.task_paths import PathRules

JobOf: TypeAlias = Callable[[World, Task, int], Job]
"""Makes the job of a task, if it could ever run in such a World; the number distinguishes several."""
T = TypeVar("T")


@dataclass(slots=True)
class _ProblemCollector:
    """Collects the problems of several parts of a request."""

    problems: list[Problem] = field(default_factory=list)

    def attempt(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except InputError as error:
            self.problems += error.problems
            return None


def read_hypothesis(world: World, asked: WhatIfPost, job_of: JobOf, paths: PathRules) -> Hypothesis:
    """Return the hypothesis of a request. Raises InputError with every problem.

    It changes the World: nodes and quota are applied to it, so that tasks which need them fit.
    """
    reading, now_s = _ProblemCollector(), world.now_s
    nodes = reading.attempt(lambda: _added_nodes(world, asked.add_nodes)) if asked.add_nodes else ()
    quota = reading.attempt(lambda: _merged_quota(world.quota, asked)) if asked.quota else None
    unknown = [name for name in asked.drain if name not in world.nodes.index]
    reading.problems += [
        Problem(f"there is no node {name}", fix=did_you_mean(name, list(world.nodes.index))) for name in unknown
    ]
    for node in nodes or ():
        apply(world, ev.NodeAdded(now_s, node))
    if quota is not None:
        apply(world, ev.QuotaSet(now_s, quota))
    jobs = [
        reading.attempt(partial(_hypothetical_job, world, one, number, job_of, paths))
        for number, one in enumerate(asked.submit, start=1)
    ]
    if reading.problems:
        raise InputError(reading.problems)
    made = tuple(job for job in jobs if job is not None)
    return Hypothesis(tuple(nodes or ()), quota, made, tuple(dict.fromkeys(asked.drain)))


def _added_nodes(world: World, text: str) -> Sequence[Node]:
    """Return new nodes, under unused names."""
    found, number = list[Node](), 0
    for node in parse_cluster_string(text):
        while (name := f"added-{number}") in world.nodes.index:
            number += 1
        number += 1
        found.append(replace(node, name=name))
    return found


def _merged_quota(quota: Quota, asked: WhatIfPost) -> Quota:
    return merge(quota, read_quota_texts([(file.name, file.text) for file in asked.quota]))


def _hypothetical_job(world: World, asked: Submit, number: int, job_of: JobOf, paths: PathRules) -> Job:
    task = parse_task(text_of(asked), asked.file, overrides_of(asked), paths_of(asked, paths))
    job = job_of(world, task, number)
    # Without trial runs: the question is about a job that is queued at once.
    return replace(job, id=f"new-{number}", sequence=number, trial=None)


router = APIRouter(tags=["foresight"])


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
) -> Response:
    """When jobs start and finish, as quantiles. An answer may be some seconds old."""
    forecasts, snapshot = _forecasts_of(state), await state.snapshot()
    if job is not None and job not in snapshot.rows:
        raise not_found(f"job {job} that is not over")
    policy = snapshot.policy or state.deps.policy

    def compute() -> Forecast:
        return forecasts.forecast(snapshot.version, policy, state.now_s(), expects_arrivals=arrivals, job=job)

    found = await anyio.to_thread.run_sync(_answer_or_503, compute)
    seen = {one.id: JobLabel(one.name, state.value) for one, state in zip(snapshot.jobs, snapshot.states, strict=True)}
    return json_response(view_forecast(found, seen, policy, job))


@router.post("/whatif", response_model=WhatIfAnswer, responses=problems(400, 404, 413, 503))
async def ask_what_if(state: StateDep, caller: User, post: WhatIfPost) -> Response:
    """What a change would do to every job. Nothing is changed."""
    snapshot = await state.snapshot()
    policy = snapshot.policy or state.deps.policy
    if state.deps.foresight is None:
        raise not_found("foresight at this server")
    foresight = state.deps.foresight

    def compute() -> tuple[WhatIfQuery, Comparison]:
        fork = state.fork()
        question = _question(state, fork, post, policy, caller.user)
        found = foresight(fork, question)
        assert isinstance(found, Comparison)
        return question, found

    question, found = await anyio.to_thread.run_sync(_answer_or_503, compute)
    names = {job.id: job.name for job in (*snapshot.jobs, *question.hypothesis.jobs)}
    return json_response(view_comparison(found, names, question))


def _question(state: AppState, fork: World, post: WhatIfPost, policy: str, user: str) -> WhatIfQuery:
    """Return the question of a request, or raise all its problems."""
    found, wrong = Hypothesis(), list[Problem]()
    try:
        found = read_hypothesis(fork.fork(), post, _job_of(state, user), state.deps.paths)
    except InputError as error:
        wrong += error.problems
    if post.policy is not None:
        try:
            state.deps.check_policy(post.policy)
        except InputError as error:
            wrong += error.problems
        except (LookupError, ValueError, RuntimeError) as error:
            wrong.append(Problem(str(error.args[0]) if error.args else repr(error)))
    if wrong:
        raise unprocessable(InputError(wrong))
    now_s = max(state.now_s(), fork.now_s)
    return WhatIfQuery(now_s, policy, post.policy or "", found, post.expects_arrivals, post.seed)


def _job_of(state: AppState, user: str) -> JobOf:
    def make(world: World, task: Task, number: int) -> Job:
        return state.operations.fitting_job(world, task, user, number, max(state.now_s(), world.now_s))

    return make


def _forecasts_of(state: AppState) -> ForecastCache:
    if state.forecasts is None:
        raise not_found("foresight at this server")
    return state.forecasts


def _answer_or_503(compute: Any) -> Any:
    """Return the answer; 503 when it cannot be computed."""
    try:
        return compute()
    except (InputError, HttpProblem):
        raise
    except Exception as error:
        raise HttpProblem(503, f"no forecast is available just now: {error}") from error


# ------------------------------------------------------------------------------------------------------ views


def view_forecast(found: Forecast, seen: Mapping[JobId, JobLabel], policy: str, job: str | None) -> dict[str, Any]:
    """Return a forecast as JSON, for the jobs that are still alive."""
    jobs = [view_eta(one, *seen[one.job]) for one in found.jobs if one.job in seen and job in (None, one.job)]
    return {
        "now_s": found.now_s,
        "policy": policy,
        "runs": found.runs,
        "precision": found.effort.precision,
        "assumes": list(found.notes),
        "jobs": jobs,
    }


def view_eta(one: JobForecast, name: str, state: str) -> dict[str, Any]:
    return {
        "id": one.job,
        "name": name,
        "state": state,
        "start": {"p50_s": one.start_p50_s, "p90_s": one.start_p90_s},
        "finish": {"p50_s": one.finish_p50_s, "p90_s": one.finish_p90_s},
        "why": one.why,
    }


def view_comparison(found: Comparison, names: dict[str, str], question: WhatIfQuery) -> dict[str, Any]:
    totals = {name: _change(found.before, found.after, name) for name in _TOTALS}
    return {
        "now_s": found.now_s,
        "policy": question.policy,
        "changed_policy": question.changed_policy or question.policy,
        "runs": found.runs,
        "assumes": list(found.notes),
        **totals,
        "jobs": [_view_outcome(one, names.get(one.job, "")) for one in found.jobs],
    }


def _change(before: Outcome, after: Outcome, name: str) -> dict[str, float]:
    return {"before": getattr(before, name), "after": getattr(after, name)}


def _view_outcome(one: JobOutcome, name: str) -> dict[str, Any]:
    pairs = {
        field: dict(zip(("before", "after"), getattr(one, field), strict=True))
        for field in ("jct_s", "wait_s", "fairness")
    }
    return {"id": one.job, "name": name, **pairs}
