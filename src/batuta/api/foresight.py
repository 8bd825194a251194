"""When jobs will start and finish, and what a change would do: computed beside the engine, not by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import anyio.to_thread
from fastapi import APIRouter, Query, Response

from batuta.api.auth import User, Viewer
from batuta.api.desk import AtDesk, Desk
from batuta.api.foreseen import Foreseen
from batuta.api.foresight_models import EtaAnswer, WhatIfAnswer, WhatIfPost
from batuta.api.hypothesis import JobOf, read_hypothesis
from batuta.api.plain_json import answer
from batuta.api.problems import Refusal, not_found, refused_input
from batuta.api.routes import problems
from batuta.backends.sim.foresight.forecast import Forecast, JobForecast
from batuta.backends.sim.foresight.questions import WhatIfQuestion
from batuta.backends.sim.foresight.whatif import Comparison, Hypothesis, JobOutcome, Outcome
from batuta.core.job import Job, JobId
from batuta.core.world import World
from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task

router = APIRouter(tags=["foresight"])


class Seen(NamedTuple):
    """What people know a living job by."""

    name: str
    state: str


_TOTALS = (
    *("jct_s", "wait_s", "fairness", "worst_fairness", "utilisation", "makespan_s"),
    *("restarts", "preemptions", "unfinished"),
)


@router.get("/eta", response_model=EtaAnswer, responses=problems(404, 503))
async def get_eta(
    desk: AtDesk,
    who: Viewer,
    job: Annotated[str | None, Query(max_length=128, description="only this one")] = None,
    arrivals: Annotated[bool, Query(description="whether jobs keep coming as they did lately")] = True,
) -> Response:
    """When jobs start and finish, as quantiles. An answer may be some seconds old."""
    foreseen, picture = _foreseen(desk), await desk.look()
    if job is not None and job not in picture.rows:
        raise not_found(f"job {job} that is not over")
    policy = picture.policy or desk.parts.policy

    def look() -> Forecast:
        return foreseen.forecast(picture.version, policy, desk.now_s(), expects_arrivals=arrivals, job=job)

    told = await anyio.to_thread.run_sync(_asked, look)
    seen = {
        one.id: Seen(one.name, state.value) for one, state in zip(picture.jobs, picture.states, strict=True)
    }
    return answer(view_forecast(told, seen, policy, job))


@router.post("/whatif", response_model=WhatIfAnswer, responses=problems(400, 404, 413, 503))
async def ask_what_if(desk: AtDesk, who: User, post: WhatIfPost) -> Response:
    """What a change would do to every job. Nothing is changed."""
    picture = await desk.look()
    policy = picture.policy or desk.parts.policy
    if desk.parts.foresight is None:
        raise not_found("foresight at this server")
    foresight = desk.parts.foresight

    def look() -> tuple[WhatIfQuestion, Comparison]:
        fork = desk.fork()
        question = _question(desk, fork, post, policy, who.user)
        found = foresight(fork, question)
        assert isinstance(found, Comparison)
        return question, found

    question, told = await anyio.to_thread.run_sync(_asked, look)
    names = {job.id: job.name for job in (*picture.jobs, *question.hypothesis.jobs)}
    return answer(view_comparison(told, names, question))


def _question(desk: Desk, fork: World, post: WhatIfPost, policy: str, user: str) -> WhatIfQuestion:
    """What is asked, or all that is wrong with it."""
    found, wrong = Hypothesis(), list[Problem]()
    try:
        found = read_hypothesis(fork.fork(), post, _job_of(desk, user), desk.parts.paths)
    except InputError as error:
        wrong += error.problems
    if post.policy is not None:
        try:
            desk.parts.check_policy(post.policy)
        except InputError as error:
            wrong += error.problems
        except (LookupError, ValueError, RuntimeError) as error:
            wrong.append(Problem(str(error.args[0]) if error.args else repr(error)))
    if wrong:
        raise refused_input(InputError(wrong))
    now_s = max(desk.now_s(), fork.now_s)
    return WhatIfQuestion(now_s, policy, post.policy or "", found, post.expects_arrivals, post.seed)


def _job_of(desk: Desk, user: str) -> JobOf:
    def make(world: World, task: Task, number: int) -> Job:
        return desk.operations.fitting_job(world, task, user, number, max(desk.now_s(), world.now_s))

    return make


def _foreseen(desk: Desk) -> Foreseen:
    if desk.foreseen is None:
        raise not_found("foresight at this server")
    return desk.foreseen


def _asked(look: Any) -> Any:
    """The answer; that there is none is no fault of who asked."""
    try:
        return look()
    except (InputError, Refusal):
        raise
    except Exception as error:
        raise Refusal(503, f"nobody can look ahead just now: {error}") from error


# ------------------------------------------------------------------------------------------------------ views


def view_forecast(told: Forecast, seen: Mapping[JobId, Seen], policy: str, job: str | None) -> dict[str, Any]:
    """Of jobs that are still alive: some may have ended since it was looked ahead."""
    jobs = [view_eta(one, *seen[one.job]) for one in told.jobs if one.job in seen and job in (None, one.job)]
    return {
        "now_s": told.now_s,
        "policy": policy,
        "runs": told.runs,
        "precision": told.effort.precision,
        "assumes": list(told.notes),
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


def view_comparison(told: Comparison, names: dict[str, str], question: WhatIfQuestion) -> dict[str, Any]:
    totals = {name: _change(told.before, told.after, name) for name in _TOTALS}
    return {
        "now_s": told.now_s,
        "policy": question.policy,
        "changed_policy": question.changed_policy or question.policy,
        "runs": told.runs,
        "assumes": list(told.notes),
        **totals,
        "jobs": [_view_outcome(one, names.get(one.job, "")) for one in told.jobs],
    }


def _change(before: Outcome, after: Outcome, name: str) -> dict[str, float]:
    return {"before": getattr(before, name), "after": getattr(after, name)}


def _view_outcome(one: JobOutcome, name: str) -> dict[str, Any]:
    pairs = {
        field: dict(zip(("before", "after"), getattr(one, field), strict=True))
        for field in ("jct_s", "wait_s", "fairness")
    }
    return {"id": one.job, "name": name, **pairs}
