"""How runtimes are called, and which one is."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from batuta.backends.local.containers import (
    Apptainer,
    Container,
    ContainerRuntimes,
    DockerCompatible,
    in_container,
    mounts_of,
)
from batuta.backends.local.runner_protocol import ReplicaSpec

BOX = Container("job-1.0", "busybox:1", Path("/home/jobs/1/runs/0/0"), [("/home/jobs/1", "/home/jobs/1")])


def options(argv: list[str], name: str) -> list[str]:
    return [argv[index + 1] for index, word in enumerate(argv) if word == name]


def programs(folder: Path, **scripts: str) -> ContainerRuntimes:
    """A PATH with only these programs."""
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return ContainerRuntimes({"PATH": str(folder)})


@pytest.mark.parametrize(("name", "device"), [("podman", ["nvidia.com/gpu=all"]), ("docker", [])])
def test_an_engine_gets_the_machines_network_memory_and_gpus(name, device):
    argv = DockerCompatible(f"/usr/bin/{name}", name).create(
        Container(BOX.run_id, BOX.image, BOX.folder, BOX.mounts, nvidia=True)
    )
    assert (options(argv, "--network"), options(argv, "--ipc")) == (["host"], ["host"])
    assert options(argv, "--volume") == ["/home/jobs/1:/home/jobs/1"]
    assert options(argv, "--device") == device
    assert options(argv, "--gpus") == ([] if device else ["all"])
    assert argv[-2:] == ["busybox:1", "/home/jobs/1/runs/0/0/step.sh"]


def test_apptainer_unpacks_the_image_into_the_run_and_gives_it_processes_of_its_own():
    runtime = Apptainer("/usr/bin/apptainer")
    assert runtime.create(BOX)[-2:] == ["/home/jobs/1/runs/0/0/rootfs", "docker://busybox:1"]
    argv = runtime.start(BOX)
    assert "--pid" in argv
    assert options(argv, "--bind") == ["/home/jobs/1:/home/jobs/1"]
    assert argv[-3:] == ["/home/jobs/1/runs/0/0/rootfs", "/bin/sh", "/home/jobs/1/runs/0/0/step.sh"]
    assert runtime.remove(BOX) == ["/bin/rm", "-rf", "/home/jobs/1/runs/0/0/rootfs"]


@pytest.mark.parametrize("runtime", [DockerCompatible("podman", "podman"), Apptainer("apptainer")])
def test_a_path_with_a_colon_is_refused_and_not_cut(runtime):
    box = Container("r", "i", Path("/f"), [("/a:b", "/a:b")])
    with pytest.raises(ValueError, match="there is a colon in a path"):
        runtime.create(box), runtime.start(box)


def test_mounts_are_where_the_task_wants_them():
    found = mounts_of(
        [Path("/home/jobs/1"), Path("/home/jobs/1/work")],
        [("/data", "/mnt/a"), ("~/models", "/mnt/b"), ("here", "/mnt/c")],
        Path("/home/jobs/1/work"),
        "/root",
    )
    assert found == [
        ("/home/jobs/1", "/home/jobs/1"),
        ("/mnt/a", "/data"),
        ("/mnt/b", "/root/models"),
        ("/mnt/c", "/home/jobs/1/work/here"),
    ]


def test_a_login_at_a_registry_is_a_file_of_the_run_and_on_no_command_line():
    env = {
        "SKYPILOT_DOCKER_USERNAME": "ann",
        "SKYPILOT_DOCKER_PASSWORD": "hush",
        "SKYPILOT_DOCKER_SERVER": "r.io",
    }
    spec = ReplicaSpec(BOX.run_id, "x", Path("/w"), Path("/w/log"), env)
    made = in_container(spec, DockerCompatible("podman", "podman"), BOX, {"PATH": "/bin"})
    assert json.loads(made.files["config.json"]) == {"auths": {"r.io": {"auth": "YW5uOmh1c2g="}}}
    assert made.env["REGISTRY_AUTH_FILE"] == "/home/jobs/1/runs/0/0/config.json"
    assert "hush" not in " ".join((*(made.setup or ()), *made.run, *made.cleanup))


def test_the_first_runtime_that_answers_is_used(tmp_path):
    found = programs(tmp_path, podman="exit 125", docker="exit 1", apptainer="echo 1.3").find()
    assert found is not None
    assert found.name == "apptainer"


def test_where_none_answers_it_is_said_what_each_lacks(tmp_path):
    rules = programs(tmp_path, podman="echo no storage >&2; exit 125", docker="exit 1").rules()
    assert rules.refusal == (
        "it needs a container runtime, and there is none: podman does not work (no storage); "
        "docker does not work (exit code 1)"
    )
    assert "install podman" in rules.fix


def test_where_there_is_none_it_is_said(tmp_path):
    assert "neither podman nor docker nor apptainer is on the server's PATH" in programs(tmp_path).rules().refusal


def test_an_engine_is_told_the_limits_of_the_container():
    box = replace(BOX, most_processes=50, most_memory_bytes=2**30)
    words = " ".join(DockerCompatible("/usr/bin/podman", "podman").create(box))
    assert "--pids-limit 50 --memory 1073741824b" in words
    assert "--memory" not in " ".join(DockerCompatible("/usr/bin/podman", "podman").create(BOX))
