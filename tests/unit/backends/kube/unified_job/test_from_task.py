import os
import signal
import subprocess
from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.crd import broken
from batuta.backends.kube.unified_job.from_task import TaskManifests, from_task
from batuta.backends.kube.unified_job.model import RULES
from batuta.backends.kube.unified_job.to_job import to_job
from batuta.core.job import Job, JobKind, Share, Spread
from batuta.spec.problem import InputError
from batuta.spec.task import Task, parse_task
from tests.support.unified_jobs import read

IMAGE = "resources: {image_id: 'docker:example.com/train:1', accelerators: H100:2, cpus: 8+, memory: 64}"
DONE = "setup failed with exit code 3"


def task(text: str) -> Task:
    return parse_task(text, check_paths=False)


def convert(text: str, **options: Any) -> TaskManifests:
    return from_task(task(text), "team-a", **options)


def job_of(text: str, **options: Any) -> Job:
    """The task's job after a way through the cluster."""
    body = convert(text, **options).job
    body["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z"}
    job = read(body)
    assert broken(RULES, job) == []
    found = to_job(job, {"high": 5, "": 0})
    assert isinstance(found, Job), found
    return found


def container_of(made: TaskManifests) -> dict[str, Any]:
    found: dict[str, Any] = made.job["spec"]["replicaSpec"]["template"]["spec"]["containers"][0]
    return found


def test_a_task_becomes_a_job_that_means_the_same() -> None:
    job = job_of(
        f"""
name: resnet
num_nodes: 2
{IMAGE}
run: torchrun train.py
elastic: {{min_nodes: 1, max_nodes: 8, sizes: [1, 2, 4, 8]}}
gpu: {{topology: require-rack, numa: single}}
""",
        user="ada",
        products=["NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"],
    )
    assert (job.id, job.user, job.kind) == ("team-a/resnet", "ada", JobKind.TORCH_ELASTIC)
    assert (job.min, job.size, job.max, job.sizes, job.gpus_per_replica) == (2, 4, 16, (2, 4, 8, 16), 2)
    assert (job.cpus_milli_per_gpu, job.memory_mib_per_gpu) == (4000, 32768)
    assert job.gpu_types == (("NVIDIA-H100-80GB-HBM3", 1.0),)
    assert (job.topology.within, job.topology.required, job.topology.single_numa) == (Spread.RACK, True, True)
    assert job.checkpoint_interval_s is None


@pytest.mark.parametrize(
    ("run", "job_type"),
    [
        ("python train.py", "Pods"),
        ("torchrun train.py", "TorchElastic"),
        ("mpirun -np 4 ./train", "MPIJob"),
        ("horovodrun --host-discovery-script $BATUTA_DISCOVERY_SCRIPT python x.py", "ElasticHorovod"),
    ],
)
def test_the_launcher_says_the_type(run: str, job_type: str) -> None:
    assert convert(f"name: a\n{IMAGE}\nrun: {run}\n").job["spec"]["jobType"] == job_type


def test_a_share_of_a_gpu_comes_along() -> None:
    text = """
name: small
resources: {image_id: 'docker:x', accelerators: 'H100:0.5'}
run: ./train
gpu: {memory: 8GiB}
"""
    assert job_of(text).share == Share(8192, 50)


def test_queue_class_time_limit_and_restarts_come_along() -> None:
    spec = convert(
        """
name: a
resources:
  image_id: docker:x
  accelerators: 1
  labels:
    kueue.x-k8s.io/queue-name: vision
    kueue.x-k8s.io/priority-class: high
    kueue.x-k8s.io/max-exec-time-seconds: 3600
    team: a
  job_recovery: {max_restarts_on_errors: 3}
run: ./train
elastic: {grace: 90s}
"""
    ).job
    assert spec["metadata"]["labels"] == {"team": "a"}
    found = spec["spec"]
    assert (found["queueName"], found["priorityClassName"]) == ("vision", "high")
    assert (found["activeDeadlineSeconds"], found["backoffLimit"]) == (3600, 3)
    assert found["replicaSpec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 90


def test_secrets_are_kept_in_a_secret_and_nowhere_else() -> None:
    made = convert(f"name: a\n{IMAGE}\nsecrets: {{TOKEN: hush}}\nenvs: {{MODEL: 13b}}\nrun: ./x\n")
    assert made.secret is not None
    assert made.secret["stringData"] == {"TOKEN": "hush"}
    assert container_of(made)["envFrom"] == [{"secretRef": {"name": made.secret["metadata"]["name"]}}]
    assert container_of(made)["env"] == [{"name": "MODEL", "value": "13b"}]
    assert "hush" not in str(made.job)


def test_everything_that_cannot_come_along_is_told_at_once() -> None:
    with pytest.raises(InputError) as told:
        convert("workdir: /home/ada/code\nfile_mounts: {/data: /home/ada/data}\nrun: ./x\n")
    text = str(told.value)
    assert "the job has no name" in text
    assert "a cluster needs an image" in text
    assert "workdir is a local folder" in text
    assert "file_mounts /data" in text


@pytest.mark.parametrize("image", ["ami-123", "docker:", "docker:a b", "docker:https://x/y"])
def test_an_image_for_machines_is_not_one_for_containers(image: str) -> None:
    with pytest.raises(InputError, match="is not a container image"):
        convert(f"name: a\nresources: {{image_id: '{image}'}}\nrun: ./x\n")


def test_a_workdir_that_is_in_the_image_is_where_the_task_starts() -> None:
    made = convert(f"name: a\n{IMAGE}\nworkdir: /home/ada\nrun: ./x\n", workdir_in_image="/app")
    assert container_of(made)["workingDir"] == "/app"


@pytest.mark.parametrize(
    ("name", "becomes"),
    [("ResNet_50", "resnet-50"), ("7b", "job-7b"), ("a" * 80, "a" * 50), ("x.y-", "x-y")],
)
def test_names_become_host_names(name: str, becomes: str) -> None:
    assert convert(f"{IMAGE}\nrun: ./x\n", name=name).job["metadata"]["name"] == becomes


def test_a_name_of_another_script_has_a_host_name_and_a_note() -> None:
    made = convert(f"name: 训练\n{IMAGE}\nrun: ./x\n")
    own = made.job["metadata"]["name"]
    assert own.startswith("job-")
    assert own.isascii()
    assert f"on the cluster it is called {own}: names of its objects are ASCII" in made.notes


def test_a_priority_number_is_noted() -> None:
    made = convert("name: a\nresources: {image_id: 'docker:x', priority: 5, accelerators: 1}\nrun: ./x\n")
    assert any("it is not used; name one with the label" in note for note in made.notes)


def test_when_it_saves_is_an_annotation() -> None:
    text = f"name: a\n{IMAGE}\nrun: ./x\nelastic: {{checkpoint: interval, checkpoint_interval: 10m}}\n"
    assert convert(text).job["metadata"]["annotations"][names.CHECKPOINT] == "600"


def as_the_kubelet_would(made: TaskManifests) -> list[str]:
    return [word.replace("$$", "$") for word in container_of(made)["command"]]


def test_setup_runs_before_run_and_dollars_stay() -> None:
    made = convert(f"name: a\n{IMAGE}\nsetup: A=1; export A\nrun: |\n  echo $(echo one) ${{A:-none}} '$$'\n")
    shown = subprocess.run(as_the_kubelet_would(made), capture_output=True, text=True, timeout=30, check=True)
    assert shown.stdout == "one none $$\n"


def test_a_failed_setup_keeps_its_exit_code_and_run_does_not_begin() -> None:
    made = convert(f"name: a\n{IMAGE}\nsetup: exit 3\nrun: echo begun\n")
    command = as_the_kubelet_would(made)
    command[2] = command[2].replace("tee /dev/termination-log", "tee /dev/null")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert DONE in ended.stderr


def test_being_stopped_reaches_the_script_which_may_save_and_says_the_exit_code() -> None:
    run = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    made = convert(f'name: a\n{IMAGE}\nrun: "{run}"\n')
    with subprocess.Popen(
        as_the_kubelet_would(made), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
    assert (said, process.returncode) == ("saved\n", 0)


def test_a_size_that_is_left_open_is_left_to_the_operator():
    found = from_task(
        parse_task("name: a\nrun: x\nnum_nodes: auto\nresources: {image_id: 'docker:i', accelerators: 1}"),
        "team-a",
    )
    replicas = found.job["spec"]["replicaSpec"]
    assert (replicas["minReplicas"], replicas["maxReplicas"]) == (1, 8)
    assert found.job["metadata"]["annotations"][names.WANTED] == "auto"
    assert any("the operator chooses the size" in note for note in found.notes)


WITH_PORTS = "resources: {image_id: 'docker:example.com/train:1', accelerators: H100:2, ports: [8080, 9000-9002]}"


def test_ports_are_named_by_the_pod_and_told() -> None:
    made = convert(f"name: web\n{WITH_PORTS}\nrun: serve")
    assert container_of(made)["ports"] == [{"containerPort": port} for port in (8080, 9000, 9001, 9002)]
    assert made.notes == (
        "ports: reached at web-0.web.team-a.svc:8080, web-0.web.team-a.svc:9000-9002 within the cluster "
        "while the job runs; from here: kubectl port-forward -n team-a pod/web-0 8080",
    )


def test_what_a_pod_cannot_name_or_do_is_refused() -> None:
    resources = "resources: {accelerators: 1, image_id: 'docker:a', ports: 1-1000}"
    with pytest.raises(InputError) as caught:
        convert(f"name: web\n{resources}\nsecrets: {{SKYPILOT_DOCKER_PASSWORD: hush}}\nrun: serve")
    told = [problem.message for problem in caught.value.problems]
    assert told == [
        "ports: a pod names at most 256",
        "SKYPILOT_DOCKER_PASSWORD: a cluster logs in at a registry by a Secret of its own",
    ]


def test_konduktors_limit_is_the_deadline_of_the_job() -> None:
    made = convert(f"name: x\n{IMAGE[:-1]}, labels: {{max-run-duration-seconds: '90'}}}}\nrun: x")
    assert made.job["spec"]["activeDeadlineSeconds"] == 90


@pytest.mark.parametrize(("said", "written"), [("", {}), (", restartable: true", {"restartable": True})])
def test_a_task_that_is_declared_restartable_is_a_job_that_is(said, written):
    resources = "{accelerators: 1, image_id: 'docker:i'}"
    text = f"name: a\nrun: x\nelastic: {{max_nodes: 8{said}}}\nresources: {resources}"
    found = from_task(parse_task(text), "team-a")
    replicas = found.job["spec"]["replicaSpec"]
    assert {key: value for key, value in replicas.items() if key == "restartable"} == written
    assert any("keeps its size until" in note for note in found.notes) is not bool(written)


def test_a_task_without_accelerators_is_a_job_without_gpus() -> None:
    job = job_of("name: a\nnum_nodes: 2\nresources: {image_id: 'docker:x', cpus: 4, memory: 8}\nrun: ./x\n")
    assert (job.cpu_only, job.min, job.size, job.max) == (True, 2, 2, 2)
    assert (job.cpus_milli_per_gpu, job.memory_mib_per_gpu) == (4000, 8192)


def test_a_task_without_accelerators_takes_one_cpu_unless_it_says_otherwise() -> None:
    """As in local mode, so that it does not crowd a node for nothing."""
    made = convert("name: a\nresources: {image_id: 'docker:x'}\nrun: ./x\n")
    assert made.job["spec"]["replicaSpec"]["gpusPerReplica"] == 0
    assert container_of(made)["resources"] == {"requests": {"cpu": "1000m"}}
    assert any("runs on CPU" in note for note in made.notes)


def test_a_task_without_accelerators_has_no_use_for_numa() -> None:
    made = convert("name: a\nresources: {image_id: 'docker:x'}\ngpu: {topology: prefer-rack, numa: single}\nrun: ./x\n")
    assert made.job["spec"]["topology"] == {"level": "rack", "mode": "Preferred"}
    assert any("gpu.numa is not used" in note for note in made.notes)
