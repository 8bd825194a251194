"""How the library gets into a process: by environment for local jobs, by files for containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.share.limits import LIMITS_PATH, LIMITS_VARIABLE, ShareLimits

PRELOAD_VARIABLE = "LD_PRELOAD"
PRELOAD_PATH = Path("/etc/ld.so.preload")
LIBRARY_PATH = Path("/usr/local/lib/batuta/libbatuta-share.so")
"""Where the library is inside of a container."""


def share_environment(
    limits_path: Path, library: Path, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables that hold a process, and all it starts, to the limits in the file.

    `base` is the environment that they are added to: what it preloads already stays preloaded, after ours.
    """
    before = (base or {}).get(PRELOAD_VARIABLE, "")
    words = [word for word in before.replace(":", " ").split() if word != str(library)]
    return {
        PRELOAD_VARIABLE: ":".join((str(library), *words)),
        LIMITS_VARIABLE: str(limits_path.absolute()),
    }


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the node inside of a container."""

    host_path: Path
    container_path: Path
    read_only: bool = True


def preload_text() -> str:
    """The contents of a container's /etc/ld.so.preload: every program in it loads the library."""
    return f"{LIBRARY_PATH}\n"


def container_mounts(
    library: Path, preload: Path, limits_path: Path, limits: ShareLimits
) -> tuple[Mount, ...]:
    """What a container needs to be held to its limits; no variable of its environment can undo it.

    The folder of the limits is mounted, not the file: one that is replaced would keep its old contents.
    Region and cards have the same path inside and outside, as the limits name them.
    """
    mounts = [
        Mount(library, LIBRARY_PATH),
        Mount(preload, PRELOAD_PATH),
        Mount(limits_path.parent, LIMITS_PATH.parent),
        Mount(limits.region.parent, limits.region.parent, read_only=False),
    ]
    if limits.cards is not None:
        mounts.append(Mount(limits.cards, limits.cards, read_only=False))
    return tuple(mounts)
