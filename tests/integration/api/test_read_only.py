"""A server that is only asked, as an operator is: jobs have namespaces, and changes belong elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.core import event as ev
from batuta.core.job import Job
from tests.support.served_api import ServedApi, served_api

WHERE = "jobs are changed through the cluster"
JOBS = ("team-a/resnet", "team-a/logs", "team-a/job:batch")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    jobs = [ev.JobSubmitted(1.0, Job(name, 1.0, name=name.rpartition("/")[2])) for name in JOBS]
    folder: Path = tmp_path_factory.mktemp("api")
    with served_api(folder, events=jobs, read_only=WHERE, hosts=(".svc",)) as served:
        yield served


@pytest.mark.parametrize("job", JOBS)
def test_a_job_is_found_by_its_namespace_and_name(api: ServedApi, job: str):
    path = f"/jobs/{job.replace('/', '%2F')}"
    assert api.get(path)["id"] == job
    assert api.get(f"{path}/explain")["job"] == job
    assert api.get(f"{path}/suggestions") == {"suggestions": []}


def test_a_slash_that_is_not_written_as_one_is_part_of_the_path(api: ServedApi):
    assert api.ask("GET", "/jobs/team-a/resnet").status_code == 404
    assert api.ask("GET", "/jobs/team-b%2Fresnet").status_code == 404
    assert api.ask("GET", "/jobs/a%2Fb%2Fc").status_code == 422


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/jobs"),
        ("PATCH", "/jobs/team-a%2Fresnet"),
        ("DELETE", "/jobs/team-a%2Fresnet"),
        ("POST", "/nodes/node-0/drain"),
        ("PUT", "/policy"),
        ("PUT", "/queues/default"),
        ("PATCH", "/quota"),
        ("POST", "/tokens"),
        ("POST", "/shutdown"),
    ],
)
def test_nothing_is_changed_and_it_is_said_where_that_is_done(api: ServedApi, method: str, path: str):
    answer = api.ask(method, path, json={})
    assert answer.status_code == 405, answer.text
    assert answer.json()["detail"] == WHERE


def test_questions_are_answered_and_sessions_begin(api: ServedApi):
    assert api.get("/cluster")["read_only"] == WHERE
    assert {one["id"] for one in api.get("/jobs")["jobs"]} == set(JOBS)
    assert api.ask("POST", "/session-links").status_code == 200


def test_names_of_the_cluster_are_its_own_and_others_are_not(api: ServedApi):
    def status(host: str) -> int:
        return api.ask("GET", "/session", headers={"Host": host}).status_code

    assert status("batuta.batuta-system.svc:7077") == 200
    assert status("evil.example") == 421
    assert status("svc") == 421
