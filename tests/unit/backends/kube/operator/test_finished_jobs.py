"""UnifiedJobs that are over: the operator forgets them, and their objects stay for as long as users want."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from batuta.backends.kube.client import kinds
from batuta.backends.kube.operator.cache import FinishedJobs
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.backends.kube.unified_job.model import UNIFIED_JOB
from batuta.bootstrap.operator_leader import Leader
from batuta.core.event import JobForgotten, JobSubmitted
from batuta.engine import retention
from batuta.engine.history import History
from batuta.store.store import open_store
from tests.support.kube.offline_cluster import NAMESPACE, OfflineCluster, leading, run_jobs
from tests.support.local_replicas import wait_until

pytestmark = pytest.mark.slow
MANY, KEPT = 60, 10
KEEP = OperatorConfig.model_validate({"retention": {"jobs": KEPT}})
NAMES = [f"training-{number:03}" for number in range(MANY)]
PATIENCE_S = 60.0
SKIPPED = (ModuleType, type, FunctionType, OfflineCluster, FinishedJobs, History)
"""Not looked into: settled jobs are known by name, from the last ones that ended is learned."""


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operator does every ten seconds it does all the time."""
    monkeypatch.setattr(retention, "_LOOK_EVERY_S", 0.0)


@contextmanager
def after_many_jobs(folder: Path) -> Iterator[tuple[OfflineCluster, Leader]]:
    """An operator under which many UnifiedJobs have come and ended, and that keeps ten of them in mind."""
    cluster = OfflineCluster(folder)
    with leading(cluster, folder / "state", KEEP) as leader:
        run_jobs(cluster, leader, NAMES)

        def is_quiet() -> bool:
            leader.backend.wake()
            return not leader.backend.reconciler.runs and len(leader.world.past) == KEPT

        wait_until(is_quiet, PATIENCE_S, what="all that can be forgotten is forgotten")
        yield cluster, leader


def names_within(*roots: object) -> set[str]:
    """The jobs whose names can be found in any text that is reached from some objects."""
    found, seen, waiting = set[str](), set[int](), list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, SKIPPED):
            continue
        seen.add(id(one))
        if isinstance(one, str):
            found.update(re.findall(r"training-\d{3}", one))
        else:
            # Objects of the API server are hidden from the collector of garbage.
            fields = getattr(one, "__struct_fields__", ())
            waiting.extend([*gc.get_referents(one), *(getattr(one, field) for field in fields)])
    return found


def _left(leader: Leader) -> set[str]:
    """Jobs that are forgotten, and of which something is left."""
    with leader.service.reading() as (world, _):
        found = names_within(world, leader.backend, leader.gang_binder, leader.listening, leader.cycles)
        return found - {job.removeprefix(f"{NAMESPACE}/") for job in world.past}


def test_nothing_of_forgotten_jobs_is_left_in_the_world_or_in_the_operator(tmp_path: Path) -> None:
    with after_many_jobs(tmp_path) as (_, leader):
        wait_until(lambda: not _left(leader), PATIENCE_S, what="nothing of them is left")
        events = [one.event for one in leader.store.journal.read(limit=100_000)]
    came = [event for event in events if isinstance(event, JobSubmitted)]
    gone = [event for event in events if isinstance(event, JobForgotten)]
    assert (len(came), len(gone)) == (MANY, MANY - KEPT)


def test_their_objects_stay_as_they_are(tmp_path: Path) -> None:
    with after_many_jobs(tmp_path) as (cluster, _):
        found = cluster.shown(UNIFIED_JOB)
        assert [one["metadata"]["name"] for one in found] == NAMES
        assert {one["status"]["state"] for one in found} == {"SUCCEEDED"}
        assert {one["status"]["phase"] for one in cluster.shown(kinds.POD)} == {"Succeeded"}


def test_the_next_operator_knows_no_more_of_them_and_starts_none_again(tmp_path: Path) -> None:
    with after_many_jobs(tmp_path):
        pass
    cluster = OfflineCluster(tmp_path)
    with leading(cluster, tmp_path / "state", KEEP) as leader:
        wait_until(lambda: not leader.backend.reconciler.runs, PATIENCE_S, what="all are settled again")
        run_jobs(cluster, leader, ["another"])
        assert leader.cycles.schedule.ended["SUCCEEDED"] == 1
        assert {one["status"]["phase"] for one in cluster.shown(kinds.POD)} == {"Succeeded"}
        assert len(cluster.shown(kinds.POD)) == MANY + 1


def test_an_object_is_deleted_in_time_though_its_job_is_forgotten(tmp_path: Path) -> None:
    """Given jobs whose users want their objects to go five seconds after they have finished."""
    cluster = OfflineCluster(tmp_path)
    with leading(cluster, tmp_path / "state", KEEP) as leader:
        run_jobs(cluster, leader, NAMES, ttlSecondsAfterFinished=5)
        wait_until(lambda: not cluster.shown(UNIFIED_JOB), PATIENCE_S, what="all objects are gone")
        assert not cluster.shown(kinds.POD)
        wait_until(lambda: not len(leader.backend.reconciler.settled), PATIENCE_S, what="nor are they known by name")


def test_a_job_of_the_same_name_runs_after_the_first_was_deleted(tmp_path: Path) -> None:
    with after_many_jobs(tmp_path) as (cluster, leader):
        cluster.remove(NAMES[0])
        wait_until(lambda: len(leader.backend.reconciler.settled) == MANY - 1, PATIENCE_S, what="it is gone")
        run_jobs(cluster, leader, [NAMES[0]])
        assert f"{NAMESPACE}/{NAMES[0]}" in leader.world.past


def test_the_journal_is_compacted_to_what_a_start_needs(tmp_path: Path) -> None:
    """Given two operators that have ended and saved what they knew, old events can go: all of the first's."""
    with after_many_jobs(tmp_path) as (_, leader):
        forgotten = {f"{NAMESPACE}/{name}" for name in NAMES} - leader.world.past.keys()
    cluster = OfflineCluster(tmp_path)
    with leading(cluster, tmp_path / "state", KEEP) as leader:
        run_jobs(cluster, leader, ["another"])
    with open_store(tmp_path / "state" / "journal.db") as store:
        past, events = store.recover().world.past, store.journal.durable_seq
        assert store.journal.prune(before_s=math.inf) > events / 2
        left = [one.event for one in store.journal.read(store.journal.first_seq, limit=100_000)]
        assert not forgotten & {event.job.id for event in left if isinstance(event, JobSubmitted)}
        assert not forgotten & past.keys()
        assert store.recover().world.past.keys() == past.keys()
