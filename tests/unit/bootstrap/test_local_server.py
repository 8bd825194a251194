"""How a server begins and ends, without one that listens."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from batuta.api.operations import Operations, Submission
from batuta.bootstrap.local_server import Server, UpOptions, built
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import DesiredState, JobId
from batuta.engine.retention import Keep
from batuta.spec.task import parse_task
from batuta.spec.task_serialization import task_to_json
from batuta.store.store import SqliteStore
from tests.support.local_replicas import wait_until
from tests.support.worlds import make_job


@pytest.fixture
def options(tmp_path: Path) -> UpOptions:
    return UpOptions(home=tmp_path / "home", nodes=1, gpus=2, virtual=True)


def test_a_server_that_was_never_started_ends_as_well(options: UpOptions):
    with pytest.raises(ZeroDivisionError), built(options):
        raise ZeroDivisionError("no port is free, say")
    with built(options) as server:
        assert server.world.nodes.nodes[0].gpus == 2


def test_a_new_server_begins_with_rent_and_an_old_one_keeps_what_was_chosen(options: UpOptions):
    with built(options) as server:
        assert server.parts.policy == "rent"
    for told in ("fifo", ""):
        with built(replace(options, policy=told)) as server:
            assert server.parts.policy == "fifo"


def test_the_world_of_an_engine_that_died_is_not_kept(options: UpOptions):
    """It may have died halfway through an event: only the journal knows what has happened."""
    with built(options) as server:
        server.service.start()
        apply(server.world, ev.TimePassed(server.world.now_s + 1e6))
        server.service.failure = ZeroDivisionError()
    with SqliteStore(server.state.journal) as store:
        found = store.recover()
        assert found.snapshot_seq == 0
        assert found.world.now_s < time.time() + 1e5


def test_what_a_new_server_finds_is_of_now_however_long_nobody_was_there(options: UpOptions):
    with built(options) as server:
        server.service.start()
        server.service.ask(
            lambda world: [
                ev.JobSubmitted(world.now_s, make_job("a", 1)),
                ev.JobWished(world.now_s, "a", DesiredState.PARK),
            ]
        )
        long_ago_s = server.world.now_s
    with built(options) as server:
        assert server.world.now_s > long_ago_s
        server.service.start()


def run_to_the_end(server: Server, *scripts: str) -> list[JobId]:
    """Runs jobs one after the other; their ids."""
    operations, ids = Operations(server.store, time.time), list[JobId]()
    for script in scripts:
        task = parse_task(json.dumps({"run": script}), check_paths=False)
        submission = Submission(task, task_to_json(task), "ana")
        server.service.ask(operations.submit(submission))
        ids.append(submission.job)
        wait_until(lambda: ids[-1] not in server.world.jobs, what=f"job {ids[-1]} is over")
    return ids


def test_jobs_inherit_what_is_harmless_and_what_is_named(options: UpOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_TOKEN", "a secret")
    monkeypatch.setenv("DATA_SETS", "/data")
    with built(replace(options, pass_env=("DATA_SETS",))) as server:
        server.service.start()
        (job,) = run_to_the_end(server, 'echo "[$ADMIN_TOKEN][$DATA_SETS][${PATH:+path}]"')
        assert server.backend.log_path(job).read_text() == "[][/data][path]\n"


def test_jobs_that_are_over_are_forgotten_with_their_folders(
    options: UpOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batuta.engine.retention._LOOK_EVERY_S", 0.0)
    with built(replace(options, keep=Keep(jobs=1))) as server:
        server.service.start()
        first, second = run_to_the_end(server, "true", "true")
        wait_until(lambda: list(server.world.past) == [second], what="only the last one is kept")
        folders = {path.name for path in (server.state.path / "jobs").iterdir()}
        assert folders == {second}
    with built(options) as server:
        assert list(server.world.past) == [second]
        server.service.start()
        (third,) = run_to_the_end(server, "true")
        assert int(third) > int(second) > int(first)
