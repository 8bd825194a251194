"""Nodes, queues, policy, the cluster at a glance, over time, and as metrics."""

from pathlib import Path
from typing import Any

from batuta.api import models
from batuta.core import event as ev
from batuta.core.job import Progress
from tests.support.served_api import ELASTIC, ServedApi, served_api, until


def test_the_cluster_at_a_glance(api: ServedApi) -> None:
    api.submit(ELASTIC)
    api.wait_for("1", "RUNNING")
    # What the engine says of itself comes a moment after what it did.
    until(lambda: api.get("/cluster")["cycle"]["engine_cpu_s"] > 0)
    shown = until(lambda: found if (found := api.get("/cluster"))["seq"] == 5 else None)
    models.Cluster.model_validate(shown)
    assert shown["gpus"] == {"total": 8, "used": 4, "free": 4, "cordoned": 0, "unhealthy": 0}
    assert shown["jobs"]["RUNNING"] == 1
    assert sum(shown["jobs"].values()) == 1
    assert shown["trouble"] == ""
    assert shown["cycle"]["count"] > 0
    assert shown["cycle"]["last_ms"] > 0


def test_gpus_that_are_ill_or_lost(api: ServedApi) -> None:
    api.live.backend.tell(ev.GpuFailed(1.0, "node-0", 1), ev.NodeLost(1.0, "node-1"))
    counts = {"total": 8, "used": 0, "free": 3, "cordoned": 0, "unhealthy": 5}
    until(lambda: api.get("/cluster")["gpus"] == counts)
    first, second = api.get("/nodes")["nodes"]
    assert [gpu["healthy"] for gpu in first["gpus"]] == [True, False, True, True]
    assert second["state"] == "lost"


def test_nodes_are_cordoned_drained_and_come_back(api: ServedApi) -> None:
    api.submit(ELASTIC)
    where = api.wait_for("1", "RUNNING")["placement"][0]["node"]
    other = {"node-0": "node-1", "node-1": "node-0"}[where]
    models.Nodes.model_validate(api.get("/nodes"))
    cordoned = api.ask("POST", f"/nodes/{where}/cordon").json()
    models.Node.model_validate(cordoned)
    assert cordoned["state"] == "cordoned"
    assert cordoned["gpus"][0]["jobs"] == [{"id": "1", "share": None}]
    assert api.job("1")["placement"][0]["node"] == where
    api.ask("POST", f"/nodes/{where}/drain")
    until(lambda: [span["node"] for span in api.job("1")["placement"]] == [other])
    assert api.wait_for("1", "RUNNING")["wish"] == "run"
    assert api.ask("POST", f"/nodes/{where}/uncordon").json()["state"] == "ready"
    assert api.ask("POST", f"/nodes/{where}/uncordon").status_code == 200
    assert api.ask("POST", "/nodes/nowhere/cordon").status_code == 404
    assert api.ask("POST", "/nodes/..%2fx/cordon").status_code in (404, 422)


def test_a_share_of_a_gpu_is_shown(api: ServedApi) -> None:
    api.submit("run: x\ngpu: {memory: 2GiB, compute: 25%}\n")
    api.wait_for("1", "RUNNING")
    share = {"memory_mib": 2048, "compute_percent": 25}
    assert api.job("1")["gpus"]["share"] == share
    tenants = [job for node in api.get("/nodes")["nodes"] for gpu in node["gpus"] for job in gpu["jobs"]]
    assert tenants == [{"id": "1", "share": share}]


class Facts:
    """A backend that knows its nodes."""

    def address(self, node: str) -> str:
        return f"127.66.0.{node[-1]}"

    def utilisation(self, node: str) -> dict[int, float]:
        return {0: 0.5}


def test_what_a_backend_knows_of_its_nodes(tmp_path: Path) -> None:
    with served_api(tmp_path, facts=Facts()) as api:
        shown = api.get("/nodes")["nodes"][1]
    assert shown["address"] == "127.66.0.1"
    assert [gpu["utilisation"] for gpu in shown["gpus"]] == [0.5, None, None, None]


def test_queues(api: ServedApi) -> None:
    assert [queue["name"] for queue in api.get("/queues")["queues"]] == ["default"]
    put = api.ask("PUT", "/queues/team", json={"quota": {"*": 2}, "cohort": "all", "weight": 2})
    models.Queue.model_validate(put.json())
    assert put.json()["quota"] == {"*": 2}
    api.submit("run: x\nnum_nodes: 2\nresources: {accelerators: 1, labels: {kueue.x-k8s.io/queue-name: team}}\n")
    api.wait_for("1", "RUNNING")
    team = next(queue for queue in api.get("/queues")["queues"] if queue["name"] == "team")
    assert team["used"] == {"*": 2}
    assert (team["running"], team["pending"], team["borrowed"]) == (1, 0, {})
    again = api.ask("PUT", "/queues/team", json={"quota": {"virtual": 4}, "held": True}).json()
    assert (again["held"], again["cohort"], again["quota"]) == (True, "", {"virtual": 4})


def test_who_is_ahead_of_whom_and_who_lends(api: ServedApi) -> None:
    """Queue `rich` has eight GPUs and lends six to `poor`; the next two of `poor` wait in their order."""
    api.ask("PUT", "/queues/rich", json={"quota": {"*": 8}, "cohort": "all"})
    api.ask("PUT", "/queues/poor", json={"quota": {"*": 0}, "cohort": "all"})
    queue = "resources: {accelerators: 1, labels: {kueue.x-k8s.io/queue-name: poor}"
    first = api.submit(f"run: x\nnum_nodes: 6\n{queue}}}\n")["id"]
    api.wait_for(first, "RUNNING")
    plain = api.submit(f"run: x\nnum_nodes: 3\n{queue}}}\n")["id"]
    urgent = api.submit(f"run: x\nnum_nodes: 4\n{queue}, priority: 5}}\n")["id"]
    waits = until(lambda: found if len(_waiting(found := api.get("/queues/poor"))) == 2 else None)
    models.QueueDetail.model_validate(waits)
    assert _waiting(waits) == [urgent, plain]
    assert [(one["id"], one["gpus"]) for one in waits["holding"]] == [(first, 6)]
    assert waits["borrowed"] == {"*": 6}
    told = until(lambda: found if (found := api.get(f"/jobs/{plain}/explain"))["reason"] else None)
    models.Explanation.model_validate(told)
    assert told["ahead"] == 1
    assert told["quota_reserved"]["status"] is False
    assert told["quota_reserved"]["reason"] == "WaitingForQuota"
    assert api.job(first)["quota_reserved"]["reason"] == "QuotaReserved"
    all_ = api.get("/queues")
    models.Queues.model_validate(all_)
    assert next(one for one in all_["queues"] if one["name"] == "rich")["lent"] == {"*": 6}
    assert [(one["name"], one["running"], one["pending"]) for one in all_["cohorts"]] == [("all", 1, 2)]
    assert api.ask("GET", "/queues/por").status_code == 404


def _waiting(queue: dict[str, Any]) -> list[str]:
    return [one["id"] for one in queue["waiting"]]


def test_queues_that_make_no_sense(shared_api: ServedApi) -> None:
    bodies: tuple[Any, ...] = (
        *({"quota": {"*": -1}}, {"quota": {"a/b": 1}}, {"weight": 0}, {"quota": [1]}),
        *({"name": "x"}, {"held": 1}, [], "x"),
    )
    for body in bodies:
        assert shared_api.ask("PUT", "/queues/team", json=body).status_code == 422
    assert shared_api.ask("PUT", "/queues/a%20b", json={}).status_code == 422


def test_the_policy_is_changed_at_run_time(api: ServedApi) -> None:
    shown = api.get("/policy")
    models.PolicyAnswer.model_validate(shown)
    assert shown["name"] == "elastic-fifo"
    assert {one["name"] for one in shown["policies"]} >= {"fifo", "elastic-fifo"}
    api.submit(ELASTIC)
    assert api.wait_for("1", "RUNNING")["gpus"]["now"] == 4
    assert api.ask("PUT", "/policy", json={"name": "fifo"}).json()["name"] == "fifo"
    assert api.get("/cluster")["policy"] == "fifo"
    api.submit()
    api.wait_for("2", "RUNNING")
    plans = [event for event in api.get("/jobs/2/events")["events"] if event["type"] == "Planned"]
    assert plans[0]["policy"] == "fifo"


def test_policies_that_are_not_there(shared_api: ServedApi) -> None:
    unknown = shared_api.ask("PUT", "/policy", json={"name": "fifoo"})
    assert unknown.status_code == 422
    assert "did you mean fifo" in unknown.json()["detail"]
    for name in ("/etc/evil.py", "evil.py", "../evil.py:Policy", ""):
        assert shared_api.ask("PUT", "/policy", json={"name": name}).status_code == 422
    assert shared_api.get("/policy")["name"] == "elastic-fifo"


def test_sizes_over_time(api: ServedApi) -> None:
    api.submit(ELASTIC)
    api.wait_for("1", "RUNNING")
    api.ask("PATCH", "/jobs/1", json={"nodes": 1})
    until(lambda: api.job("1")["gpus"]["now"] == 1)
    api.live.backend.end("1")
    ended = api.wait_for("1", "SUCCEEDED")["ended_s"]

    def two_segments() -> list[dict[str, float]]:
        shown = api.get("/timeline")
        models.Timeline.model_validate(shown)
        found = shown["jobs"][0]["segments"] if shown["jobs"] else []
        return found if len(found) == 2 and found[1]["to_s"] == ended else []

    segments = until(two_segments)
    assert [segment["gpus"] for segment in segments] == [4, 1]
    assert segments[0]["to_s"] == segments[1]["from_s"]
    assert api.get("/timeline", params={"since_s": ended + 1})["jobs"] == []


def test_sizes_before_a_restart_are_known_after_it(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        api.submit(ELASTIC)
        api.wait_for("1", "RUNNING")
    with served_api(tmp_path) as api:
        jobs = until(lambda: api.get("/timeline")["jobs"])
        assert (jobs[0]["id"], jobs[0]["name"], jobs[0]["segments"][0]["gpus"]) == ("1", "elastic", 4)


def test_metrics(api: ServedApi) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    api.submit(ELASTIC)
    api.wait_for("1", "RUNNING")
    api.live.backend.progress("1", 10.0, Progress(fraction=0.5, samples_per_s=64.0, step_s=0.5))
    api.live.backend.tell(ev.TransitionTimed(1.0, "1", 4, checkpoint_s=0.2, start_s=3.0))

    def scrape() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        answer = api.ask("GET", "/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    until(lambda: scrape()["batuta_events_total", (("type", "TransitionTimed"),)] == 1)
    # Events are counted at once; what is shown of jobs may be a moment older.
    until(lambda: ("batuta_job_samples_per_second", (("job_id", "1"), ("name", "elastic"))) in scrape())
    found = scrape()
    assert found["batuta_jobs", (("state", "RUNNING"),)] == 1
    assert found["batuta_gpus", (("state", "free"),)] == 4
    assert found["batuta_queue_pending", (("queue", "default"),)] == 0
    assert found["batuta_queue_running", (("queue", "default"),)] == 1
    assert found["batuta_queue_admitted_total", (("queue", "default"),)] == 1
    assert found["batuta_events_total", (("type", "JobStarted"),)] == 1
    assert found["batuta_job_samples_per_second", (("job_id", "1"), ("name", "elastic"))] == 64
    assert found["batuta_job_progress_ratio", (("job_id", "1"), ("name", "elastic"))] == 0.5
    assert found["batuta_transition_seconds_count", (("step", "start"),)] == 1
    assert found["batuta_transition_seconds_bucket", (("le", "0.25"), ("step", "checkpoint"))] == 1
    assert found["batuta_transition_seconds_count", (("step", "stop"),)] == 0
    assert found["batuta_cycle_seconds_count", ()] > 0
    assert found["batuta_journal_seq", ()] >= 7
    assert found["batuta_engine_cpu_seconds_total", ()] >= 0
    assert found["batuta_build_info", (("policy", "elastic-fifo"), ("version", "0.0-test"))] == 1


def test_health(api: ServedApi) -> None:
    assert api.get("/healthz", None) == {"status": "alive"}
    assert api.get("/readyz", None) == {"status": "ready"}
    api.live.service.stop()
    not_ready = api.ask("GET", "/readyz", None)
    assert not_ready.status_code == 503
    assert "engine" in not_ready.json()["detail"]
    assert api.get("/healthz", None) == {"status": "alive"}
    refused = api.ask("DELETE", "/jobs/1")
    assert refused.status_code == 404
    assert api.ask("POST", "/jobs", json={"task": "run: x\n"}).status_code == 503
