"""The chart's CRDs: in a wheel they lie beside this file, in the repository in deploy/."""

from __future__ import annotations

from pathlib import Path

import yaml

from batuta.backends.kube.install.release import Manifest

_HERE = Path(__file__).resolve().parent
FOLDERS = (_HERE / "crds", *(above / "deploy/helm/batuta/crds" for above in _HERE.parents[4:5]))


def read_definitions() -> list[Manifest]:
    """All CustomResourceDefinitions, by the name of their file."""
    folder = next((one for one in FOLDERS if one.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"this installation of Batuta lacks its CRDs: {FOLDERS[0]}")
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]
