"""The programs of a Kubernetes cluster, built from pinned Go modules when they are first needed.

`python -m tests.support.kube.programs kube-apiserver kwok` builds ahead of time and prints where they are.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.kube.cache import cache_folder, locked
from tests.support.kube.catalog import PROGRAMS, Program
from tests.support.kube.toolchain import NoToolchain, find_go, go_environment

# What kubebuilder's `setup-envtest` puts into a folder.
_ASSETS = ("etcd", "kube-apiserver", "kubectl")
_BUILD_WITHIN_MINUTES = 60


class BuildFailed(Exception):
    """A program could not be built; what the compiler said last."""


def program(name: str) -> Path:
    """Returns the path of a program; builds it where it is not in the cache yet."""
    if (given := _given(name)) is not None:
        return given
    wanted = PROGRAMS[name]
    kept = _kept_at(wanted)
    if not kept.is_file():
        with locked(f"build-{name}"):
            if not kept.is_file():
                _build(wanted, kept)
    return kept


def why_not(names: Sequence[str]) -> str | None:
    """One line that says why these programs cannot be had here; None if they can."""
    missing = [name for name in names if _given(name) is None and not _kept_at(PROGRAMS[name]).is_file()]
    if not missing:
        return None
    try:
        for name in missing:
            find_go(PROGRAMS[name].go_wanted)
    except NoToolchain as reason:
        return str(reason)
    return None


def _given(name: str) -> Path | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder or name not in _ASSETS:
        return None
    path = Path(folder) / name
    return path if path.is_file() else None


def _kept_at(wanted: Program) -> Path:
    folder = f"{wanted.name}-{wanted.version}-{_fingerprint(wanted)}"
    return cache_folder() / "programs" / folder / wanted.name


def _fingerprint(wanted: Program) -> str:
    """Twelve digits that change with all that the program is built from."""
    target = (wanted.package, wanted.stamps, sys.platform, os.uname().machine)
    digest = hashlib.sha256(repr(target).encode())
    own_code = sorted(wanted.source.glob("**/*.go"))
    for path in (wanted.source / "go.mod", wanted.source / "go.sum", *own_code):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _build(wanted: Program, path: Path) -> None:
    go = find_go(wanted.go_wanted)
    label = f"{wanted.name} {wanted.version}"
    shutil.rmtree(path.parent, ignore_errors=True)  # what a build left that was killed
    path.parent.mkdir(parents=True)
    fresh, log = path.with_name("new"), path.with_name("build.log")
    stamps = [f"-X {stamp.format(version=wanted.version)}" for stamp in wanted.stamps]
    flags = ["-mod=readonly", "-trimpath", "-ldflags", " ".join(["-s", "-w", *stamps])]
    command = [str(go), "build", *flags, "-o", str(fresh), wanted.package]
    _say(f"{label}: building (minutes when it is the first time, seconds after that)")
    began = time.monotonic()
    code = _run_aloud(command, wanted.source, go_environment(go), log, label)
    if code != 0:
        last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-20:])
        raise BuildFailed(f"{label} cannot be built from {wanted.source}:\n{last}")
    fresh.rename(path)
    _say(f"{label}: built in {time.monotonic() - began:.0f} s")


def _run_aloud(command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path, label: str) -> int:
    """Runs a command to its end, and says now and then that it is not forgotten; its exit code."""
    with log.open("wb") as file:
        child = subprocess.Popen(command, cwd=folder, env=dict(env), stdout=file, stderr=file)
    with child:
        for minutes in range(_BUILD_WITHIN_MINUTES):
            try:
                return child.wait(60)
            except subprocess.TimeoutExpired:
                _say(f"{label}: still building after {minutes + 1} min")
            except BaseException:
                child.kill()
                raise
        child.kill()
    raise BuildFailed(f"{label}: not built after {_BUILD_WITHIN_MINUTES} min; log: {log}")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - set(PROGRAMS))
    if unknown or not names:
        _say(f"{'not known: ' + ', '.join(unknown) + '; ' if unknown else ''}programs: {', '.join(PROGRAMS)}")
        return 2
    try:
        for name in names:
            sys.stdout.write(f"{program(name)}\n")
    except (BuildFailed, NoToolchain) as problem:
        _say(str(problem))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
