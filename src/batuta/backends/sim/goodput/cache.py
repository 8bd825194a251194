"""Named arrays on disk that may vanish at any time: a fault in the cache is never a fault of the run."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def cache_folder() -> Path | None:
    """`$XDG_CACHE_HOME/batuta/goodput`, else below `~/.cache`; None for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():  # the XDG specification: a relative path is to be ignored
        return Path(named, "batuta", "goodput")
    try:
        return Path.home() / ".cache" / "batuta" / "goodput"
    except RuntimeError:
        return None


def read_arrays(name: str) -> dict[str, NDArray[Any]] | None:
    """What was stored under this name, or None when it is absent, cut short or not readable."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        # Opened here, because NumPy leaves a file open that turns out to be broken.
        with (folder / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error):
        return None


def write_arrays(name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Store under this name in one stroke; a reader sees the old or the new, never half of it."""
    folder = cache_folder()
    if folder is None:
        return
    unfinished: str | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=folder, prefix=f".{name}-", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **dict[str, Any](arrays))
        os.replace(unfinished, folder / f"{name}.npz")
    except OSError:  # read-only or full: the next run reads the sources again
        if unfinished is not None:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
