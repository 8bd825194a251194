import pytest

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes import BUILT_IN
from batuta.backends.kube.jobtypes.job_type import CONFIG_MAP, JOB, MPI_JOB, Change, Observed, Run
from batuta.backends.kube.objects import Condition, Meta, Pod, PodStatus
from tests.support.unified_jobs import ON_CPU, unified_job

TORCH, HOROVOD = BUILT_IN["TorchElastic"], BUILT_IN["ElasticHorovod"]


def pet(run: Run, index: int = 0, **changes: object) -> dict[str, str]:
    child = TORCH.children(unified_job(**changes), run)[1 + index]
    listed = child.manifest["spec"]["containers"][0]["env"]
    return {one["name"]: one["value"] for one in listed if one["name"].startswith("PET_")}


def worker(index: int, start: int = 0, *, ready: bool = True, going: bool = False, role: str = "worker") -> Pod:
    labels = {names.START: str(start), names.ROLE: role, names.REPLICA_INDEX: str(index)}
    return Pod(
        metadata=Meta(
            name=f"resnet-{index}" if role == "worker" else "resnet-launcher-x",
            labels=labels,
            deletion_timestamp="2026-01-01T00:00:00Z" if going else "",
        ),
        status=PodStatus(phase="Running", conditions=[Condition(type="Ready", status="True" if ready else "False")]),
    )


@pytest.mark.parametrize(
    ("job_type", "before", "after", "how"),
    [
        ("TorchElastic", 2, 4, Change.IN_PLACE),
        ("TorchElastic", 4, 2, Change.BY_RESTART),
        ("ElasticHorovod", 2, 4, Change.IN_PLACE),
        ("ElasticHorovod", 4, 2, Change.IN_PLACE),
        ("Pods", 2, 4, Change.BY_RESTART),
        ("Job", 4, 2, Change.BY_RESTART),
        ("MPIJob", 2, 4, Change.BY_RESTART),
    ],
)
def test_how_each_type_gets_to_another_size(job_type: str, before: int, after: int, how: Change) -> None:
    run = Run(before, first=before, ceiling=8)
    assert BUILT_IN[job_type].change(unified_job(job_type=job_type), run, after) is how


def test_a_torch_job_restarts_to_grow_beyond_the_range_that_its_agents_know() -> None:
    job = unified_job(replicas={"maxReplicas": 16})
    assert TORCH.change(job, Run(4, first=4, ceiling=8), 16) is Change.BY_RESTART


def test_an_mpi_launcher_that_looks_up_its_hosts_is_not_restarted() -> None:
    command = ["horovodrun", "--host-discovery-script", "/etc/mpi/discover_hosts.sh", "python", "train.py"]
    job = unified_job(job_type="MPIJob", pod={"containers": [{"name": "a", "command": command}]})
    assert BUILT_IN["MPIJob"].change(job, Run(2), 4) is Change.IN_PLACE
    (before,), (after,) = (BUILT_IN["MPIJob"].children(job, Run(n)) for n in (2, 4))
    assert before.kind is MPI_JOB
    assert before.manifest["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    assert after.manifest["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 4


def test_torchrun_waits_for_all_that_it_is_started_with_and_has_room_to_grow() -> None:
    env = pet(Run(2, start=1, first=2, ceiling=8))
    assert env["PET_NNODES"] == "2:8"
    assert env["PET_RDZV_BACKEND"] == "c10d"
    assert env["PET_RDZV_ENDPOINT"] == "resnet-0.resnet.team-a.svc:29400"
    assert env["PET_RDZV_ID"] == "11111111-2222-1"
    assert env["PET_MAX_RESTARTS"] == "0"


def test_torchrun_of_a_job_at_its_largest_size_waits_for_nobody_else() -> None:
    assert pet(Run(8, first=8, ceiling=8))["PET_NNODES"] == "8"
    assert pet(Run(1), replicas={"maxReplicas": 1})["PET_NNODES"] == "1"


def test_members_that_come_later_have_the_range_of_those_that_are_there() -> None:
    grown = Run(4, first=2, ceiling=8)
    assert {pet(grown, index)["PET_NNODES"] for index in range(4)} == {"2:8"}
    assert pet(grown, 3)["PET_RDZV_ID"] == pet(Run(2, first=2, ceiling=8))["PET_RDZV_ID"]


def test_replica_0_hosts_the_rendezvous_and_says_so() -> None:
    assert "is_host=true" in pet(Run(2))["PET_RDZV_CONF"]
    assert "is_host=false" in pet(Run(2), 1)["PET_RDZV_CONF"]


def test_the_users_own_rendezvous_settings_win() -> None:
    own = [{"name": "PET_RDZV_CONF", "value": "last_call_timeout=60"}, {"name": "PET_NNODES", "value": "1"}]
    env = pet(Run(2), pod={"containers": [{"name": "a", "env": own}]})
    assert env["PET_RDZV_CONF"] == "last_call_timeout=60"
    assert env["PET_NNODES"] == "2:8", "the size is Batuta's to say"


def test_horovod_is_told_of_the_workers_that_can_be_reached_and_stay() -> None:
    job = unified_job(job_type="ElasticHorovod", replicas={"gpusPerReplica": 2})
    pods = [
        worker(1),
        worker(0),
        worker(2, ready=False),
        worker(3, going=True),
        worker(9),
        worker(0, start=7),
    ]
    follow = HOROVOD.follow(job, Run(4), Observed([*pods, worker(0, role="launcher")]))
    (hosts,) = follow.children
    assert hosts.kind is CONFIG_MAP
    assert hosts.manifest["data"]["discover-hosts.sh"] == (
        "#!/bin/sh\necho resnet-0.resnet.team-a.svc:2\necho resnet-1.resnet.team-a.svc:2\n"
    )
    assert follow.nudge == ("resnet-launcher-x",), "its kubelet would look a minute later"


def test_a_worker_without_gpus_has_one_slot() -> None:
    job = unified_job(job_type="ElasticHorovod", replicas=ON_CPU)
    (hosts,) = HOROVOD.follow(job, Run(1), Observed([worker(0)])).children
    assert hosts.manifest["data"]["hostfile"] == "resnet-0.resnet.team-a.svc slots=1\n"


def test_a_horovod_launcher_is_not_replaced_by_a_resize() -> None:
    job = unified_job(job_type="ElasticHorovod")
    launchers = [
        child
        for target in (2, 4)
        for child in HOROVOD.children(job, Run(target, first=2, ceiling=8))
        if child.kind is JOB
    ]
    assert launchers[0].manifest == launchers[1].manifest


def test_a_job_changes_nothing_but_what_a_suspended_one_may_change() -> None:
    kind, job = BUILT_IN["Job"], unified_job(job_type="Job")
    before, after = (kind.children(job, run)[1].manifest for run in (Run(2, 0), Run(4, 1)))
    assert before["spec"]["template"]["spec"] == after["spec"]["template"]["spec"]
    assert (after["spec"]["parallelism"], after["spec"]["completions"]) == (4, 4)
    env = {one["name"]: one for one in after["spec"]["template"]["spec"]["containers"][0]["env"]}
    for name in ("WORLD_SIZE", "BATUTA_RESTART", "RANK"):
        assert "fieldRef" in env[name]["valueFrom"]
