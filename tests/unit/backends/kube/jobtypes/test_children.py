from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes import BUILT_IN, load_job_types
from batuta.backends.kube.jobtypes.job_type import POD, Child, Observed, Run, Update
from tests.support.unified_jobs import ON_CPU, unified_job

ALL = sorted(BUILT_IN)


def children(job_type: str, run: Run, **changes: Any) -> list[Child]:
    kind, job = BUILT_IN[job_type], unified_job(job_type=job_type, **changes)
    return [*kind.children(job, run), *kind.follow(job, run, Observed()).children]


def templates(child: Child) -> list[dict[str, Any]]:
    """The pods that a child is, or makes."""
    spec = child.manifest.get("spec", {})
    if child.kind is POD:
        return [child.manifest]
    if "template" in spec:
        return [spec["template"]]
    return [one["template"] for one in spec.get("mpiReplicaSpecs", {}).values()]


def workers(job_type: str, run: Run, **changes: Any) -> list[dict[str, Any]]:
    found = [template for child in children(job_type, run, **changes) for template in templates(child)]
    return [one for one in found if one["metadata"]["labels"][names.ROLE] == "worker"]


def env_of(pod: dict[str, Any]) -> dict[str, str]:
    listed = pod["spec"]["containers"][0]["env"]
    assert len({one["name"] for one in listed}) == len(listed), "a variable is set twice"
    return {one["name"]: one.get("value", "") for one in listed}


@pytest.mark.parametrize("job_type", ALL)
def test_all_children_go_with_their_job_and_are_found_by_its_name(job_type: str) -> None:
    for child in children(job_type, Run(2)):
        (owner,) = child.manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("UnifiedJob", "resnet", "11111111-2222")
        assert owner["controller"]
        assert owner["blockOwnerDeletion"]
        assert child.manifest["metadata"]["labels"][names.JOB_NAME] == "resnet"
        assert child.manifest["metadata"]["namespace"] == "team-a"


@pytest.mark.parametrize("job_type", ALL)
def test_every_pod_is_bound_by_batuta_and_tells_its_start_and_role(job_type: str) -> None:
    found = [one for child in children(job_type, Run(2, 3)) for one in templates(child)]
    assert found
    for pod in found:
        assert pod["spec"]["schedulerName"] == "batuta"
        labels = pod["metadata"]["labels"]
        assert (labels[names.JOB_NAME], labels[names.START]) == ("resnet", "3")
        assert labels[names.ROLE] in ("worker", "launcher")
        assert labels[names.QUEUE_NAME] == "default"


@pytest.mark.parametrize("job_type", ALL)
def test_what_the_user_wrote_stays(job_type: str) -> None:
    for pod in workers(job_type, Run(2)):
        assert pod["metadata"]["labels"]["team"] == "vision"
        assert pod["metadata"]["annotations"]["note"] == "kept"
        assert pod["spec"]["terminationGracePeriodSeconds"] == 120
        assert pod["spec"]["securityContext"] == {"fsGroup": 2000}
        assert env_of(pod)["MODEL"] == "13b"


@pytest.mark.parametrize("job_type", ALL)
def test_the_template_itself_is_never_changed(job_type: str) -> None:
    job = unified_job(job_type=job_type)
    before = repr(job.spec)
    BUILT_IN[job_type].children(job, Run(2))
    assert repr(job.spec) == before


@pytest.mark.parametrize("job_type", ALL)
def test_workers_get_the_gpus_and_launchers_none(job_type: str) -> None:
    found = [one for child in children(job_type, Run(2), replicas={"gpusPerReplica": 4}) for one in templates(child)]
    for pod in found:
        resources = pod["spec"]["containers"][0]["resources"]
        if pod["metadata"]["labels"][names.ROLE] == "worker":
            assert resources["limits"]["nvidia.com/gpu"] == "4"
            assert resources["requests"] == {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": "4"}
        else:
            assert "gpu" not in str(resources)


@pytest.mark.parametrize("job_type", ALL)
def test_a_job_without_gpus_asks_for_none_and_has_one_process_in_each_replica(job_type: str) -> None:
    made = children(job_type, Run(2), replicas=ON_CPU)
    for pod in (one for child in made for one in templates(child)):
        assert "gpu" not in str(pod["spec"]["containers"][0]["resources"])
        env = env_of(pod)
        assert (env["SKYPILOT_NUM_GPUS_PER_NODE"], env["PET_NPROC_PER_NODE"]) == ("0", "1")
        assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")
        assert env.get("BATUTA_NUM_PROCS", "2") == "2"
    for child in made:
        assert child.manifest.get("spec", {}).get("slotsPerWorker", 1) == 1


def test_gpus_that_the_template_names_are_left_to_it() -> None:
    asked = {"limits": {"amd.com/gpu": 1}}
    (pod,) = workers("Pods", Run(1), pod={"containers": [{"name": "a", "resources": asked}]})
    assert pod["spec"]["containers"][0]["resources"] == asked


def test_a_share_is_asked_for_in_mib_and_percent() -> None:
    (pod,) = workers("Pods", Run(1), replicas={"maxReplicas": 1}, sharing={"gpuMemory": "8Gi", "gpuCompute": 50})
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {names.SHARE_MEMORY: "32", names.SHARE_COMPUTE: "50"}


@pytest.mark.parametrize("job_type", ["Pods", "TorchElastic", "ElasticHorovod"])
def test_members_have_stable_names_that_the_others_can_look_up(job_type: str) -> None:
    found = workers(job_type, Run(3))
    assert [pod["metadata"]["name"] for pod in found] == ["resnet-0", "resnet-1", "resnet-2"]
    assert [pod["spec"]["hostname"] for pod in found] == ["resnet-0", "resnet-1", "resnet-2"]
    assert {pod["spec"]["subdomain"] for pod in found} == {"resnet"}
    (service,) = [child for child in children(job_type, Run(3)) if child.kind.kind == "Service"]
    assert service.name == "resnet"
    assert service.manifest["spec"]["clusterIP"] == "None"
    assert service.manifest["spec"]["publishNotReadyAddresses"]


@pytest.mark.parametrize("job_type", ["Pods", "TorchElastic"])
def test_the_environment_is_that_of_every_other_place(job_type: str) -> None:
    env = env_of(workers(job_type, Run(2, start=5), replicas={"gpusPerReplica": 4})[1])
    assert env["BATUTA_JOB_ID"] == "team-a/resnet"
    assert (env["BATUTA_REPLICA"], env["BATUTA_RESTART"]) == ("1", "5")
    assert (env["RANK"], env["WORLD_SIZE"]) == ("1", "2")
    assert (env["SKYPILOT_NODE_RANK"], env["SKYPILOT_NUM_NODES"]) == ("1", "2")
    assert (env["SKYPILOT_NUM_GPUS_PER_NODE"], env["PET_NPROC_PER_NODE"]) == ("4", "4")
    assert env["MASTER_ADDR"] == "resnet-0.resnet.team-a.svc"
    assert env["SKYPILOT_NODE_IPS"] == "resnet-0.resnet.team-a.svc\nresnet-1.resnet.team-a.svc"
    assert env["BATUTA_PROGRESS"] == "/dev/stderr"


def test_a_volume_named_checkpoints_is_where_checkpoints_go() -> None:
    mounts = [{"name": "checkpoints", "mountPath": "/ckpt"}]
    (pod,) = workers("Pods", Run(1), pod={"containers": [{"name": "a", "volumeMounts": mounts}]})
    assert env_of(pod)["BATUTA_CHECKPOINT_DIR"] == "/ckpt"


def test_a_checkpoint_folder_of_the_users_own_choice_wins() -> None:
    env = [{"name": "BATUTA_CHECKPOINT_DIR", "value": "/mine"}]
    (pod,) = workers("Pods", Run(1), pod={"containers": [{"name": "a", "env": env}]})
    assert env_of(pod)["BATUTA_CHECKPOINT_DIR"] == "/mine"


@pytest.mark.parametrize("job_type", ALL)
def test_a_run_without_members_has_no_pods(job_type: str) -> None:
    for child in children(job_type, Run(0, 2)):
        assert child.kind is not POD
        assert child.update is Update.APPLY or child.only_change


@pytest.mark.parametrize("job_type", ALL)
def test_the_same_run_always_has_the_same_children(job_type: str) -> None:
    first, second = children(job_type, Run(2, 1)), children(job_type, Run(2, 1))
    assert [child.manifest for child in first] == [child.manifest for child in second]


@pytest.mark.parametrize(("count", "listed"), [(1000, 1000), (5000, 1783)])
def test_a_huge_job_lists_its_hosts_by_short_names_and_never_lists_none(count: int, listed: int) -> None:
    job = unified_job(replicas={"maxReplicas": count})
    pods = BUILT_IN["Pods"].children(job, Run(count))[1:]
    assert len(pods) == count
    hosts = env_of(pods[7].manifest)["SKYPILOT_NODE_IPS"].split("\n")
    assert (len(hosts), hosts[0], hosts[-1]) == (listed, "resnet-0.resnet", f"resnet-{listed - 1}.resnet")


def test_a_type_that_is_not_there_is_named_with_those_that_are() -> None:
    types = load_job_types()
    assert types.get("TorchElastic") is BUILT_IN["TorchElastic"]
    assert types.get("example.com/Ray") is None
    assert "it has Job, TorchElastic" in types.why_not("example.com/Ray")
