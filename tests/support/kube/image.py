"""A container image with the Python of this machine and Batuta in it, written without any container tool.

One layer: the interpreter, its standard library, the shared libraries that they need, and the packages that a
training script imports. It is an OCI archive, as `ctr images import` and `podman load` take it.
"""

import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PYTHON = "/usr/local/bin/python3"
_STDLIB = f"/usr/local/lib/python{sysconfig.get_python_version()}"
_PACKAGES = "/opt/packages"
_NOT_NEEDED = {
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "tkinter",
    "turtledemo",
}
_OCI = "application/vnd.oci.image"
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


def write_image(archive: Path, name: str, packages: Sequence[str], files: Mapping[str, Path]) -> None:
    """Writes an image of this name: these Python packages, and these files at these paths."""
    blobs = archive.with_suffix(".blobs")
    blobs.mkdir()
    layer = blobs / "layer"
    libraries = _write_layer(layer, packages, files)
    digest, size = _digest(layer), layer.stat().st_size
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": _PACKAGES,
        "LD_LIBRARY_PATH": ":".join(sorted({str(path.parent) for path in libraries})),
    }
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": {
            "Env": [f"{key}={value}" for key, value in env.items()],
            # By itself it does nothing, for ever: what the first container of a pod is for.
            "Cmd": [PYTHON, "-ISc", "import signal; signal.pause()"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    with tarfile.open(archive, "w") as tar:
        tar.add(layer, f"blobs/sha256/{digest}")
        about_config = _add_blob(tar, config, f"{_OCI}.config.v1+json")
        about_layer = {"mediaType": f"{_OCI}.layer.v1.tar", "digest": f"sha256:{digest}", "size": size}
        manifest = {"schemaVersion": 2, "config": about_config, "layers": [about_layer]}
        about_manifest = _add_blob(tar, manifest, f"{_OCI}.manifest.v1+json")
        about_manifest["annotations"] = {"io.containerd.image.name": name}
        _add_text(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [about_manifest]}))
        _add_text(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
    layer.unlink()
    blobs.rmdir()


def _write_layer(path: Path, packages: Sequence[str], files: Mapping[str, Path]) -> list[Path]:
    """Writes the files of the image; the shared libraries among them."""
    executable = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    found = [*_tree(stdlib, _STDLIB), *(pair for name in packages for pair in _package(name))]
    binaries = [executable, *(source for source, _ in found if ".so" in source.name)]
    libraries = _libraries(binaries, own=[target for _, target in found])
    with tarfile.open(path, "w") as tar:
        for folder in ("tmp", "etc", "proc", "sys", "dev"):
            tar.addfile(_folder(folder))
        for source, target in [(executable, PYTHON), *found, *((each, str(each)) for each in libraries)]:
            tar.add(source.resolve(), target.lstrip("/"), recursive=False, filter=_owned_by_root)
        for target, source in files.items():
            tar.add(source, target.lstrip("/"), filter=_owned_by_root)
    return libraries


def _tree(root: Path, target: str) -> Iterator[tuple[Path, str]]:
    """All files below a folder, but those that nobody runs; where each goes."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _NOT_NEEDED and not name.startswith("config-"))
        for name in sorted(files):
            source = Path(folder) / name
            if source.suffix not in (".a", ".pyi", ".c", ".h"):
                yield source, f"{target}/{source.relative_to(root)}"


def _package(name: str) -> Iterator[tuple[Path, str]]:
    """A package that can be imported here, and the folder of libraries that a wheel puts beside it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"no package {name}"
    assert spec.submodule_search_locations, f"{name} is not a package"
    root = Path(spec.submodule_search_locations[0])
    yield from _tree(root, f"{_PACKAGES}/{name}")
    if (beside := root.with_name(f"{name}.libs")).is_dir():
        yield from _tree(beside, f"{_PACKAGES}/{beside.name}")


def _libraries(binaries: Iterable[Path], own: Iterable[str]) -> list[Path]:
    """What the loader would load for these programs and libraries, but for what is in the image anyway."""
    said = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False, timeout=120)
    names = {Path(target).name for target in own}
    found = {Path(path) for path in _LIBRARY.findall(said.stdout)}
    return sorted(path for path in found if path.name not in names)


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    return info


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def _add_blob(tar: tarfile.TarFile, body: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    """Adds a JSON document; its descriptor."""
    text = json.dumps(body)
    digest = hashlib.sha256(text.encode()).hexdigest()
    _add_text(tar, f"blobs/sha256/{digest}", text)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(text.encode())}


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(text.encode())
    tar.addfile(info, io.BytesIO(text.encode()))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
