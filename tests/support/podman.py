"""A podman with storage of its own and one tiny image, without any registry."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

IMAGE = "localhost/batuta-test:1"
_APPLETS = (
    "sh",
    "sleep",
    "echo",
    "cat",
    "date",
    "ls",
    "touch",
    "mkdir",
    "env",
    "id",
    "kill",
    "nc",
    "wc",
    "tail",
)
_STORAGE = """\
[storage]
driver = "vfs"
graphroot = "{folder}/root"
runroot = "{run}"
"""
_ENGINE = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
{runtime}
[containers]
# Without CAP_SYS_RESOURCE, podman cannot raise them to what it gives by default.
default_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]
"""


@dataclass(frozen=True, slots=True)
class Podman:
    """How to call it."""

    environ: dict[str, str]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            ["podman", *arguments], env=self.environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        """The names of all that there are, running or not."""
        return self("ps", "--all", "--format", "{{.Names}}").split()


@contextmanager
def a_podman(folder: Path) -> Iterator[Podman]:
    """Skips where podman cannot run a container: that is about the machine."""
    # podman cannot clean up after a container if this path has more than 50 characters, as those of pytest have; who
    # waits for the container's end then waits 20 seconds longer.
    with tempfile.TemporaryDirectory(prefix="podman-", dir="/tmp", ignore_cleanup_errors=True) as run:
        podman = _install(folder, run)
        try:
            yield podman
        finally:
            subprocess.run(
                ["podman", "rm", "--all", "--force", "--time", "0"],
                env=podman.environ,
                capture_output=True,
                check=False,
            )


def _install(folder: Path, run: str) -> Podman:
    busybox = shutil.which("busybox")
    for name, found in (("podman", shutil.which("podman")), ("busybox-static", busybox)):
        if found is None:
            pytest.skip(f"needs {name}: apt-get install {name}")
    assert busybox is not None
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder, run=run))
    # crun does not know hybrid cgroups; where there is runc, it is asked.
    runtime = 'runtime = "runc"' if shutil.which("runc") else ""
    (folder / "containers.conf").write_text(_ENGINE.format(runtime=runtime))
    environ = os.environ | {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    podman = Podman(environ)
    system = folder / "image"
    for name in ("bin", "root", "tmp", "etc"):
        (system / name).mkdir(parents=True)
    (system / "etc/inside").write_text("the image\n")
    shutil.copy2(busybox, system / "bin/busybox")
    for applet in _APPLETS:
        (system / "bin" / applet).symlink_to("busybox")
    try:
        subprocess.run(["tar", "-C", system, "-cf", folder / "image.tar", "."], check=True, timeout=60)
        podman("import", str(folder / "image.tar"), IMAGE)
        said = podman("run", "--rm", "--network", "host", "--ipc", "host", IMAGE, "/bin/cat", "/etc/inside")
        assert said == "the image\n"
    except (AssertionError, OSError, subprocess.SubprocessError) as problem:
        pytest.skip(f"podman cannot run a container on this machine: {str(problem)[:300]}")
    return podman
