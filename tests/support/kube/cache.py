"""Where built programs and a Go toolchain are kept: outside the repository, one copy for all clones."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """`$BATUTA_CACHE/kube`, else `$XDG_CACHE_HOME/batuta/kube`, else `~/.cache/batuta/kube`."""
    if own := os.environ.get("BATUTA_CACHE"):
        return Path(own).expanduser() / "kube"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "batuta" / "kube"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock of this name: the second test process waits for the first, and finds its work done."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a") as file:
        # The kernel lets go of it when the process ends, however it ends.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
