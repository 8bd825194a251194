"""Compile the native libraries, once per version of their sources, into the user's cache.

Two sets: `libcuda` and `libnvidia-ml` of the virtual GPUs, and the share library with its probe.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from batuta.spec.problem import InputError

_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "vgpu" / "native", *(above / "native" for above in _HERE.parents[2:3]))
"""Below this package when it is installed; at the root of a checkout."""

COMPILE_FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
# Without -Bsymbolic a library that is loaded before ours, as one that limits memory would be, also gets the
# calls that our functions make among themselves. Paths that it does not see would look as if it did.
LINK_FLAGS = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs")

VGPU_VARIABLE = "BATUTA_VGPU"
VGPU_LIBRARIES = {"libcuda.so.1": "driver_*.c", "libnvidia-ml.so.1": "nvml_*.c"}
_VGPU_SHARED = ("model.c", "processes.c", "timeline.c")

SHARE_LIBRARY = "libbatuta-share.so"
SHARE_PROBE = "share-probe"
_SHARE_FLAGS = (*COMPILE_FLAGS, "-Wall", "-Wextra", "-Werror")
_SHARE_LINK_FLAGS = (*LINK_FLAGS, f"-Wl,-soname,{SHARE_LIBRARY}")


def vgpu_libraries() -> Path:
    """Return the folder with the libraries of the virtual GPUs; compile them if they are not there."""
    return _cached("vgpu", (*COMPILE_FLAGS, *LINK_FLAGS), "vgpu/*", VGPU_LIBRARIES, compile_vgpu_libraries)


def vgpu_environment(
    path: Path, base: Mapping[str, str] | None = None, libraries: Path | None = None
) -> dict[str, str]:
    """Return the variables with which a program takes the virtual GPUs of a device file for real ones.

    `base`: the environment to add them to, by default this process's own. `libraries`: the result of
    `vgpu_libraries`, for callers that ask often and need not have the sources hashed each time.
    """
    variables = dict(os.environ if base is None else base)
    found = variables.get("LD_LIBRARY_PATH", "")
    folder = str(libraries or vgpu_libraries())
    variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (folder, found)))
    variables[VGPU_VARIABLE] = str(path.resolve())
    return variables


def share_library() -> Path:
    """Return the library that limits containers; compile it if it is not there."""
    return _share_folder() / SHARE_LIBRARY


def copy_for_all(folder: Path, home: Path) -> Path:
    """Return a copy of a folder of the cache below `home`: other users cannot read what is in root's cache."""
    copied = home / "lib" / f"{folder.parent.name}-{folder.name}"
    if not copied.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=".lib-", dir=home))
        for path in folder.iterdir():
            if path.is_file():
                shutil.copyfile(path, draft / path.name)
                (draft / path.name).chmod(0o755)
        draft.chmod(0o755)
        copied.parent.mkdir(mode=0o755, exist_ok=True)
        copied.parent.chmod(0o755)
        draft.rename(copied)
    return copied


def share_probe() -> Path:
    """Return the program that tests whether limits hold, by every way there is to a driver's functions."""
    return _share_folder() / SHARE_PROBE


def _share_folder() -> Path:
    def compile_both(folder: Path, native: Path, compiler: str) -> None:
        compile_share(folder / SHARE_LIBRARY, native, compiler)
        compile_probe(folder / SHARE_PROBE, native, compiler)

    flags = (*_SHARE_FLAGS, *_SHARE_LINK_FLAGS)
    return _cached("share", flags, "share/**/*.*", (SHARE_LIBRARY, SHARE_PROBE), compile_both)


def _cached(
    kind: str,
    flags: Iterable[str],
    sources: str,
    files: Iterable[str],
    compile_into: Callable[[Path, Path, str], None],
) -> Path:
    """Return the folder of the cache with files of these sources, compiler and flags; make those that are missing."""
    compiler, native = find_compiler(), native_sources()
    digest = hashlib.sha256(" ".join((compiler, *flags)).encode())
    for file in sorted((*native.glob(sources), *native.glob("include/**/*.h"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    folder = cache_folder() / kind / digest.hexdigest()[:16]
    if not all((folder / name).is_file() for name in files):
        compile_into(folder, native, compiler)
    return folder


def compile_vgpu_libraries(folder: Path, native: Path, compiler: str, extra: Sequence[str] = ()) -> None:
    vgpu = native / "vgpu"
    for name, pattern in VGPU_LIBRARIES.items():
        flags = (*COMPILE_FLAGS, *LINK_FLAGS, f"-Wl,-soname,{name}", *extra)
        files = [*(vgpu / file for file in _VGPU_SHARED), *sorted(vgpu.glob(pattern))]
        _compile(folder / name, (compiler, *flags), (native / "include", vgpu), files)


def compile_share(made: Path, native: Path, compiler: str, extra: Sequence[str] = ()) -> None:
    files = sorted((native / "share").glob("*.c"))
    if not files:
        raise InputError.of("this installation has no sources of the library for sharing")
    _compile_share(made, native, (compiler, *_SHARE_FLAGS, *_SHARE_LINK_FLAGS, *extra), files)


def compile_probe(made: Path, native: Path, compiler: str, extra: Sequence[str] = ()) -> None:
    """Compile the probe, linked with the driver's names: the driver behind them is found when it runs."""
    probe = native / "share" / "probe"
    with tempfile.TemporaryDirectory() as folder:
        driver = Path(folder) / "libcuda.so.1"
        names = (compiler, *_SHARE_FLAGS, "-shared", f"-Wl,-soname,{driver.name}")
        _compile_share(driver, native, names, [probe / "link" / "driver.c"])
        command = (compiler, *_SHARE_FLAGS, "-Wl,--no-as-needed", *extra)
        _compile_share(made, native, command, [*sorted(probe.glob("*.c")), driver])


def _compile_share(made: Path, native: Path, command: Sequence[str], files: Sequence[Path]) -> None:
    _compile(made, command, (native / "include", native / "share"), files, ("-ldl", "-lrt"))


def _compile(
    made: Path, command: Sequence[str], includes: Iterable[Path], files: Iterable[Path], last: Sequence[str] = ()
) -> None:
    """Compile one file. It appears whole, so that two processes that compile at once do no harm."""
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.of(
            f"cannot make {made.parent}: {error.strerror}", fix="name another cache in $XDG_CACHE_HOME"
        ) from error
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        unfinished = Path(folder) / made.name
        paths = [word for include in includes for word in ("-I", str(include))]
        arguments = [*command, *paths, "-o", str(unfinished), *map(str, files), *last]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InputError.of(f"cannot compile {made.name} with {command[0]}:\n{done.stderr.strip()}")
        unfinished.replace(made)


def native_sources() -> Path:
    """Return the folder `native`, with `vgpu`, `share` and `include` in it."""
    for folder in _FOLDERS:
        if (folder / "vgpu" / "model.h").is_file():
            return folder
    raise InputError.of("this installation has no sources of the virtual GPU")


def find_compiler() -> str:
    """Return the C compiler; raise InputError on a machine that cannot have virtual GPUs."""
    if not sys.platform.startswith("linux"):
        raise InputError.of(f"virtual GPUs need Linux, this is {sys.platform}")
    named = os.environ.get("CC", "")
    for word in (named, "cc", "gcc", "clang"):
        found = shutil.which(word) if word else None
        if found:
            return found
    raise InputError.of("virtual GPUs need a C compiler", fix="install gcc or clang, or name one in $CC")


def cache_folder() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if named else Path.home() / ".cache") / "batuta"
