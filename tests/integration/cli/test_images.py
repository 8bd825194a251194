"""`image_id` on a live server: run in a container where there is a runtime, refused where there is none."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_server import Cli
from tests.support.podman import IMAGE, Podman, a_podman
from tests.support.server_process import PlainServers

TASK = f"""\
name: inside
resources:
  accelerators: 1
  image_id: docker:{IMAGE}
run: cat /etc/inside
"""
WITHOUT_ENGINE = "#!/bin/sh\necho 'Cannot connect to the Docker daemon. Is the daemon running?' >&2\nexit 1\n"


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with a_podman(tmp_path_factory.mktemp("podman")) as podman:
        yield podman


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.yaml").write_text(TASK)
    return tmp_path


@pytest.fixture
def without_runtime(folder: Path) -> Iterator[Cli]:
    """A server whose PATH has a docker client, and no engine behind it."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "docker").write_text(WITHOUT_ENGINE)
    (programs / "docker").chmod(0o755)
    environ = {"PATH": str(programs)}
    with PlainServers(folder) as servers:
        servers.start(folder / "home", env=os.environ | environ).wait_ready()
        yield Cli(folder / "home", folder, environ)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, podman: Podman) -> Iterator[Path]:
    """The state directory of a server that has podman."""
    folder = tmp_path_factory.mktemp("server")
    with PlainServers(folder) as servers:
        servers.start(folder / "home", env=podman.environ).wait_ready()
        yield folder / "home"
        Cli(folder / "home", folder).ok("down")


@pytest.fixture
def with_podman(home: Path, folder: Path, podman: Podman) -> Cli:
    return Cli(home, folder, podman.environ)


def test_without_a_runtime_an_image_is_refused_at_its_place_with_the_way_out(without_runtime):
    # when a task with an image, and something else wrong with it, is submitted
    (without_runtime.cwd / "task.yaml").write_text(TASK + "service: {replicas: 2}\n")
    done = without_runtime.run("launch", "task.yaml")
    # then both are told with their places
    assert done.returncode == 2
    assert (
        f"task.yaml:4:13: image_id 'docker:{IMAGE}': it needs a container runtime, and there is none: docker "
        "does not work (Cannot connect to the Docker daemon. Is the daemon running?) (install podman on the "
        "server's machine, or remove image_id to run on the machine itself)"
    ) in done.stderr
    assert "task.yaml:6:10: service: " in done.stderr
    assert without_runtime.json("queue", "-a") == []


def test_a_share_of_a_gpu_in_a_container_is_refused(with_podman):
    (with_podman.cwd / "task.yaml").write_text(TASK + "gpu: {memory: 1GiB}\n")
    done = with_podman.run("launch", "task.yaml")
    assert done.returncode == 2
    assert "task.yaml:6:6: a share of a GPU is not enforced inside a container of this machine" in done.stderr


def test_a_task_runs_in_its_image_and_its_user_is_told(with_podman, podman):
    done = with_podman.run("launch", "task.yaml")
    assert (done.returncode, done.stdout) == (0, "the image\n")
    assert "image_id: it runs in a container of podman" in done.stderr
    assert "a container sees no virtual GPUs" in done.stderr
    assert podman.containers() == []
    assert f"image docker:{IMAGE}" in " ".join(with_podman.ok("status", "inside").split())


def test_a_job_in_a_container_does_not_outlive_its_cancellation(with_podman, podman):
    (with_podman.cwd / "task.yaml").write_text(TASK.replace("cat /etc/inside", "(sleep 1000 &); sleep 1000"))
    job = with_podman.launch("task.yaml")
    with_podman.wait(job, "RUNNING")
    assert len(podman.containers()) == 1
    with_podman.ok("cancel", job, "-y")
    with_podman.wait(job, "CANCELLED")
    assert podman.containers() == []
