"""Compiling the library that limits containers: once for each version of its sources, into the cache."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from batuta.gpu.vgpu.build import cache_folder, find_compiler, sources
from batuta.spec.problem import InputError

LIBRARY = "libbatuta-share.so"
PROBE = "share-probe"
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra", "-Werror")
# -Bsymbolic: what our functions call among themselves stays inside, whoever else defines the same names.
LINK_FLAGS = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", f"-Wl,-soname,{LIBRARY}")


def share_library() -> Path:
    """The compiled library; compiles it if nobody has yet."""
    return _made(LIBRARY)


def share_probe() -> Path:
    """The program that tries out whether limits hold, by every way there is to a driver's functions."""
    return _made(PROBE)


def _made(name: str) -> Path:
    compiler, native = find_compiler(), sources()
    folder = cache_folder() / "share" / _digest(native, compiler)
    if not (folder / name).is_file():
        compile_share(folder / LIBRARY, native, compiler)
        compile_probe(folder / PROBE, native, compiler)
    return folder / name


def compile_share(made: Path, native: Path, compiler: str, extra: Sequence[str] = ()) -> None:
    """Compiles the library. It appears whole, so that two who build at once do not harm each other."""
    files = sorted((native / "share").glob("*.c"))
    if not files:
        raise InputError.of("this installation has no sources of the library for sharing")
    _compile(made, native, (compiler, *FLAGS, *LINK_FLAGS, *extra), files)


def compile_probe(made: Path, native: Path, compiler: str, extra: Sequence[str] = ()) -> None:
    """Compiles the probe, linked with the driver's names: what is behind them is found when it runs."""
    probe = native / "share" / "probe"
    files = sorted(probe.glob("*.c"))
    with tempfile.TemporaryDirectory() as folder:
        driver = Path(folder) / "libcuda.so.1"
        names = (compiler, *FLAGS, "-shared", f"-Wl,-soname,{driver.name}")
        _compile(driver, native, names, [probe / "link" / "driver.c"])
        _compile(made, native, (compiler, *FLAGS, "-Wl,--no-as-needed", *extra), [*files, driver])


def _compile(made: Path, native: Path, command: Sequence[str], files: Sequence[Path]) -> None:
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.of(
            f"cannot make {made.parent}: {error.strerror}", fix="name another cache in $XDG_CACHE_HOME"
        ) from error
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        unfinished = Path(folder) / made.name
        includes = ("-I", str(native / "include"), "-I", str(native / "share"))
        words = [*command, *includes, "-o", str(unfinished), *map(str, files), "-ldl", "-lrt"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InputError.of(f"cannot compile {made.name} with {command[0]}:\n{done.stderr.strip()}")
        unfinished.replace(made)


def _digest(native: Path, compiler: str) -> str:
    digest = hashlib.sha256(" ".join((compiler, *FLAGS, *LINK_FLAGS)).encode())
    for file in sorted((*native.glob("share/**/*.*"), *native.glob("include/**/*.h"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
