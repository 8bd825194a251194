"""Compiling the two libraries, once for each version of their sources, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from batuta.spec.problem import InputError

_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "native", *(above / "native" for above in _HERE.parents[3:4]))
"""Beside this file in an installed package; at the root of a checkout."""
_SHARED = ("model.c", "processes.c", "timeline.c")
LIBRARIES = {"libcuda.so.1": "driver_*.c", "libnvidia-ml.so.1": "nvml_*.c"}

FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
# Without -Bsymbolic a library that is loaded before ours, as one that limits memory would be, also gets the
# calls that our functions make among themselves. Paths that it does not see would look as if it did.
LINK_FLAGS = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs")


def sources() -> Path:
    """The folder `native`, with `vgpu` and `include` in it."""
    for folder in _FOLDERS:
        if (folder / "vgpu" / "model.h").is_file():
            return folder
    raise InputError.of("this installation has no sources of the virtual GPU")


def build() -> Path:
    """The folder with the libraries; compiles them if nobody has yet."""
    compiler = find_compiler()
    native = sources()
    folder = cache_folder() / "vgpu" / _digest(native, compiler)
    if not all((folder / name).is_file() for name in LIBRARIES):
        compile_into(folder, native, compiler)
    return folder


def compile_into(folder: Path, native: Path, compiler: str, extra: Sequence[str] = ()) -> None:
    """Compiles both libraries. They appear whole, so that two who build at once do not harm each other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.of(
            f"cannot make {folder}: {error.strerror}", fix="name another cache in $XDG_CACHE_HOME"
        ) from error
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        for name, pattern in LIBRARIES.items():
            made = Path(unfinished) / name
            command = [
                *(compiler, *FLAGS, *LINK_FLAGS, f"-Wl,-soname,{name}", *extra),
                *("-I", str(native / "include"), "-I", str(native / "vgpu"), "-o", str(made)),
                *(str(native / "vgpu" / file) for file in _SHARED),
                *(str(file) for file in sorted((native / "vgpu").glob(pattern))),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise InputError.of(f"cannot compile {name} with {compiler}:\n{done.stderr.strip()}")
            made.replace(folder / name)


def find_compiler() -> str:
    """The C compiler; InputError where virtual GPUs cannot be had."""
    if not sys.platform.startswith("linux"):
        raise InputError.of(f"virtual GPUs need Linux, this is {sys.platform}")
    named = os.environ.get("CC", "")
    for word in (named, "cc", "gcc", "clang"):
        found = shutil.which(word) if word else None
        if found:
            return found
    raise InputError.of("virtual GPUs need a C compiler", fix="install gcc or clang, or name one in $CC")


def _digest(native: Path, compiler: str) -> str:
    digest = hashlib.sha256(" ".join((compiler, *FLAGS, *LINK_FLAGS)).encode())
    for file in sorted((*native.glob("vgpu/*"), *native.glob("include/**/*.h"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Where compiled libraries are kept."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if named else Path.home() / ".cache") / "batuta"
