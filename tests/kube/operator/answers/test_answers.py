"""An operator answers what a server of local mode answers, to people whom the cluster knows."""

import json
import os
import subprocess
import time
from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.client.client import Client
from batuta.client.errors import ApiError
from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.kube.conftest import AddNodes
from tests.kube.operator.answers.conftest import People
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.unified import Jobs
from tests.support.server_process import BATUTA


def test_a_job_that_waits_is_told_when_it_starts_and_what_would_start_it(
    jobs: Jobs, add_nodes: AddNodes, people: People
) -> None:
    """Given two GPUs that are taken, then a third person's job knows its ETA, and what would start it now."""
    add_nodes(1, NodeShape(gpus=2))
    jobs.submit("first", "Pods", replicas=2).runs_with(2)
    second = jobs.submit("second", "Pods", replicas=2)
    second.reaches("PENDING")
    with people.client("watcher") as client:
        known = client.job("second")
        assert known.id == f"{jobs.namespace}/second"
        told = client.explain(known)
        assert told.state == "PENDING"
        assert told.reason is not None
        suggestions = client.suggestions(known)
        sentences = [one.sentence for one in suggestions]
        assert f"when job {jobs.namespace}/first ends" in sentences

        eta = client.eta(known.id)
        (own,) = eta.jobs
        assert own.start.p50_s is not None
        assert own.start.p50_s > eta.now_s
        assert own.start.p90_s is not None
        assert own.finish.p90_s is not None
        assert own.finish.p90_s >= own.start.p90_s


def test_what_if_is_answered_and_nothing_changes(jobs: Jobs, add_nodes: AddNodes, people: People) -> None:
    add_nodes(1, NodeShape(gpus=2))
    jobs.submit("first", "Pods", replicas=2).runs_with(2)
    second = jobs.submit("second", "Pods", replicas=2)
    second.reaches("PENDING")
    with people.client("watcher") as client:
        told = client.what_if(add_nodes="1x4:NVIDIA-A100-SXM4-80GB", policy="fifo")
        assert told.changed_policy == "fifo"
        assert told.wait_s.before is not None
        assert told.wait_s.after is not None
        assert told.wait_s.after < told.wait_s.before
        assert client.policy().name != "fifo"
    assert second.state == "PENDING"


def test_the_command_line_asks_an_operator_as_it_asks_a_server(jobs: Jobs, add_nodes: AddNodes, people: People) -> None:
    add_nodes(1, NodeShape(gpus=1))
    jobs.submit("only", "Pods").runs_with(1)
    environ = os.environ | people.environment("watcher")

    def batuta(*words: str) -> dict:
        ran = subprocess.run(
            [BATUTA, *words, "-o", "json"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    ours = f"{jobs.namespace}/only"
    assert [one["id"] for one in batuta("eta", ours)["jobs"]] == [ours]
    assert batuta("explain", ours)["state"] == "RUNNING"
    assert batuta("report", "--from", "1h")["total"]["capacity_gpu_s"] > 0


def test_a_second_policy_watches_for_who_may_change_jobs(
    jobs: Jobs, add_nodes: AddNodes, people: People, operator: OperatorProcess
) -> None:
    add_nodes(1, NodeShape(gpus=1))
    with people.client("watcher") as watcher:
        with pytest.raises(ApiError) as refused:
            watcher.set_shadow("srjf")
        assert refused.value.status == 403
    with people.client("keeper") as keeper:
        keeper.set_shadow("srjf")
        jobs.submit("one", "Pods").runs_with(1)
        wait_until(lambda: keeper.shadow().cycles > 0, "the shadow to look at a cycle")
        assert "batuta_shadow_differences" in operator.metrics()
        keeper.set_shadow("")
        noted = [(one.data["action"], one.data["target"]) for one in keeper.audit() if one.type == "ActionTaken"]
        assert noted[-2:] == [("shadow.set", "srjf"), ("shadow.set", "none")]


def test_jobs_are_changed_through_the_cluster_only(jobs: Jobs, add_nodes: AddNodes, people: People) -> None:
    add_nodes(1, NodeShape(gpus=1))
    one = jobs.submit("one", "Pods")
    one.runs_with(1)
    with people.client("keeper") as keeper:
        for change in (lambda: keeper.cancel("one"), lambda: keeper.set_policy("fifo")):
            with pytest.raises(ApiError) as refused:
                change()
            assert refused.value.status == 405
            assert "through the cluster" in str(refused.value)
        with pytest.raises(ApiError) as nothing:
            list(keeper.logs("one"))
        assert nothing.value.status == 501
    assert one.state == "RUNNING"


def test_who_is_not_known_or_may_not_see_jobs_is_told_nothing(people: People) -> None:
    with people.client("nobody") as client, pytest.raises(ApiError) as refused:
        client.jobs()
    assert refused.value.status == 403
    for token in ("", "made-up"):
        with (
            Client(people.url, token, ca_file=people.ca_file) as client,
            pytest.raises(ApiError) as unknown,
        ):
            client.jobs()
        assert unknown.value.status == 401


@pytest.mark.parametrize("whose", ["keeper, for the API server", "keeper, for Vault"])
def test_a_token_that_was_made_for_another_is_worth_nothing_here(people: People, whose: str) -> None:
    with people.client(whose) as client, pytest.raises(ApiError) as unknown:
        client.jobs()
    assert unknown.value.status == 401


def test_the_journal_can_be_replayed_and_names_the_policy_that_decided(
    jobs: Jobs, add_nodes: AddNodes, people: People, operator: OperatorProcess
) -> None:
    """Given a job that has ended, when the operator's journal is replayed, then it is compared."""
    begun = time.time() - 1
    add_nodes(1, NodeShape(gpus=1))
    jobs.submit("short", "Pods", pod={"runs_for": "1s"}).reaches("SUCCEEDED")
    with people.client("watcher") as client:
        policy = client.policy().name
    home = operator.folder / "one-state"
    words = ["replay", "--from", "1h", "--policy", "srjf", "--home", str(home), "-o", "json"]

    def look() -> dict[str, Any]:
        ran = subprocess.run([BATUTA, *words], capture_output=True, text=True, timeout=120, check=False)
        return json.loads(ran.stdout) if ran.returncode == 0 else {}

    told = wait_until(look, "the end to be in the journal")
    assert told["control"] == policy
    assert told["to_s"] > begun
    assert {row["policy"] for row in told["rows"]} == {"", policy, "srjf"}


def test_the_result_of_a_job_is_told(
    jobs: Jobs, add_nodes: AddNodes, people: People, kubelet: FakeKubelet, cluster: ControlPlane
) -> None:
    kubelet.serve(cluster, add_nodes(1, NodeShape(gpus=1)))
    job = jobs.submit("one", "Pods", pod={"runs_for": "3600s"})
    job.runs_with(1)
    said = json.dumps({"event": "result", "value": {"accuracy": 0.9}})
    kubelet.print(jobs.namespace, "one-0", f"{names.REPORT_PREFIX}{said}\n")
    jobs.api.patch(f"{jobs.pods_path}/one-0/status", {"status": {"phase": "Succeeded"}})
    job.reaches("SUCCEEDED")
    with people.client("watcher") as client:
        assert client.result("one") == {"accuracy": 0.9}
