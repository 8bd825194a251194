"""Jobs and nodes as people see them."""

import asyncio
import json
import math
from itertools import islice
from pathlib import Path

from batuta.api import models
from batuta.api.dependencies import NoNodeFacts
from batuta.api.responses import to_json
from batuta.api.views import TaskViewCache, count_gpus, view_dry_run, view_job, view_nodes, view_task
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.decide import decide
from batuta.core.job import DesiredState, JobState, Progress, Share
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.spec.task import parse_task
from batuta.spec.task_serialization import task_to_json
from batuta.store.store import SqliteStore
from tests.support.snapshots import snapshot_of
from tests.support.stories import Story
from tests.support.worlds import make_job, make_nodes, make_world


def test_a_waiting_job_says_why() -> None:
    world = make_world(make_nodes(2), {"a": "n0:01"}, [make_job("a", 2), make_job("b", 2, submit_s=3.0)])
    plan = decide(world, 10.0, profile_for("fifo"))
    shown = view_job(snapshot_of(world, plan), "b", 10.0)
    assert shown is not None
    models.Job.model_validate(shown)
    assert shown["reason"]["code"] == "WAITING_FOR_GPUS"
    assert shown["reason"]["sentence"].startswith("needs 2 GPUs")
    assert shown["reason"]["evidence"]["needs"] == 2
    assert (shown["waited_s"], shown["duration_s"], shown["started_s"]) == (7.0, None, None)
    assert view_job(snapshot_of(world), "b", 10.0)["reason"] is None  # type: ignore[index]
    assert view_job(snapshot_of(world), "c", 10.0) is None


def test_an_eta_needs_a_report() -> None:
    world = make_world(make_nodes(2), {"a": "n0:01"}, [make_job("a", 2)])
    assert view_job(snapshot_of(world), "a", 5.0)["eta_s"] is None  # type: ignore[index]
    apply(world, ev.JobProgressed(10.0, "a", 100.0, progress=Progress(fraction=0.5)))
    shown = view_job(snapshot_of(world), "a", 30.0)
    assert shown is not None
    # Two GPUs are twice as fast, and 20 s have gone since.
    assert shown["eta_s"] == 30.0
    assert view_job(snapshot_of(world), "a", 1e6)["eta_s"] == 0.0  # type: ignore[index]


def test_gpus_of_the_same_node_are_shown_together() -> None:
    world = make_world(make_nodes(2, 2), {"a": "n1:1 n0:0 n1:0"}, [make_job("a", 3)])
    shown = view_job(snapshot_of(world), "a", 5.0)
    assert shown is not None
    assert shown["placement"] == [{"node": "n1", "gpus": [1, 0]}, {"node": "n0", "gpus": [0]}]


def test_what_people_wished() -> None:
    world = make_world(make_nodes(4), {"a": "n0:0", "d": "n0:1"}, [make_job(name) for name in "abcd"])
    for job, wish in (("b", DesiredState.PARK), ("c", DesiredState.CANCEL), ("d", DesiredState.EVICT)):
        apply(world, ev.JobWished(1.0, job, wish))
    snapshot = snapshot_of(world)
    shown = {job: view_job(snapshot, job, 2.0)["wish"] for job in "abcd"}  # type: ignore[index]
    assert shown == {"a": "run", "b": "park", "c": "cancel", "d": "run"}


def test_what_a_submit_would_make() -> None:
    shown = view_dry_run(make_job("dryrun", 2, submit_s=5.0))
    models.Job.model_validate(shown)
    assert (shown["state"], shown["ended_s"], shown["waited_s"]) == ("PENDING", None, 0.0)


def test_nodes_in_all_states() -> None:
    jobs = [make_job("a", 2), make_job("s", share=Share(100, 50))]
    world = make_world(make_nodes(2, 2, 2, 2), {"a": "n1:01", "s": "n0:1"}, jobs, lost=["n3"], cordoned=["n1", "n2"])
    apply(world, ev.JobWished(1.0, "a", DesiredState.EVICT))
    nodes = view_nodes(snapshot_of(world), NoNodeFacts())
    models.Nodes.model_validate({"nodes": nodes})
    assert [node["state"] for node in nodes] == ["ready", "draining", "cordoned", "lost"]
    assert nodes[0]["gpus"][1]["jobs"] == [{"id": "s", "share": {"memory_mib": 100, "compute_percent": 50}}]
    assert count_gpus(snapshot_of(world)) == {"total": 8, "used": 3, "free": 1, "cordoned": 2, "unhealthy": 2}


def test_gpus_always_add_up() -> None:
    world = World()
    for number, event in enumerate(islice(Story(5), 1500)):
        apply(world, event)
        if number % 50 == 0:
            counts = count_gpus(snapshot_of(world))
            assert counts.pop("total") == sum(counts.values())


def test_a_task_is_shown_without_its_secrets() -> None:
    text = "run: x\nenvs: {A: '1'}\nsecrets: {B: hush}\nfile_mounts: {/data: /tmp}\n"
    text += "resources: {labels: {c: d}}\n"
    shown = view_task(task_to_json(parse_task(text, check_paths=False)))
    assert shown is not None
    assert shown["secrets"] == {"B": "<hidden>"}
    assert (shown["envs"], shown["file_mounts"], shown["labels"]) == (
        {"A": "1"},
        {"/data": "/tmp"},
        {"c": "d"},
    )
    for damaged in (None, "", "{", "[]", '{"task": 1}', '{"schema": 1}'):
        assert view_task(damaged) is None


def test_json_has_no_numbers_that_are_none() -> None:
    value = {"a": [math.nan, math.inf, 1.5], "b": "\ud800", "c": (1, None)}
    assert json.loads(to_json(value)) == {"a": [None, None, 1.5], "b": "\ud800", "c": [1, None]}
    assert to_json({"a": math.nan}) == b'{"a":null}'


def test_a_job_that_is_over_keeps_what_it_said_last() -> None:
    world = make_world(make_nodes(2), {"a": "n0:0"}, [make_job("a")])
    apply(world, ev.JobProgressed(10.0, "a", 1.0, progress=Progress(fraction=0.9, loss=0.1)))
    apply(world, ev.JobEnded(12.0, "a", JobState.FAILED, exit_code=137, detail="killed"))
    shown = view_job(snapshot_of(world), "a", 100.0)
    assert shown is not None
    models.Job.model_validate(shown)
    assert shown["progress"]["loss"] == 0.1
    assert (shown["exit_code"], shown["detail"], shown["duration_s"]) == (137, "killed", 12.0)


def test_tasks_that_are_kept_take_bounded_memory(tmp_path: Path) -> None:
    runs = [f"echo {number} {'x' * 1000}" for number in range(20)]
    with SqliteStore(tmp_path / "journal.db") as store:
        for number, run in enumerate(runs):
            task = task_to_json(parse_task(f"run: {run}", check_paths=False))
            store.journal.append(ev.JobSubmitted(1.0, make_job(str(number)), task=task))
        store.journal.commit()
        cache = TaskViewCache(store.database, most_bytes=10_000)

        async def ask() -> None:
            for number in (*range(20), *reversed(range(20))):
                shown = await cache.of(str(number))
                assert shown is not None
                assert shown["run"] == runs[number]
                assert cache.kept_bytes <= 10_000
            # At once, as several clients do.
            assert len({str(one) for one in await asyncio.gather(*(cache.of("9") for _ in range(30)))}) == 1

        asyncio.run(ask())
        assert 0 < cache.kept_bytes <= 10_000
