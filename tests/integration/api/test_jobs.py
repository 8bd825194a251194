"""Jobs through the API: submit, list, look at, change, cancel."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batuta.api import models
from batuta.core import event as ev
from batuta.core.job import JobState, Progress
from tests.support.quotas import short
from tests.support.served_api import ELASTIC, SLEEPER, ServedApi, served_api, until


def post(api: ServedApi, body: Any, user: str = "ana", **more: Any) -> Any:
    return api.ask("POST", "/jobs", user, json=body, **more)


# --------------------------------------------------------------------------------------------------- submit


def test_ids_are_numbers_that_count_up(api: ServedApi) -> None:
    assert [api.submit()["id"] for _ in range(3)] == ["1", "2", "3"]


def test_ids_go_on_after_a_restart(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        first, second = api.submit()["id"], api.submit()["id"]
        api.ask("DELETE", f"/jobs/{second}")
        api.wait_for(second, "CANCELLED")
    with served_api(tmp_path) as api:
        assert api.submit()["id"] == "3"
        assert {job["id"] for job in api.get("/jobs")["jobs"]} == {first, second, "3"}


def test_a_submitted_job_runs_and_is_told_as_the_contract_says(api: ServedApi) -> None:
    answer = post(api, {"task": ELASTIC}, "ben")
    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/jobs/1"
    models.Submitted.model_validate_json(answer.content, strict=True)
    shown = api.wait_for("1", "RUNNING")
    models.JobWithTask.model_validate_json(json.dumps(shown), strict=True)
    assert (shown["user"], shown["queue"], shown["kind"]) == ("ben", "default", "torch-elastic")
    assert shown["gpus"] == {
        "now": 4,
        "wanted": 2,
        "min": 1,
        "max": 4,
        "per_node": 1,
        "type": "virtual",
        "share": None,
    }
    assert shown["placement"] == [{"node": "node-0", "gpus": [0, 1, 2, 3]}]
    assert shown["reason"]["code"] == "FULL_SIZE"
    assert shown["progress"] is None
    assert shown["eta_s"] is None
    assert shown["task"]["secrets"] == {"HF_TOKEN": "<hidden>"}


@pytest.mark.parametrize("dryrun", ["true", "false"])
def test_a_queue_that_nobody_made_is_noted_in_a_file_and_refused_where_it_is_said(api: ServedApi, dryrun: str) -> None:
    """A task file may come from a cluster that has the queue; who names one here means one that is here."""
    labelled = SLEEPER.replace("resources: {", "resources: {labels: {kueue.x-k8s.io/queue-name: team}, ")
    told = post(api, {"task": labelled}, params={"dryrun": dryrun}).json()["notes"]
    assert "no queues are set up: team has no limits (batuta queues apply)" in told
    said = {"task": SLEEPER, "overrides": {"queue": "team"}}
    refused = post(api, said, params={"dryrun": dryrun})
    assert refused.status_code == 422
    assert "there is no queue team: no queues are set up" in refused.text
    said["overrides"] = {"queue": "default"}
    assert post(api, said, params={"dryrun": dryrun}).status_code in (200, 201)


def test_progress_gives_an_eta_and_the_end_an_exit_code(api: ServedApi) -> None:
    job = api.submit()["id"]
    api.wait_for(job, "RUNNING")
    api.live.backend.progress(job, 50.0, Progress(fraction=0.5, step=5, total_steps=10, loss=0.25))
    shown = until(lambda: found if (found := api.job(job))["progress"] else None)
    assert 45 < shown["eta_s"] <= 50
    assert shown["progress"]["loss"] == 0.25
    api.live.backend.end(job, JobState.FAILED, 3, "the script gave up")
    shown = api.wait_for(job, "FAILED")
    assert (shown["exit_code"], shown["detail"], shown["eta_s"]) == (3, "the script gave up", None)
    assert shown["ended_s"] >= shown["started_s"] >= shown["submitted_s"]


def test_yaml_text_and_an_object_make_the_same_job(api: ServedApi) -> None:
    task = {"name": "one", "resources": {"accelerators": "virtual:2"}, "run": "true"}
    as_yaml = api.submit("name: one\nresources: {accelerators: virtual:2}\nrun: 'true'\n")
    as_text = post(api, {"task": json.dumps(task)}).json()["job"]
    as_object = post(api, {"task": task}).json()["job"]
    for name in ("name", "gpus", "kind", "queue"):
        assert as_yaml[name] == as_text[name] == as_object[name]


def test_overrides_and_the_base_of_paths(api: ServedApi, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    body = {
        "task": "workdir: work\nrun: echo $A\nenvs: {A: null}\nresources: {accelerators: 1}\n",
        "base_dir": str(tmp_path),
        "overrides": {"name": "other", "num_nodes": 2, "priority": 7, "env": {"A": "1"}},
    }
    shown = api.job(post(api, body).json()["job"]["id"])
    assert (shown["name"], shown["gpus"]["wanted"], shown["priority"]) == ("other", 2, 7)
    assert shown["task"]["workdir"] == str(tmp_path / "work")
    assert shown["task"]["envs"] == {"A": "1"}


def test_a_dry_run_stores_nothing(api: ServedApi) -> None:
    answer = post(api, {"task": ELASTIC}, params={"dryrun": "true"})
    assert answer.status_code == 200
    models.Submitted.model_validate_json(answer.content)
    assert answer.json()["job"]["state"] == "PENDING"
    assert api.get("/jobs")["total"] == 0
    refused = post(api, {"task": "run: true\nresources: {accelerators: 1}\nnum_nodes: 99\n"}, params={"dryrun": "true"})
    assert refused.status_code == 422


BAD: dict[str, tuple[Any, str]] = {
    "unknown key": ({"task": "runn: x\n"}, "runn"),
    "no run": ({"task": "name: x\n"}, "run"),
    "too many GPUs": ({"task": "run: x\nresources: {accelerators: virtual:9}\n"}, "9"),
    "relative path without a base": ({"task": "run: x\nworkdir: here\n"}, "relative"),
    "a folder that is not there": ({"task": "run: x\nworkdir: /no/such/place\n"}, "not there"),
    "an unknown override": ({"task": "run: x\n", "overrides": {"speed": 1}}, "speed"),
    "a wrong type": ({"task": 5}, "task"),
    "nothing": ({}, "task"),
    "not YAML": ({"task": "run: [\n"}, "task.yaml"),
    "half a character": ({"task": {"run": "echo \ud800"}}, ""),
    "half a character in a secret": ({"task": {"run": "x", "secrets": {"A": "\udfff"}}}, ""),
    "a base that is relative": ({"task": "run: x\n", "base_dir": "here"}, "base_dir"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tasks_are_refused_and_nothing_is_stored(shared_api: ServedApi, name: str) -> None:
    before = shared_api.get("/jobs")["total"]
    body, word = BAD[name]
    answer = shared_api.ask("POST", "/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["problems"]
    assert word in json.dumps(problem)
    assert shared_api.get("/jobs")["total"] == before


def test_all_problems_come_at_once_with_their_places(shared_api: ServedApi) -> None:
    task = "nme: x\nrun: y\nnum_nodes: 0\nresources: {accelerators: 'virtual:x'}\n"
    problem = post(shared_api, {"task": task, "file": "my/task.yaml"}).json()
    assert len(problem["problems"]) >= 3
    assert {one["file"] for one in problem["problems"]} == {"my/task.yaml"}
    assert [one["line"] for one in problem["problems"]] == [1, 3, 4]
    assert problem["problems"][0]["fix"] == "did you mean name?"


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"run: x", "text/plain", 415),
        (b"run: x", "", 415),
        (b"run: \xff", "application/yaml", 400),
        (b"{", "application/json", 422),
        (b"[]", "application/json", 422),
        (b"", "application/yaml", 422),
        (b"a: &a [*a, *a]\nrun: x", "text/yaml", 422),
    ],
)
def test_bodies_that_are_no_tasks(shared_api: ServedApi, content: bytes, kind: str, status: int) -> None:
    answer = shared_api.ask("POST", "/jobs", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text


# ---------------------------------------------------------------------------------------------- idempotency


def test_the_same_key_and_body_make_one_job(api: ServedApi) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = post(api, {"task": SLEEPER}, headers=key)
    again = post(api, {"task": SLEEPER}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["job"]["id"] == again.json()["job"]["id"] == "1"
    assert api.get("/jobs")["total"] == 1
    other = post(api, {"task": ELASTIC}, headers=key)
    assert other.status_code == 422
    assert "1" in other.json()["detail"]


def test_many_at_once_make_one_job_for_each_key(api: ServedApi) -> None:
    def send(number: int) -> tuple[int, str]:
        key = {"Idempotency-Key": f"k-{number % 4}"}
        answer = post(api, {"task": SLEEPER}, headers=key)
        return answer.status_code, answer.json()["job"]["id"]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(32)))
    assert sorted({job for _, job in answers}) == ["1", "2", "3", "4"]
    assert [status for status, _ in answers].count(201) == 4
    assert api.get("/jobs")["total"] == 4


def test_a_key_belongs_to_its_user(api: ServedApi) -> None:
    key = {"Idempotency-Key": "k"}
    ids = {post(api, {"task": SLEEPER}, user, headers=key).json()["job"]["id"] for user in ("ben", "eva")}
    assert ids == {"1", "2"}


def test_a_refused_submit_does_not_use_up_its_key(api: ServedApi) -> None:
    key = {"Idempotency-Key": "k"}
    assert post(api, {"task": "run: x\nresources: {accelerators: 1}\nnum_nodes: 99\n"}, headers=key).status_code == 422
    assert post(api, {"task": SLEEPER}, headers=key).status_code == 201


def test_a_key_is_known_after_a_restart(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        job = api.submit(**{"Idempotency-Key": "k"})["id"]
    with served_api(tmp_path) as api:
        assert api.submit(**{"Idempotency-Key": "k"})["id"] == job


# ----------------------------------------------------------------------------------------------------- list


def test_lists_come_in_pages_without_gaps(api: ServedApi) -> None:
    for k in range(7):
        api.submit(user=("ben", "eva")[k % 2])
    api.ask("DELETE", "/jobs/3")
    api.wait_for("3", "CANCELLED")
    for order, expected in (("oldest", list("1234567")), ("newest", list("7654321"))):
        found, cursor = [], ""
        while True:
            page = api.get("/jobs", params={"limit": 2, "order": order, "cursor": cursor})
            assert page["total"] == 7
            found += [job["id"] for job in page["jobs"]]
            if page["next"] is None:
                break
            cursor = page["next"]
        assert found == expected


def test_filters(api: ServedApi) -> None:
    api.submit("name: a1\nrun: x\n", "ben")
    api.submit("name: a2\nrun: x\n", "eva")
    api.submit("name: b1\nrun: x\nresources: {labels: {kueue.x-k8s.io/queue-name: team}}\n", "eva")
    api.wait_for("1", "RUNNING")
    api.live.backend.end("1")
    ended = api.wait_for("1", "SUCCEEDED")

    def ids(**params: Any) -> list[str]:
        return [job["id"] for job in api.get("/jobs", params=params)["jobs"]]

    assert ids(active="true") == ["2", "3"]
    assert ids(active="false") == ids(state="SUCCEEDED") == ["1"]
    assert ids(state=["SUCCEEDED", "RUNNING"]) == ["1", "2", "3"]
    assert ids(user="eva") == ["2", "3"]
    assert ids(queue="team") == ids(name="b1") == ["3"]
    assert ids(name="a?") == ["1", "2"]
    assert ids(name="a") == []
    assert ids(since_s=ended["ended_s"] - 0.001) == ["1"]
    assert ids(since_s=ended["ended_s"] + 1) == []


@pytest.mark.parametrize(
    "params",
    [{"cursor": "x"}, {"cursor": "W10"}, {"limit": 0}, {"limit": 1001}, {"state": "DONE"}, {"order": "up"}],
)
def test_what_cannot_be_asked_for(shared_api: ServedApi, params: dict[str, Any]) -> None:
    assert shared_api.ask("GET", "/jobs", params=params).status_code == 422


def test_unknown_jobs(shared_api: ServedApi) -> None:
    for method, path in (
        *(("GET", "/jobs/999"), ("DELETE", "/jobs/999"), ("GET", "/jobs/999/logs")),
        *(
            ("GET", "/jobs/999/suggestions"),
            ("GET", "/jobs/999/explain"),
            ("GET", "/jobs/999/events"),
            ("GET", "/jobs/999/progress"),
        ),
        ("GET", "/jobs/999/result"),
    ):
        assert shared_api.ask(method, path).status_code == 404
    assert shared_api.ask("PATCH", "/jobs/999", json={"priority": 1}).status_code == 404


# --------------------------------------------------------------------------------------------------- change


def test_a_size_may_be_fixed_or_given_a_range(api: ServedApi) -> None:
    # Otherwise it would keep its size: it never saves.
    api.submit(ELASTIC.replace("on-signal}", "on-signal, restartable: true}"))
    api.wait_for("1", "RUNNING")

    def patched(**patch: Any) -> tuple[int, int, int]:
        gpus = api.ask("PATCH", "/jobs/1", json=patch).json()["gpus"]
        return gpus["min"], gpus["wanted"], gpus["max"]

    assert patched(nodes=3) == (3, 3, 3)
    assert until(lambda: api.job("1")["gpus"]["now"] == 3)
    assert patched(min_nodes=1, max_nodes=8) == (1, 3, 8)
    assert until(lambda: api.job("1")["gpus"]["now"] == 8)
    assert patched(max_nodes=2) == (1, 2, 2)
    assert patched(nodes=1, min_nodes=1, max_nodes=4) == (1, 1, 4)


@pytest.mark.parametrize(
    "patch",
    [
        {},
        {"nodes": 0},
        {"nodes": 99},
        {"min_nodes": 5, "max_nodes": 2},
        {"nodes": 4, "min_nodes": 1, "max_nodes": 2},
        {"priority": 1001},
        {"queue": "nowhere"},
        {"queue": "../x"},
        {"wish": "cancel"},
        {"size": 1},
        {"nodes": "2"},
    ],
)
def test_changes_that_make_no_sense_change_nothing(tmp_path: Path, patch: dict[str, Any]) -> None:
    with served_api(tmp_path, events=[ev.QuotaSet(0.0, short(("team", {})))]) as api:
        api.submit(ELASTIC)
        before = api.wait_for("1", "RUNNING")
        assert api.ask("PATCH", "/jobs/1", json=patch).status_code == 422
        after = api.job("1")
        assert [after[key] for key in ("gpus", "priority", "queue", "wish")] == [
            before[key] for key in ("gpus", "priority", "queue", "wish")
        ]


def test_sizes_stay_those_of_the_task(api: ServedApi) -> None:
    api.submit("run: x\nresources: {accelerators: 1}\nelastic: {min_nodes: 1, max_nodes: 4, sizes: [1, 2, 4]}\n")
    refused = api.ask("PATCH", "/jobs/1", json={"nodes": 3})
    assert refused.status_code == 422
    assert refused.json()["problems"][0]["fix"] == "one of 1, 2, 4"
    assert api.ask("PATCH", "/jobs/1", json={"nodes": 2}).json()["gpus"]["max"] == 2
    # What was narrowed down may be widened again, to what the task can do.
    assert api.ask("PATCH", "/jobs/1", json={"min_nodes": 1, "max_nodes": 4}).json()["gpus"]["max"] == 4


def test_park_and_run_again(api: ServedApi) -> None:
    api.submit()
    api.wait_for("1", "RUNNING")
    assert api.ask("PATCH", "/jobs/1", json={"wish": "park"}).json()["wish"] == "park"
    parked = api.wait_for("1", "PREEMPTED")
    assert until(lambda: (api.job("1")["reason"] or {}).get("code") == "PARKED")
    assert parked["gpus"]["now"] == 0
    api.ask("PATCH", "/jobs/1", json={"wish": "run"})
    assert api.wait_for("1", "RUNNING")["restarts"] == 1


def test_cancel(api: ServedApi) -> None:
    api.submit()
    api.wait_for("1", "RUNNING")
    assert api.ask("DELETE", "/jobs/1").json()["id"] == "1"
    assert api.wait_for("1", "CANCELLED")["wish"] == "cancel"
    assert api.ask("DELETE", "/jobs/1").status_code == 202
    assert api.ask("PATCH", "/jobs/1", json={"priority": 1}).status_code == 409
    api.submit()
    api.wait_for("2", "RUNNING")
    api.live.backend.end("2")
    api.wait_for("2", "SUCCEEDED")
    assert api.ask("DELETE", "/jobs/2").status_code == 409


# --------------------------------------------------------------------------------------------- look closely


def test_the_story_of_a_job(api: ServedApi) -> None:
    api.submit(ELASTIC, "ben")
    api.wait_for("1", "RUNNING")
    api.ask("PATCH", "/jobs/1", json={"nodes": 1})
    until(lambda: api.job("1")["gpus"]["now"] == 1)
    api.live.backend.interrupt("1", wait_s=60.0, exit_code=9)
    api.wait_for("1", "PREEMPTED")
    told = api.get("/jobs/1/explain")
    models.Explanation.model_validate(told)
    story = [one["sentence"] for one in told["story"]]
    assert story[0] == "is submitted by ben to queue default and asks for 2 GPUs, 1 to 4 will do"
    assert story[1] == "starts with 4 GPUs, on node-0:0+1+2+3"
    assert "is changed by its user: 1 GPU, priority 0, queue default" in story
    assert "shrinks from 4 to 1 GPU: it may have 1 at most, on node-0:0" in story
    assert "exit code 9" in story[-1]
    assert told["reason"]["code"] == "RESTART_BACKOFF"
    # What was read before is not read again, and what is new is added.
    api.ask("PATCH", "/jobs/1", json={"wish": "park"})
    assert api.get("/jobs/1/explain")["story"][-1]["sentence"] == "its user parks it"


def test_what_would_start_a_job_that_waits(api: ServedApi) -> None:
    for gpus in (4, 4, 2):
        api.submit(f"resources: {{accelerators: virtual:{gpus}}}\nrun: sleep 600\n")
    api.wait_for("2", "RUNNING")
    until(lambda: api.get("/jobs/3/suggestions")["suggestions"])
    told = api.get("/jobs/3/suggestions")
    models.Suggestions.model_validate(told)
    assert {one["code"] for one in told["suggestions"]} == {"JOB_ENDS", "MORE_NODES"}
    assert api.get("/jobs/1/suggestions") == {"suggestions": []}


def test_events_of_a_job_in_pages(api: ServedApi) -> None:
    api.submit(ELASTIC)
    api.submit()
    api.wait_for("1", "RUNNING")
    page = api.get("/jobs/1/events")
    models.JobEvents.model_validate(page)
    assert [one["type"] for one in page["events"]][:3] == ["JobSubmitted", "Planned", "JobStarted"]
    assert page["events"][1]["commands"][0]["sentence"] == "starts with 4 GPUs"
    assert page["next"] is None
    first = api.get("/jobs/1/events", params={"limit": 1})
    rest = api.get("/jobs/1/events", params={"cursor": first["next"]})
    assert first["events"] + rest["events"] == page["events"]


def test_the_curve_of_a_job(api: ServedApi) -> None:
    api.submit()
    assert api.get("/jobs/1/progress") == {"points": []}
    lines = [{"time": 10.0 + k, "step": k, "samples": 32 * k, "loss": 1 / (k + 1), "lr": 0.1} for k in range(9)]
    api.live.files.write_progress("1", "".join(json.dumps(line) + "\n" for line in lines) + '{"half')
    points = api.get("/jobs/1/progress", params={"points": 3})
    models.ProgressCurve.model_validate(points)
    assert [point["step"] for point in points["points"]] == [0, 4, 8]
    assert points["points"][1]["samples_per_s"] == 32
    assert points["points"][0]["metrics"] == {"lr": 0.1}


def test_the_result_of_a_job(api: ServedApi) -> None:
    api.submit()
    assert api.ask("GET", "/jobs/1/result").status_code == 404
    api.live.store.results.stage("1", '{"accuracy":0.9}')
    assert api.get("/jobs/1/result") == {"value": {"accuracy": 0.9}}


def test_a_job_runs_again_with_its_secrets_and_what_is_said_over_it(api: ServedApi) -> None:
    """Given a job that is over, when its user submits one like it, then the new job has its task."""
    first = api.submit(ELASTIC, user="ben")["id"]
    api.ask("DELETE", f"/jobs/{first}", "ben")
    api.wait_for(first, "CANCELLED")
    asked = {"like": first, "overrides": {"name": "again", "max_nodes": 2, "env": {"LR": "0.1"}}}
    answer = api.ask("POST", "/jobs", "ben", json=asked)
    assert answer.status_code == 201, answer.text
    made = api.job(answer.json()["job"]["id"])
    assert (made["name"], made["user"], made["gpus"]["max"]) == ("again", "ben", 2)
    assert made["task"]["run"] == "torchrun train.py"
    assert made["task"]["envs"] == {"LR": "0.1"}
    stored = api.live.store.tasks.get(made["id"])
    assert stored is not None
    assert "hush-hush" in stored


def test_only_its_user_and_admins_run_a_job_again(api: ServedApi) -> None:
    """A task has secrets: whoever runs it again has them."""
    first = api.submit(ELASTIC, user="ben")["id"]
    assert api.ask("POST", "/jobs", "eva", json={"like": first}).status_code == 403
    assert api.ask("POST", "/jobs", "vic", json={"like": first}).status_code == 403
    assert api.ask("POST", "/jobs", "ana", json={"like": first}).json()["job"]["user"] == "ana"
    assert api.ask("POST", "/jobs", "ben", json={"like": "404"}).status_code == 404


def test_a_job_whose_files_are_gone_says_so_when_it_shall_run_again(api: ServedApi, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    first = api.submit(SLEEPER + f"workdir: {code}\n")["id"]
    code.rmdir()
    refused = api.ask("POST", "/jobs", json={"like": first})
    assert refused.status_code == 422
    (problem,) = refused.json()["problems"]
    assert problem["message"] == f"workdir '{code}' is not there"
    assert problem["file"] == f"the task of job {first}"


def test_a_submit_names_a_task_or_a_job(api: ServedApi) -> None:
    for body in ({}, {"task": SLEEPER, "like": "1"}):
        refused = api.ask("POST", "/jobs", json=body)
        assert refused.status_code == 422
        assert "either task or like" in refused.text


def test_the_task_file_of_a_job_makes_the_same_job(api: ServedApi) -> None:
    first = api.submit(ELASTIC)
    answer = api.ask("GET", f"/jobs/{first['id']}/task", "vic")
    assert answer.headers["content-type"].startswith("application/yaml")
    assert "hush-hush" not in answer.text
    refused = api.ask("POST", "/jobs", content=answer.text, headers={"Content-Type": "application/yaml"})
    assert "HF_TOKEN" in refused.text
    again = api.submit(answer.text.replace("HF_TOKEN: null", "HF_TOKEN: mine"))
    assert again["gpus"] == first["gpus"]


def test_how_busy_the_gpus_of_a_job_were_is_kept(api: ServedApi) -> None:
    """Given reports of use, when a job is asked for, then its GPUs' mean over time is there."""
    job = api.submit(ELASTIC)["id"]
    api.wait_for(job, "RUNNING")
    (span, *_) = api.job(job)["placement"]
    busy = tuple(0.5 if gpu in span["gpus"] else 0.0 for gpu in range(4))
    assert api.get(f"/jobs/{job}/gpu-use")["points"] == []
    api.live.service.request(lambda world: (ev.GpusUsed(world.now_s, span["node"], busy),)).result(10)
    points = until(lambda: api.get(f"/jobs/{job}/gpu-use")["points"])
    assert [(point["busy"], point["gpus"]) for point in points] == [(0.5, len(span["gpus"]))]
