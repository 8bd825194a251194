"""The control plane that the other tests stand on does what they take for granted."""

import os
import ssl
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube.api import ApiError
from tests.support.kube.control_plane import CommandFailed, ControlPlane, wait_until
from tests.support.kube.flags import GANG_SCHEDULING, Options
from tests.support.kube.nodes import GPU, NodeShape
from tests.support.kube.toolchain import REPO


def pod(name: str, gpus: int = 1, **annotations: str) -> dict[str, Any]:
    """A pod that no scheduler looks at; `runs_for="1s"` is the annotation tests.batuta.dev/runs-for."""
    keys = {f"tests.batuta.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: str(gpus)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": keys},
        "spec": {"schedulerName": "by-hand", "restartPolicy": "Never", "containers": [container]},
    }


def phase(cluster: ControlPlane, namespace: str, name: str) -> str:
    return cluster.pod(namespace, name)["status"]["phase"]


def wait_for_phase(cluster: ControlPlane, namespace: str, name: str, wanted: str) -> None:
    wait_until(lambda: phase(cluster, namespace, name) == wanted, f"{name} to be {wanted}")


class TestFakeNodes:
    def test_nodes_are_ready_and_have_gpus_racks_and_zones(self, cluster, add_nodes):
        names = add_nodes(9, NodeShape(gpus=4, product="NVIDIA-H100-80GB-HBM3", nodes_per_rack=4, racks_per_zone=2))

        first, last = (cluster.api.get(f"/api/v1/nodes/{name}") for name in (names[0], names[-1]))

        ready = [each["status"] for each in first["status"]["conditions"] if each["type"] == "Ready"]
        assert ready == ["True"]
        assert first["status"]["allocatable"][GPU] == "4"
        assert "taints" not in first["spec"], "a taint that nobody takes away would keep every pod out"
        labels = last["metadata"]["labels"]
        assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
        assert labels["topology.kubernetes.io/rack"] == "rack-2"
        assert labels["topology.kubernetes.io/zone"] == "zone-1"

    def test_a_node_that_is_told_to_be_lost_stays_lost(self, cluster, add_nodes):
        [name] = add_nodes(1)
        lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}

        cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [lost]}}, kind="strategic")
        bare = cluster.api.create("/api/v1/nodes", {"metadata": bare_metadata(f"{name}-bare")})

        # KWOK has seen the later node, so it had its chance with the earlier one.
        wait_until(lambda: ready_state(cluster, f"{name}-bare") == "True", "a bare node to get ready")
        assert ready_state(cluster, name) == "Unknown"
        cluster.delete_nodes([bare["metadata"]["name"]])


class TestPodsOnFakeNodes:
    def test_a_pod_that_is_bound_by_hand_runs_until_it_is_deleted(self, cluster, namespace, add_nodes):
        [node] = add_nodes(1)
        cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("worker"))
        assert phase(cluster, namespace, "worker") == "Pending"

        cluster.bind(namespace, "worker", to=node)

        wait_for_phase(cluster, namespace, "worker", "Running")
        status = cluster.pod(namespace, "worker")["status"]
        assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "True"
        assert status["podIP"]
        cluster.api.delete(f"/api/v1/namespaces/{namespace}/pods/worker")
        wait_until(lambda: not cluster.api.items(f"/api/v1/namespaces/{namespace}/pods"), "the pod to be gone")

    def test_annotations_say_how_a_pod_ends(self, cluster, namespace, add_nodes):
        [node] = add_nodes(1)
        for wish in (pod("good", runs_for="10ms"), pod("bad", fails_after="10ms", exit_code="137")):
            cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", wish)
            cluster.bind(namespace, wish["metadata"]["name"], to=node)

        wait_for_phase(cluster, namespace, "good", "Succeeded")
        wait_for_phase(cluster, namespace, "bad", "Failed")
        [container] = cluster.pod(namespace, "bad")["status"]["containerStatuses"]
        assert container["state"]["terminated"]["exitCode"] == 137

    def test_a_job_completes_when_its_pods_do(self, cluster, namespace, add_nodes):
        [node] = add_nodes(1)
        wish = pod("unused", runs_for="10ms")
        template = {"metadata": {"annotations": wish["metadata"]["annotations"]}, "spec": wish["spec"]}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train"},
            "spec": {"template": template},
        }
        cluster.apply(job, "--namespace", namespace)

        [child] = wait_until(lambda: cluster.api.items(f"/api/v1/namespaces/{namespace}/pods"), "the Job's pod")
        cluster.bind(namespace, child["metadata"]["name"], to=node)

        cluster.kubectl("wait", "--for=condition=Complete", "job/train", "-n", namespace, "--timeout=60s")


class TestTrouble:
    def test_an_outage_of_the_api_server_loses_nothing_but_the_past(self, make_cluster):
        cluster = make_cluster()
        [node] = cluster.add_nodes(1)

        cluster.stop_api_server()
        with pytest.raises((ConnectionError, ssl.SSLError)):
            cluster.api.create("/api/v1/namespaces", {"metadata": {"name": "lost"}})
        cluster.start_api_server()

        assert cluster.new_namespace("after"), "a client from before the outage is as good as new"
        assert [each["metadata"]["name"] for each in cluster.api.items("/api/v1/nodes")] == [node]

        before = cluster.api.get("/api/v1/nodes")["metadata"]["resourceVersion"]
        cluster.add_nodes(2, prefix="more")

        cluster.forget_history()

        assert first_event_of_watch(cluster, before)["object"]["code"] == 410
        now = cluster.api.get("/api/v1/nodes")["metadata"]["resourceVersion"]
        cluster.add_nodes(1, prefix="later")
        assert first_event_of_watch(cluster, now)["object"]["metadata"]["name"] == "later-0"

    def test_one_that_sleeps_takes_no_cpu_and_goes_on_when_it_wakes_up(self, cluster, namespace):
        cluster.pause()
        time.sleep(0.5)  # a thread that waits for a core stops when it gets one
        try:
            before = cluster.programs.cpu_s()
            time.sleep(1.0)
            assert cluster.programs.cpu_s() == before
        finally:
            cluster.resume()
        assert cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("later"))["kind"] == "Pod"
        assert cluster.programs.ended() == []

    def test_nothing_is_left_when_the_tests_are_killed(self, programs_for, tmp_path):
        programs_for(Options())
        host = subprocess.Popen(
            [sys.executable, "-c", HOST, str(tmp_path)],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with host:
            assert host.stdout is not None
            pids = [int(word) for word in host.stdout.readline().split()]
            assert len(pids) == 3
            assert all(is_alive(pid) for pid in pids)

            host.kill()

        wait_until(lambda: not any(is_alive(pid) for pid in pids), "the control plane to follow")


class TestScheduler:
    def test_the_native_gang_waits_for_its_last_member(self, make_cluster):
        cluster = make_cluster(GANG_SCHEDULING)
        cluster.add_nodes(1)
        group = {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "gang", "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }
        cluster.apply([group, member("first"), alone("alone")])
        wait_for_phase(cluster, "default", "alone", "Running")
        assert phase(cluster, "default", "first") == "Pending"

        cluster.apply(member("second"))

        wait_for_phase(cluster, "default", "first", "Running")
        wait_for_phase(cluster, "default", "second", "Running")


class TestUsers:
    def test_rbac_denies_what_is_not_granted(self, cluster, namespace):
        with cluster.api_as("alice", ["ml"]) as alice:
            with pytest.raises(ApiError) as refusal:
                alice.items(f"/api/v1/namespaces/{namespace}/pods")
            assert refusal.value.status == 403

            cluster.kubectl("create", "rolebinding", "ml", "--clusterrole=view", "--group=ml", "-n", namespace)

            assert wait_until(lambda: may_list(alice, namespace), "the role binding to count")
            with pytest.raises(ApiError) as refusal:
                alice.create(f"/api/v1/namespaces/{namespace}/pods", pod("not-hers"))
            assert refusal.value.status == 403

    def test_kubectl_asks_as_the_user_of_the_kubeconfig(self, cluster, namespace):
        with pytest.raises(CommandFailed, match='User "bob" cannot list resource "secrets"'):
            cluster.kubectl("get", "secrets", kubeconfig=cluster.kubeconfig("bob", namespace=namespace))

    def test_requests_are_counted_by_user(self, cluster, namespace):
        mark = cluster.requests.mark()
        with cluster.api_as("counted", ["system:masters"]) as counted:
            for _ in range(3):
                counted.items(f"/api/v1/namespaces/{namespace}/pods")
            counted.create(f"/api/v1/namespaces/{namespace}/pods", pod("one"))

        assert cluster.requests.count(mark, user="counted") == {("list", "pods"): 3, ("create", "pods"): 1}


PROC = Path("/proc")

# What a test process does: it starts a control plane, says which processes that are, and waits.
HOST = """
import sys
from contextlib import closing
from pathlib import Path
from tests.support.kube.control_plane import ControlPlane

with ControlPlane(Path(sys.argv[1])) as cluster:
    print(*cluster.programs.pids(), flush=True)
    sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # An orphan that has ended is a zombie until it is reaped; macOS does so at once, and has no /proc.
        return not PROC.exists() or (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def alone(name: str) -> dict[str, Any]:
    """A pod for kube-scheduler."""
    wish = pod(name)
    del wish["spec"]["schedulerName"]
    return {**wish, "metadata": {**wish["metadata"], "namespace": "default"}}


def member(name: str) -> dict[str, Any]:
    wish = alone(name)
    wish["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    return wish


def bare_metadata(name: str) -> dict[str, Any]:
    return {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}}


def ready_state(cluster: ControlPlane, name: str) -> str | None:
    conditions = cluster.api.get(f"/api/v1/nodes/{name}")["status"].get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == "Ready"), None)


def may_list(api: Any, namespace: str) -> bool:
    try:
        api.items(f"/api/v1/namespaces/{namespace}/pods")
    except ApiError as refusal:
        if refusal.status != 403:
            raise
        return False
    return True


def first_event_of_watch(cluster: ControlPlane, version: str) -> dict[str, Any]:
    with closing(cluster.api.watch("/api/v1/nodes", version)) as events:
        return next(events)
