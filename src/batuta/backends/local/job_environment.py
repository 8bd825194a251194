"""The environment that jobs inherit: a Python of their own, the SDK, and no secrets of the server.

Where Batuta's environment is on the PATH, as after `source .venv/bin/activate`, jobs would find its `python`
and `pip`, and a `pip install` in a setup would change the packages that the server runs with. So jobs find
another environment before it. What they install goes there and stays, for the jobs that come after; what
Batuta's has they see. A Python that comes earlier on the PATH remains the one that they find.

The user who starts a server may have tokens and passwords in the environment, so jobs inherit only variables
that programs need. This keeps secrets from honest jobs and from their logs; it is no protection against a job
that looks for them, since it runs as the same user as the server.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import batuta.sdk

_BENEATH = "batuta-server.pth"
"""Puts Batuta's packages behind those of jobs. Written last: without it the environment is not complete."""
_PIP = '#!/bin/sh\nexec "{python}" -m pip "$@"\n'


def with_job_python(root: Path, env: Mapping[str, str]) -> dict[str, str]:
    """`env`, in which `python` and `pip` are not Batuta's. OSError when others cannot be made below `root`."""
    found, batutas = dict(env), os.path.dirname(sys.executable)
    folders = found.get("PATH", "").split(os.pathsep)
    place = next((at for at, folder in enumerate(folders) if _is_same(folder, batutas)), None)
    is_active = _is_same(found.get("VIRTUAL_ENV", ""), sys.prefix)
    if place is not None:
        own = _make_environment(root)
        folders.insert(place, str(own / "bin"))
        found["PATH"] = os.pathsep.join(folders)
        if is_active or "VIRTUAL_ENV" not in found:
            # uv goes by it, and would else take whatever .venv is around the folder in which it is called.
            found["VIRTUAL_ENV"] = str(own)
    elif is_active:
        del found["VIRTUAL_ENV"]
    return found


def sdk_folder(root: Path) -> Path:
    """A folder below `root` for PYTHONPATH, in which there is nothing but `batuta.sdk`.

    It has no `__init__.py` in `batuta`, and so gives way to Batuta itself in a Python that has it.
    """
    folder = root / "sdk"
    link, target = folder / "batuta" / "sdk", os.path.dirname(os.path.abspath(batuta.sdk.__file__))
    for one in (folder, link.parent):  # the mode is not given to parents that are made on the way
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not link.is_symlink() or os.readlink(link) != target:
        draft = link.with_suffix(".new")
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.replace(link)  # jobs that run may be looking
    return folder


def _make_environment(root: Path) -> Path:
    """The environment of jobs, made where it is not there yet or belongs to a Python that is gone."""
    own = root / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python = own / "bin" / "python"
    packages = own / "lib" / own.name / "site-packages"
    batutas = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else ())]
    beneath = "".join(f"import site; site.addsitedir({one!r})\n" for one in batutas if os.path.isdir(one))
    marker = packages / _BENEATH
    if python.exists() and marker.exists() and marker.read_text() == beneath:
        return own
    import venv  # takes longer to load than all else here, and most starts do without

    for link in own.glob("bin/python*"):
        link.unlink()
    venv.EnvBuilder(symlinks=True).create(own)
    if find_spec("pip") is not None:
        for name in ("pip", "pip3", f"pip{own.name.removeprefix('python')}"):
            if not (script := own / "bin" / name).exists():  # one that a job has installed is newer
                script.write_text(_PIP.format(python=python))
                script.chmod(0o755)
    marker.write_text(beneath)
    return own


def _is_same(folder: str, other: str) -> bool:
    return bool(folder) and os.path.realpath(folder) == os.path.realpath(other)


_NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ"),
        *("TMPDIR", "TMP", "TEMP", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    )
)
_PROXIES = frozenset(name for name in _NAMES if name.endswith("_PROXY"))
_PREFIXES = ("LC_", "PYTHON", "CUDA", "NVIDIA", "NCCL_")


def inherited_env(environ: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """The part of an environment that jobs inherit; `also` names further variables to pass on."""
    wanted = frozenset(also)
    return {
        name: value
        for name, value in environ.items()
        # Proxies are written in small letters as well.
        if name in wanted or name in _NAMES or name.upper() in _PROXIES or name.startswith(_PREFIXES)
    }
