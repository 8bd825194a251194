"""What a replica finds when it starts: its folders and its scripts. The server has other things to do."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK


def lay_out(run_dir: str, spec: dict[str, Any]) -> OSError | None:
    """Makes the folders that are not there yet, and writes the scripts; what was in the way."""
    try:
        for folder in spec.get("folders") or ():
            _make(folder)
        for name, text in (spec.get("scripts") or {}).items():
            _write(os.path.join(run_dir, name), text.encode("utf-8", "surrogateescape"))
    except OSError as problem:
        return problem
    return None


def _make(folder: str) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return  # another replica was first, or another run


def _write(path: str, data: bytes) -> None:
    file = os.open(path, _NEW, 0o600)  # there may be secrets in it
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)
