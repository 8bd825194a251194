"""Small files that nobody reads half of, in folders into which a job may put anything.

A FIFO in the place of a file would hold the engine up for as long as the job likes: only regular files are
read, and nothing that is opened here is waited for.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeAlias

Place: TypeAlias = Path | str
_LARGEST_BYTES = 16 * 2**20


class Unreadable(OSError):
    """There is something, but no regular file, or one that is too large to be what it should be."""


def read_small(path: Place, most_bytes: int = _LARGEST_BYTES) -> bytes:
    """What is in a regular file. OSError when there is none."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            raise Unreadable(f"no regular file of at most {most_bytes} bytes: {path}")
        return os.read(file, found.st_size)
    finally:
        os.close(file)


def write_small(path: Place, data: bytes) -> None:
    """Writes a file that only its owner can read. OSError when the disk does not let us."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    file = os.open(path, flags, 0o600)
    try:
        write_all(file, data)
    finally:
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    """Writes all of it into an open file."""
    while data:
        data = data[os.write(file, data) :]


def read_json(path: Place) -> Any:
    """What is in a file; None when nothing is that makes sense."""
    try:
        return json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: Place, value: Any) -> None:
    """Replaces a file as a whole. OSError when the disk does not let us; then the old one stays."""
    draft = f"{path}.new"
    write_small(draft, f"{json.dumps(value)}\n".encode())
    os.replace(draft, path)
