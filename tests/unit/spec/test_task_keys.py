"""No key of SkyPilot's task file is ignored: each is honoured, noted, or refused with place and fix."""

import pytest

from batuta.spec.problem import InputError
from batuta.spec.task import Task, parse_task

TASK_KEYS = {
    "name": "n",
    "workdir": ".",
    "num_nodes": "2",
    "resources": "{cpus: 1}",
    "envs": "{A: b}",
    "secrets": "{A: b}",
    "file_mounts": "{/d: .}",
    "setup": "x",
    "event_callback": "x.sh",
    "service": "{readiness_probe: /}",
    "pool": "{workers: 2}",
    "managed_secrets": "[token]",
    "inputs": "{s3://a: 1}",
    "outputs": "{s3://a: 1}",
    "file_mounts_mapping": "{a: b}",
    "config": "{kubernetes: {pod_config: {spec: {}}}}",
    "experimental": "{config_overrides: {docker: {run_options: --privileged}}}",
    "volumes": "{/mnt: pvc}",
    "volume_mounts": "[{path: /mnt, volume_name: v}]",
    "api_server_access": "true",
    "_metadata": "{a: b}",
}
"""Every key of a task but `run`, with a value that asks for something."""

RESOURCE_KEYS = {
    "cloud": "aws",
    "region": "us-east-1",
    "zone": "us-east-1a",
    "infra": "aws",
    "cpus": "4+",
    "memory": "8+",
    "accelerators": "H100:1",
    "gpus": "H100:1",
    "instance_type": "p3.2xlarge",
    "use_spot": "true",
    "job_recovery": "{max_restarts_on_errors: 2}",
    "volumes": "[{path: /mnt, name: v}]",
    "disk_size": "100",
    "ephemeral_storage": "100",
    "disk_tier": "best",
    "network_tier": "best",
    "local_disk": "nvme",
    "max_hourly_cost": "3.5",
    "ports": "8080",
    "labels": "{a: b}",
    "accelerator_args": "{tpu_vm: true}",
    "image_id": "docker:busybox",
    "autostop": "10",
    "priority": "10",
    "priority_class": "high",
    "any_of": "[{accelerators: H100:1}]",
    "ordered": "[{accelerators: H100:1}]",
}
"""Every key of `resources`, with a value that asks for something."""


def problems_of(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_task(text, "t.yaml")
    return [str(problem) for problem in caught.value.problems]


def is_heeded(text: str, key: str) -> bool:
    """Whether the key changes the task that is read, is noted, or is refused by its name."""
    try:
        task = parse_task(text)
    except InputError as error:
        return all(key in problem.message and problem.line and problem.fix for problem in error.problems)
    return any(key in note for note in task.notes) or task != Task(run="x", notes=task.notes)


@pytest.mark.parametrize("key", TASK_KEYS)
def test_no_key_of_a_task_is_ignored(key):
    assert is_heeded(f"run: x\n{key}: {TASK_KEYS[key]}\n", key)


@pytest.mark.parametrize("key", RESOURCE_KEYS)
def test_no_key_of_resources_is_ignored(key):
    assert is_heeded(f"run: x\nresources:\n  {key}: {RESOURCE_KEYS[key]}\n", key)


def test_a_service_is_refused_with_the_reason_and_the_way_out():
    assert problems_of("run: x\nservice: {readiness_probe: /v1/models, replicas: 2}") == [
        "t.yaml:2:10: service: Batuta does not serve: it has no load balancer, no readiness probes and no "
        "scaling by traffic (remove service to run the server as a job, whose endpoints batuta shows; or "
        "sky serve up)"
    ]


def test_all_keys_that_would_change_the_task_are_refused_at_once():
    found = problems_of(
        "run: x\nservice: {replicas: 2}\nvolumes: {/mnt: pvc}\n"
        "resources:\n  network_tier: best\n  image_id: ami-0868a20f5a3bf9702\n  autostop: {hook: x.sh}\n"
        "config:\n  kubernetes: {pod_config: {spec: {}}, provision_timeout: 9}\n  hooks: [{run: x}]\n"
    )
    starts = (
        "t.yaml:2:10: service: ",
        "t.yaml:3:10: volumes: ",
        "t.yaml:5:17: resources.network_tier: ",
        "t.yaml:6:13: image_id 'ami-0868a20f5a3bf9702' is not a container image (docker:IMAGE runs in a",
        "t.yaml:7:20: resources.autostop.hook: ",
        "t.yaml:9:28: config.kubernetes.pod_config: ",
        "t.yaml:10:10: config.hooks: ",
    )
    assert all(line.startswith(start) for line, start in zip(found, starts, strict=True)), found


@pytest.mark.parametrize(
    "image",
    ["{us-east-1: docker:a, us-west-2: docker:a}", "skypilot:gpu-ubuntu-2204", "'docker:a b'", "docker:--rm"],
)
def test_an_image_that_is_no_container_is_refused(image):
    (found,) = problems_of(f"run: x\nresources: {{image_id: {image}}}")
    assert found.startswith("t.yaml:2:23: image_id")
    assert "docker:IMAGE" in found


def test_what_a_candidate_cannot_have_of_its_own_is_refused():
    (found,) = problems_of(
        "run: x\nresources:\n  any_of:\n  - {accelerators: H100:8, image_id: docker:a}\n  - {accelerators: A100:8}"
    )
    assert found.startswith("t.yaml:4:38: resources.any_of.image_id: the candidates are alternatives")


def test_keys_that_say_nothing_ask_for_nothing():
    resources = "resources: {image_id: null, ports: null, volumes: []}"
    text = f"run: x\nvolumes: {{}}\nservice: null\nconfig: {{}}\n{resources}"
    assert parse_task(text) == parse_task("run: x")


def test_network_and_stopping_as_they_are_anyway_are_notes():
    task = parse_task("run: x\nresources: {network_tier: standard, autostop: {idle_minutes: 10, down: true}}")
    assert task.notes[:2] == (
        "resources.network_tier is not used by Batuta",
        "resources.autostop is not used by Batuta: a job's GPUs are free when it ends",
    )


@pytest.mark.parametrize(
    ("written", "ports"),
    [
        ("8080", ((8080, 8080),)),
        ("'8080'", ((8080, 8080),)),
        ("10052-10100", ((10052, 10100),)),
        ("[8080, 10052-10100, 8080]", ((8080, 8080), (10052, 10100))),
    ],
)
def test_ports_are_numbers_and_ranges(written, ports):
    assert parse_task(f"run: x\nresources: {{ports: {written}}}").ports == ports


@pytest.mark.parametrize("written", ["0", "65536", "80-70", "http", "[8080, '8080/udp']", "-1"])
def test_a_port_that_is_none_is_refused(written):
    (found,) = problems_of(f"run: x\nresources: {{ports: {written}}}")
    assert "is not a port or a range (8080, or 10052-10100, within 1..65535)" in found


@pytest.mark.parametrize(
    "label", ["kueue.x-k8s.io/max-exec-time-seconds", "max-run-duration-seconds", "maxRunDurationSeconds"]
)
def test_a_limit_on_the_running_time_is_spelled_in_three_ways(label):
    assert parse_task(f"run: x\nresources: {{labels: {{{label}: '90'}}}}").max_exec_time_s == 90
    (found,) = problems_of(f"run: x\nresources: {{labels: {{{label}: 1h}}}}")
    assert f"label {label}: '1h' is not a number of seconds" in found


def test_of_two_limits_the_strictest_holds():
    labels = "{max-run-duration-seconds: 90, kueue.x-k8s.io/max-exec-time-seconds: 60}"
    assert parse_task(f"run: x\nresources: {{labels: {labels}}}").max_exec_time_s == 60


def test_a_priority_class_is_named_as_skypilot_does():
    assert parse_task("run: x\nresources: {priority_class: high}").priority_class == "high"


def test_gpus_is_another_name_for_accelerators():
    written = "run: x\nresources:\n  {key}: H100:2\n  any_of: [{{{key}: [A100:4, L4:8]}}]\n"
    assert parse_task(written.format(key="gpus")) == parse_task(written.format(key="accelerators"))
    (found,) = problems_of("run: x\nresources:\n  accelerators: 1\n  gpus: 1\n")
    assert found == ("t.yaml:4:9: resources has accelerators and gpus, which mean the same (keep accelerators)")


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("config: {kubernetes: {kueue: {local_queue_name: vision}}}", "vision"),
        ("config: {kubernetes: {quota: {queue: vision}, kueue: {local_queue_name: other}}}", "vision"),
        ("experimental: {config_overrides: {kubernetes: {kueue: {local_queue_name: vision}}}}", "vision"),
        (
            "config: {kubernetes: {kueue: {local_queue_name: other}}}\n"
            "resources: {labels: {kueue.x-k8s.io/queue-name: vision}}",
            "vision",
        ),
    ],
)
def test_a_queue_that_the_configuration_names_is_the_queue_of_the_job(text, queue):
    task = parse_task(f"run: x\n{text}")
    assert task.queue == queue
    assert not any("config" in note for note in task.notes)


def test_what_stands_beside_the_queue_is_noted_and_a_bad_name_has_its_place():
    task = parse_task("run: x\nconfig: {kubernetes: {kueue: {local_queue_name: a, admission_timeout: 9}}}")
    assert "config.kubernetes.kueue.admission_timeout is not used by Batuta" in task.notes
    (found,) = problems_of("run: x\nconfig: {kubernetes: {kueue: {local_queue_name: a b}}}")
    assert found.startswith("t.yaml:2:49: config: queue: 'a b' is not the name of a queue")


@pytest.mark.parametrize(
    "key",
    [
        *("kubernetes.allowed_nodes", "kubernetes.post_provision_runcmd", "kubernetes.auto_mounts"),
        *("kubernetes.enable_docker", "ssh.pod_config", "ssh.custom_metadata"),
    ],
)
def test_configuration_that_changes_the_pod_is_refused(key):
    section, name = key.split(".")
    (found,) = problems_of(f"run: x\nconfig: {{{section}: {{{name}: {{a: b}}}}}}")
    assert f"config.{key}: Batuta" in found
