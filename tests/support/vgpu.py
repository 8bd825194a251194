"""Virtual GPUs for tests: a node's file, programs in C and Python that run on it, and third-party clients."""

import functools
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batuta.gpu.vgpu.build import build, sources
from batuta.gpu.vgpu.device_file import Machine, create
from batuta.gpu.vgpu.environment import environment
from batuta.gpu.vgpu.models import find_model
from batuta.gpu.vgpu.snapshot import Gpu, read
from tests.support.kube.cache import cache_folder, locked

FOLDER = Path(__file__).resolve().parents[1] / "gpu"
PROGRAMS = FOLDER / "programs"
_WITHIN_S = 60
_INSTALL_WITHIN_S = 900
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion", "-Wstrict-prototypes")


def compiler() -> str:
    """A C compiler; without one the test is skipped."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler: apt-get install gcc")
    return found


def libraries() -> Path:
    """The folder of the compiled libraries."""
    compiler()
    return build()


def compile_program(
    folder: Path, name: str, *flags: str, against: Path | None = None, link: bool = True
) -> Path:
    """A program of tests/gpu/programs, linked with the libraries in `against`, by default the usual ones."""
    where = against or libraries()
    program = folder / name
    native = sources()
    command = [
        *(compiler(), "-std=c11", "-O1", "-g", "-pthread", *flags),
        *("-I", str(native / "include"), "-I", str(native / "vgpu"), "-I", str(folder)),
        *("-o", str(program), str(PROGRAMS / f"{name}.c")),
        *((f"-L{where}", "-l:libcuda.so.1", "-l:libnvidia-ml.so.1") if link else ()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@dataclass
class VirtualNode:
    """A machine's virtual GPUs."""

    path: Path
    python: Path = Path(sys.executable)

    @classmethod
    def make(cls, folder: Path, gpus: int = 2, model: str = "T4", **options: Any) -> "VirtualNode":
        libraries()
        path = folder / "node.vgpu"
        create(path, Machine(find_model(model), gpus=gpus, **options))
        return cls(path)

    @property
    def env(self) -> dict[str, str]:
        return environment(self.path)

    def start(self, command: Sequence[str | Path], **env: str) -> "subprocess.Popen[str]":
        """Starts a program on these GPUs; whoever starts it ends it."""
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.env | env, stdin=pipe, stdout=pipe, text=True)

    def start_python(self, code: str, **env: str) -> "subprocess.Popen[str]":
        return self.start([self.python, "-c", code], **env)

    def run(self, command: Sequence[str | Path], **env: str) -> "subprocess.CompletedProcess[str]":
        """Runs a program to its end; that it fails is for the caller to see."""
        return subprocess.run(
            command, env=self.env | env, capture_output=True, text=True, check=False, timeout=_WITHIN_S
        )

    def run_python(self, code: str, **env: str) -> str:
        """What a Python program prints. It has to succeed."""
        done = self.run([self.python, "-c", code], **env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self) -> tuple[Gpu, ...]:
        return read(self.path)


def client_python() -> Path:
    """A Python with the packages of tests/gpu/requirements.txt; skips where they cannot be had."""
    found = _client_python()
    if isinstance(found, str):
        pytest.skip(f"needs the packages of tests/gpu/requirements.txt from PyPI: {found}")
    return found


@functools.cache
def _client_python() -> Path | str:
    """From the cache, or installed there once; a text says why not."""
    wanted = FOLDER / "requirements.txt"
    digest = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = cache_folder().with_name("gpu-clients") / digest
    with locked("gpu-clients"):
        if not (home / "complete").is_file() and (why := _install(home, wanted)):
            shutil.rmtree(home, ignore_errors=True)
            return why
    return home / "bin" / "python"


def _install(home: Path, wanted: Path) -> str:
    """An environment, not only a folder for Python's path: numba-cuda puts a file beside its packages."""
    shutil.rmtree(home, ignore_errors=True)
    sys.stderr.write(f"installing clients of CUDA and NVML (250 MB) into {home}\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=_WITHIN_S)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
    options = ["--disable-pip-version-check", "--retries", "1", "--require-hashes", "--no-deps"]
    said = subprocess.run(
        [*pip, *options, "-r", str(wanted)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_INSTALL_WITHIN_S,
    )
    if said.returncode != 0:
        return (said.stderr.strip().splitlines() or ["pip says nothing"])[-1]
    (home / "complete").touch()
    return ""
