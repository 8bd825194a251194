"""Files of other projects, from their Go modules: CRDs and manifests, of exact versions, none copied here."""

import json
import subprocess
from functools import cache
from pathlib import Path

from tests.support.kube.catalog import MODULES, PROGRAMS
from tests.support.kube.toolchain import find_go, go_environment

PINS = MODULES / "files.sum"
"""Lines as in a go.sum: module, version, hash."""

CRDS = {
    "jobset": ("sigs.k8s.io/jobset", "config/components/crd/bases"),
    "kueue": ("sigs.k8s.io/kueue", "config/components/crd/bases"),
    "mpi-operator": ("github.com/kubeflow/mpi-operator", "manifests/base/kubeflow.org_mpijobs.yaml"),
    "node-resource-topology": (
        "github.com/k8stopologyawareschedwg/noderesourcetopology-api",
        "manifests/crd.yaml",
    ),
    "scheduler-plugins": ("sigs.k8s.io/scheduler-plugins", "config/crd/bases"),
}
"""Projects whose CRDs tests apply: the module, and where in it they are."""

_DOWNLOAD_WITHIN_S = 600


class NoModule(Exception):
    """A module is not pinned, cannot be had, or is not what it was."""


def crds(project: str) -> Path:
    """Returns the file or folder with a project's CRDs, for `ControlPlane.install_crds`."""
    module, place = CRDS[project]
    [version] = [pinned for name, pinned, _ in _pins() if name == module]
    return module_files(module, version) / place


@cache
def module_files(module: str, version: str) -> Path:
    """Returns the read-only folder of a pinned module's files; downloads it where it is not there yet."""
    pinned = _pinned_hash(module, version)
    go = find_go(max(program.go_wanted for program in PROGRAMS.values()))
    said = subprocess.run(
        [go, "mod", "download", "-json", f"{module}@{version}"],
        cwd=MODULES,
        env=go_environment(go),
        capture_output=True,
        text=True,
        check=False,
        timeout=_DOWNLOAD_WITHIN_S,
    )
    if said.returncode != 0:
        raise NoModule(f"cannot download {module} {version}:\n{said.stdout}{said.stderr}")
    found = json.loads(said.stdout)
    if found["Sum"] != pinned:
        raise NoModule(f"{module} {version} has the hash {found['Sum']}; {PINS} says {pinned}")
    return Path(found["Dir"])


def _pinned_hash(module: str, version: str) -> str:
    for name, pinned, digest in _pins():
        if (name, pinned) == (module, version):
            return digest
    raise NoModule(f"{module} {version} is not pinned: add its line to {PINS}")


def _pins() -> list[list[str]]:
    return [line.split() for line in PINS.read_text().splitlines()]
