"""Environments with packages of other projects, by lock files: installed once, outside the repository."""

import functools
import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.support.kube.cache import cache_folder, locked

_VENV_WITHIN_S = 60
_INSTALL_WITHIN_S = 900
_KEPT_S = 30 * 86_400.0


@functools.cache
def cached_python(name: str, lock: Path, size: str) -> Path | str:
    """A Python with the packages of a lock file; a text says why there is none.

    `size` is what is downloaded when it is not there yet, for whoever wonders why the tests do not go on.
    """
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = cache_folder().with_name(name) / digest
    with locked(name):
        _forget_old(home)
        if not (home / "complete").is_file() and (why := _install(home, lock, size)):
            shutil.rmtree(home, ignore_errors=True)
            return why
        (home / "complete").touch()
    return home / "bin" / "python"


def _forget_old(home: Path) -> None:
    """Removes those of former lock files, which may be gigabytes, when no test has used them for a month."""
    for other in home.parent.glob("*/complete"):
        if other.parent != home and time.time() - other.stat().st_mtime > _KEPT_S:
            shutil.rmtree(other.parent, ignore_errors=True)


def _install(home: Path, lock: Path, size: str) -> str:
    """An environment, not only a folder for Python's path: some packages put files beside themselves."""
    shutil.rmtree(home, ignore_errors=True)
    sys.stderr.write(f"installing {lock.parent.name}/{lock.name} ({size}) into {home}\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=_VENV_WITHIN_S)
    python, wanted = (
        str(home / "bin" / "python"),
        ["--quiet", "--require-hashes", "--no-deps", "-r", str(lock)],
    )
    uv = Path(sys.executable).with_name("uv")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--disable-pip-version-check"]
    # uv is several times faster, but does not read pip's configuration.
    # Compiled now: jobs may be told to write no bytecode, and would compile torch at each start.
    for installer in ([str(uv), "pip", "install", "--compile-bytecode", "--python", python], [*pip, "--retries", "1"]):
        try:
            said = subprocess.run(
                [*installer, *wanted], capture_output=True, text=True, check=False, timeout=_INSTALL_WITHIN_S
            )
        except OSError:
            continue
        if said.returncode == 0:
            return ""
    return (said.stderr.strip().splitlines() or ["pip says nothing"])[-1]
