"""Reports as lines of a script's log, where Batuta can read its log but not its files.

`BATUTA_PROGRESS=/dev/stderr` asks for them. Each is one line, `batuta-report ` and a JSON object, by one
write: a pipe keeps writes of up to 4 KiB in one piece, so that lines of many processes do not mix.
"""

from __future__ import annotations

import os

PATH = "/dev/stderr"
PREFIX = b"batuta-report "
LONGEST_LINE_BYTES = 4096
LONGEST_RESULT_BYTES = 2**14
EVERY_S = 2.0  # users read the log too: by default, a process reports no more often than this
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")

_kept: list[int] = []  # the error output as it was at first: a script may put something else in its place


def keep() -> bool:
    """Keeps a handle of the error output; whether there is one. Without one, there is nowhere to report."""
    if not _kept:
        try:
            _kept.append(os.dup(2))
        except OSError:
            return False
    return True


def speaks_for_all() -> bool:
    """Whether this is the first process of its replica: all do the same steps, and one line is enough."""
    for name in _LOCAL_RANKS:
        if name in os.environ:
            return os.environ[name] in ("", "0")
    return True


def write(text: bytes, longest_bytes: int = LONGEST_LINE_BYTES) -> None:
    """One line. A `ValueError` when it is too long for that."""
    line = PREFIX + text + b"\n"
    if len(line) > longest_bytes:
        raise ValueError(f"it is longer than {longest_bytes >> 10} KiB")
    written = 0 if keep() else len(line)
    while written < len(line):
        written += os.write(_kept[0], line[written:])
