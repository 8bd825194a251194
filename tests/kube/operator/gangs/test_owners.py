"""Gangs by their owners: Jobs, JobSets, and the PodGroups of two projects."""

from batuta.backends.kube import names
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.pods import Manifest, Pods, make_pod


def make_job(name: str, parallelism: int, gpus: int = 1, completions: int | None = None) -> Manifest:
    pod = make_pod("", gpus)
    template = {"metadata": {"annotations": {}}, "spec": pod["spec"] | {"restartPolicy": "Never"}}
    size = {"parallelism": parallelism, "completions": completions or parallelism}
    return {"metadata": {"name": name}, "spec": size | {"template": template, "backoffLimit": 3}}


def create_job(pods: Pods, job: Manifest) -> None:
    pods.cluster.api.create(f"/apis/batch/v1/namespaces/{pods.namespace}/jobs", job)


def test_the_pods_of_a_job_start_together(pods, add_nodes):
    """Given a Job of three pods and room for two, none is bound; with room for all, all are."""
    add_nodes(1, NodeShape(gpus=4))
    create_job(pods, make_job("train", 3, gpus=2))
    wait_until(lambda: len(pods.all()) == 3, "the pods of the Job")
    pods.wait_for_word(min(pods.all()), "needs 6 GPUs")
    assert not pods.bound()
    add_nodes(1, NodeShape(gpus=4))
    wait_until(lambda: len(pods.bound()) == 3, "all to be bound")


def test_a_job_with_more_completions_than_pods_goes_on_to_its_end(pods, add_nodes):
    """Given a Job of two pods at a time, when some end, then the next ones take their places."""
    add_nodes(1, NodeShape(gpus=2))
    job = make_job("sweep", 2, completions=5)
    job["spec"]["template"]["metadata"]["annotations"]["tests.batuta.dev/runs-for"] = "500ms"
    create_job(pods, job)
    path = f"/apis/batch/v1/namespaces/{pods.namespace}/jobs/sweep"
    wait_until(lambda: pods.cluster.api.get(path)["status"].get("succeeded") == 5, "all to succeed", 60.0)


def test_a_pod_of_a_job_that_is_lost_is_made_good_and_the_others_run_on(pods, add_nodes):
    """Given a Job that runs, when one of its pods is deleted, then another takes its place."""
    add_nodes(1, NodeShape(gpus=2))
    create_job(pods, make_job("train", 2))
    wait_until(lambda: len(pods.bound()) == 2, "both to be bound")
    before = pods.gpus()
    lost, other = sorted(before)
    pods.delete(lost)

    def look() -> dict[str, tuple[str, str]]:
        found = pods.gpus()
        return found if len(found) == 2 and lost not in found else {}

    after = wait_until(look, "another pod")
    assert after[other] == before[other]
    assert sorted(after.values()) == sorted(before.values())


def test_the_pods_of_a_job_set_start_together(pods, add_nodes):
    """Given a JobSet of two Jobs, their pods wait for each other. (The test makes the pods.)"""
    add_nodes(1, NodeShape(gpus=4))
    pod = make_pod("", 1)["spec"] | {"restartPolicy": "Never"}
    part = {"template": {"spec": {"parallelism": 2, "template": {"spec": pod}}}}
    pods.cluster.apply(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "set", "namespace": pods.namespace},
            "spec": {"replicatedJobs": [{"name": "a", "replicas": 1} | part, {"name": "b", "replicas": 1} | part]},
        }
    )
    label = {"jobset.sigs.k8s.io/jobset-name": "set"}
    members = [make_pod(f"set-{part}-{index}", labels=label) for part in "ab" for index in range(2)]
    pods.create(*members[:3], make_pod("free"))
    pods.wait_for("free")
    assert pods.bound().keys() == {"free"}
    pods.delete("free")
    pods.create(members[3])
    pods.wait_for(*(member["metadata"]["name"] for member in members))


def test_a_pod_group_says_how_many_start_together(pods, add_nodes):
    """Given a PodGroup of at least two, one pod waits, two are bound, and a third comes in later."""
    add_nodes(1, NodeShape(gpus=4))
    label = {names.POD_GROUP: "group"}
    first, second, third = (make_pod(f"member-{index}", labels=label) for index in range(3))
    pods.create(first, make_pod("free"))
    pods.wait_for("free")
    pods.cluster.apply(
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "group", "namespace": pods.namespace},
            "spec": {"minMember": 2},
        }
    )
    pods.wait_for_word("member-0", "1 of 2 pods")
    assert pods.bound().keys() == {"free"}
    pods.create(second)
    pods.wait_for("member-0", "member-1")
    pods.create(third)
    pods.wait_for("member-2")


def make_topology(node: str, cpus: int, gpus: int) -> Manifest:
    """A node with two NUMA nodes, each with so much; its kubelet refuses what needs both."""
    zones = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "resources": [
                {"name": name, "capacity": str(n), "allocatable": str(n), "available": str(n)}
                for name, n in (("cpu", cpus), ("nvidia.com/gpu", gpus))
            ],
        }
        for number in range(2)
    ]
    policies = [
        {"name": "topologyManagerPolicy", "value": "single-numa-node"},
        {"name": "topologyManagerScope", "value": "container"},
    ]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "topologyPolicies": ["SingleNUMANodeContainerLevel"],
        "attributes": policies,
        "zones": zones,
    }


def test_a_pod_that_needs_one_numa_node_is_not_bound_where_the_kubelet_would_refuse_it(pods, add_nodes):
    """Given a node of two halves, a pod that needs more than one half waits; on a plain node it runs."""
    (halves,) = add_nodes(1, NodeShape(gpus=4))
    pods.cluster.apply(make_topology(halves, cpus=48, gpus=2))
    whole = make_pod("whole", gpus=3, cpu="4")
    whole["spec"]["containers"][0]["resources"]["limits"] |= {"cpu": "4", "memory": "1Gi"}
    whole["spec"]["containers"][0]["resources"]["requests"] |= {"memory": "1Gi"}
    half = make_pod("half", gpus=2, cpu="4")
    half["spec"]["containers"][0]["resources"]["limits"] |= {"cpu": "4", "memory": "1Gi"}
    half["spec"]["containers"][0]["resources"]["requests"] |= {"memory": "1Gi"}
    pods.create(whole)
    pods.wait_for_word("whole", "NUMA")
    pods.create(half)
    pods.wait_for("half")
    assert pods.bound() == {"half": halves}
    (plain,) = add_nodes(1, NodeShape(gpus=4))
    pods.wait_for("whole")
    assert pods.bound()["whole"] == plain


def test_gangs_whose_size_makes_no_sense_wait_and_say_so(pods, add_nodes):
    """All at once, with room for each: that members are missing is not said before some seconds have passed."""
    sizes = {"zero": "0", "negative": "-1", "word": "many", "huge": "99999999999999999999"}
    add_nodes(1, NodeShape(gpus=len(sizes)))
    pods.create(
        *(
            make_pod(name, labels={names.GANG_NAME: name}, annotations={names.GANG_SIZE: size})
            for name, size in sizes.items()
        )
    )
    for name in sizes:
        pods.wait_for_word(name, "of an unknown number")
    assert not pods.bound()
