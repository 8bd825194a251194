"""Looking ahead from a state directory whose server does not run: the World is what its journal tells."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from batuta.api.foresight import Seen, view_comparison, view_forecast
from batuta.api.foresight_models import WhatIfPost
from batuta.api.hypothesis import read_hypothesis
from batuta.api.plain_json import to_json
from batuta.api.quota_fit import check_quota
from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE
from batuta.backends.sim.foresight.forecast import Forecast
from batuta.backends.sim.foresight.questions import EtaQuestion, WhatIfQuestion
from batuta.backends.sim.foresight.whatif import Comparison, Hypothesis
from batuta.bootstrap import find_policy
from batuta.bootstrap.foresight import answer
from batuta.bootstrap.local_server import DEFAULT_POLICY
from batuta.client.errors import ClientError, UnknownJobError
from batuta.core.job import Job
from batuta.core.world import World
from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task
from batuta.spec.task_fit import check_fits
from batuta.spec.task_job import task_to_job
from batuta.spec.task_paths import PathRules
from batuta.spec.task_priority import with_class_priority
from batuta.store.address import open_reader
from batuta.store.errors import StoreError
from batuta.store.journal_reader import JournalReader
from batuta.store.recovery import recover
from batuta.store.snapshots import Snapshots


@contextmanager
def reading(home: Path) -> Iterator[tuple[JournalReader, Snapshots]]:
    """The journal of a state directory, which may be in use: nothing is written.

    Beside an operator that keeps it in PostgreSQL the directory has none, and its environment says where.
    """
    path, url = home / "journal.db", os.environ.get(JOURNAL_URL_VARIABLE, "")
    if not path.is_file() and not url:
        raise ClientError(f"{home} has no journal: no server was ever started there")
    try:
        database = open_reader(path if path.is_file() else url)
        try:
            journal = JournalReader(database)
            yield journal, Snapshots(database, journal)
        finally:
            database.close()
    except StoreError as error:
        raise ClientError(str(error)) from error


def stored_world(home: Path) -> World:
    """The World as it was when the last event was written."""
    with reading(home) as (journal, snapshots):
        return recover(journal, snapshots).world


def eta(home: Path, job: str | None, *, expects_arrivals: bool = True) -> dict[str, Any]:
    """As the API answers it."""
    world = stored_world(home)
    if job is not None:
        job = _find(world, job)
    policy = world.policy or DEFAULT_POLICY
    told = answer(world, EtaQuestion(world.now_s, policy, expects_arrivals))
    assert isinstance(told, Forecast)
    seen = {one.id: Seen(one.name, world.state_of(row).value) for row, one in enumerate(world.jobs.jobs)}
    return _plain(view_forecast(told, seen, policy, job))


def what_if(home: Path, body: dict[str, Any]) -> dict[str, Any]:
    """As the API answers it. InputError with all that is wrong with the question."""
    world = stored_world(home)
    try:
        post = WhatIfPost.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        raise InputError(
            [Problem(f"{'.'.join(map(str, one['loc']))}: {one['msg']}") for one in found]
        ) from None
    wrong, hypothesis = list[Problem](), Hypothesis()
    try:
        hypothesis = read_hypothesis(world.fork(), post, _job_of, PathRules(None, Path.home()))
    except InputError as error:
        wrong += error.problems
    if post.policy is not None:
        try:
            find_policy(post.policy)
        except InputError as error:
            wrong += error.problems
    if wrong:
        raise InputError(wrong)
    policy = world.policy or DEFAULT_POLICY
    question = WhatIfQuestion(
        world.now_s, policy, post.policy or "", hypothesis, post.expects_arrivals, post.seed
    )
    told = answer(world, question)
    assert isinstance(told, Comparison)
    names = {job.id: job.name for job in (*world.jobs.jobs, *hypothesis.jobs)}
    return _plain(view_comparison(told, names, question))


def _plain(shown: dict[str, Any]) -> dict[str, Any]:
    """As it would come through the API: what JSON has no word for is null."""
    plain: dict[str, Any] = json.loads(to_json(shown))
    return plain


def _find(world: World, wanted: str) -> str:
    found = [job.id for job in world.jobs.jobs if wanted in (job.id, job.name)]
    if not found:
        raise UnknownJobError(f"there is no job {wanted} that is not over")
    return wanted if wanted in found else found[-1]


def _job_of(world: World, task: Task, number: int) -> Job:
    task = with_class_priority(task, world.quota.priority_classes)
    job = task_to_job(task, f"new-{number}", world.now_s, sequence=number, nodes=world.nodes.nodes)
    if problems := check_fits(job, world.nodes.nodes) + check_quota(job, world.quota):
        raise InputError(problems)
    return job
