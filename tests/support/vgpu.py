"""Virtual GPUs for tests: a node's file, programs in C and Python that run on it, and third-party clients."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batuta.gpu.native_libraries import native_sources, vgpu_environment, vgpu_libraries
from batuta.gpu.vgpu.device_file import Machine, create_device_file, find_model
from batuta.gpu.vgpu.snapshot import VirtualGpu, read_gpus
from tests.support.cached_env import cached_python

FOLDER = Path(__file__).resolve().parents[1] / "gpu"
PROGRAMS = FOLDER / "programs"
_WITHIN_S = 60
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
    return vgpu_libraries()


def compile_program(folder: Path, name: str, *flags: str, against: Path | None = None, link: bool = True) -> Path:
    """A program of tests/gpu/programs, linked with the libraries in `against`, by default the usual ones."""
    where = against or libraries()
    program = folder / name
    native = native_sources()
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
        create_device_file(path, Machine(find_model(model), gpus=gpus, **options))
        return cls(path)

    @property
    def env(self) -> dict[str, str]:
        return vgpu_environment(self.path)

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

    def read(self) -> tuple[VirtualGpu, ...]:
        return read_gpus(self.path)


def client_python() -> Path:
    """A Python with the packages of tests/gpu/requirements.txt; skips where they cannot be had."""
    found = cached_python("gpu-clients", FOLDER / "requirements.txt", "250 MB")
    if isinstance(found, str):
        pytest.skip(f"needs the packages of tests/gpu/requirements.txt from PyPI: {found}")
    return found
