"""Is there room on the disk where things are kept?"""

from __future__ import annotations

import os
from pathlib import Path

from batuta.engine.finding import Finding, error, ok, warning

LITTLE_BYTES, TOO_LITTLE_BYTES = 1 << 30, 64 << 20
_LITTLE_FILES, _TOO_LITTLE_FILES = 10_000, 200


def check_room(folder: Path, check: str = "disk") -> Finding:
    """Bytes and files that still fit where a folder is."""
    try:
        room = os.statvfs(folder)
    except OSError as trouble:
        return error(check, f"cannot be looked at: {trouble.strerror}", "see whether it is mounted")
    free = room.f_bavail * room.f_frsize
    found = f"{free / 2**30:.1f} GiB free"
    # A file system without a fixed number of files says 0 of 0.
    files = room.f_favail if room.f_files else _LITTLE_FILES
    if files < _LITTLE_FILES:
        found += f", and room for {files} more files"
    if free < TOO_LITTLE_BYTES or files < _TOO_LITTLE_FILES:
        return error(check, found, "make room: nothing can be stored, and a server does not start")
    if free < LITTLE_BYTES or files < _LITTLE_FILES:
        return warning(check, found, "make room: logs and checkpoints may fill it")
    return ok(check, found)
