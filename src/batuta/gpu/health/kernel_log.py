"""Read the kernel log from a cursor on, from /dev/kmsg or a rotated file, and parse errors of GPUs."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeAlias

from batuta.core.health_rules import Source
from batuta.spec.problem import Problem

Cursor: TypeAlias = Mapping[str, str | int]
"""How far a log was read: plain values that only the kind of log that made them interprets."""
MAX_LINE_CHARS: Final = 1000  # characters of a line that are read: slow patterns of rules must not meet endless lines
_ERROR_LINE: Final = re.compile(
    r"""(?:NVRM:\s+Xid|nvidia-nvswitch\d*:\s+(?P<switch>SXid))\s+
        \(PCI:(?P<pci>[0-9a-fA-F]{2,8}(?::[0-9a-fA-F]{2}){1,2}(?:\.[0-7])?)\):\s*
        (?P<code>\d{1,6})(?:,\s*(?P<text>.*))?$""",
    re.VERBOSE,
)
_PID: Final = re.compile(r"\bpid='?(\d{1,10})'?")
_KMSG_TIME: Final = re.compile(r"\d{1,5},\d{1,20},(\d{1,20}),[^;]*;")
_UPTIME: Final = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]")
_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?(?![\d:])")
_SYSLOG: Final = re.compile(r"[A-Z][a-z]{2}\s{1,2}\d{1,2} \d\d:\d\d:\d\d\b")
KMSG: Final = Path("/dev/kmsg")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_RECORD_BYTES: Final = 16_384
_KMSG_HEAD: Final = re.compile(rb"\d{1,5},(\d{1,20}),\d{1,20},[^;]*;")
MAX_RECORDS: Final = 20_000  # read at once. The rest comes with the next read, so that a flood is taken in steps.
_FINGERPRINT_BYTES: Final = 1024
_MAX_FILE_BYTES: Final = 8 << 20  # read at once of one file; the rest comes with the next read
_LISTING_TRIES: Final = 5  # files may be renamed while they are looked for
_COMPRESSED: Final = re.compile(r"\.(?:gz|xz|zst|bz2)$")
_ROTATION_NUMBER: Final = re.compile(r"\.(\d{1,9})$")


class Batch(NamedTuple):
    """The lines since a cursor, and the cursor behind them."""

    lines: tuple[str, ...]
    cursor: Cursor
    missed: str = ""
    """A sentence about lines that could not be read because the log does not go back far enough, or empty."""


class KernelLog(ABC):
    """A log that can be read repeatedly. Reading changes nothing: the caller keeps the cursor."""

    @abstractmethod
    def read(self, cursor: Cursor | None) -> Batch:
        """Return the lines behind a cursor; without one, from where this log begins for new readers."""

    def close(self) -> None:  # noqa: B027
        """Release what the log keeps open between reads."""


class KernelError(NamedTuple):
    """An Xid or SXid."""

    source: Source
    code: int
    pci: str  # the address of the GPU or switch: domain, bus and device, as in 0000:3b:00
    text: str  # what follows the code
    pid: int | None


def parse_line(line: str) -> KernelError | None:
    """Return the error that a line reports, after any prefix of a log daemon; None: nothing about GPUs."""
    found = _ERROR_LINE.search(line[:MAX_LINE_CHARS].rstrip())
    if found is None:
        return None
    text = found["text"] or ""
    pid = _PID.search(text)
    return KernelError(
        Source.SXID if found["switch"] else Source.XID,
        int(found["code"]),
        normalize_pci_address(found["pci"]),
        text,
        int(pid[1]) if pid is not None else None,
    )


def normalize_pci_address(pci: str) -> str:
    """Return one spelling of the addresses of NVML, the kernel and the driver: `0000:3b:00`."""
    parts = pci.lower().split(".")[0].split(":")
    domain = int(parts[0], 16) if len(parts) == 3 else 0
    return f"{domain:04x}:{':'.join(parts[-2:])}"


def timestamp_s(line: str) -> float | None:
    """Return the time in a line, in seconds on a clock that only lines of the same log share."""
    head = line[:120]
    if found := _KMSG_TIME.match(head):
        return int(found[1]) / 1e6
    if found := _ISO.search(head):
        return _iso_s(found)
    if found := _SYSLOG.search(head):
        return _syslog_s(found)
    found = _UPTIME.search(head)
    return float(found[1]) if found is not None else None


def _iso_s(found: re.Match[str]) -> float | None:
    zone = (found[3] or "Z").replace("Z", "+00:00")
    try:
        whole = datetime.fromisoformat(f"{found[1].replace(' ', 'T')}{zone}")
    except ValueError:
        return None
    return whole.timestamp() + float(f"0.{found[2] or 0}")


def _syslog_s(found: re.Match[str]) -> float | None:
    """Return seconds since the year began; the line names no year, so every year has a February 29."""
    try:
        return datetime.strptime(f"2000 {found[0]} +0000", "%Y %b %d %H:%M:%S %z").timestamp()
    except ValueError:
        return None


def log_problems(option: str, log: Path | None, rights: str) -> list[Problem]:
    """Return what is wrong with a log that an option names. It need not be there yet. `rights`: how to get them."""
    if log is None:
        return []
    if log.is_dir():
        return [Problem(f"{option}: {log} is a folder", fix="name the file that the kernel log goes to, or /dev/kmsg")]
    if not log.exists() and not log.parent.is_dir():
        return [Problem(f"{option}: there is no folder {log.parent}")]
    if log.exists() and not os.access(log, os.R_OK):
        return [Problem(f"{option}: {log} may not be read by you", fix=rights)]
    return []


def is_device(path: Path) -> bool:
    """Return whether a log is the kernel's own device, and no file that a daemon writes."""
    return path.exists() and stat.S_ISCHR(path.stat().st_mode)


def open_kernel_log(path: Path) -> KernelLog:
    """Return the kernel's own device, or a file that a daemon writes."""
    return KmsgLog(partial(open_device, path)) if is_device(path) else LogFile(path)


def open_device(path: Path = KMSG) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class KmsgLog(KernelLog):
    """The records of this boot; a cursor is the boot's id and the number of the last record.

    A reader without a cursor gets all records that the kernel has: a GPU lost an hour ago still is.
    """

    def __init__(
        self,
        open_device: Callable[[], int] = open_device,
        boot_id: Callable[[], str] = lambda: _BOOT_ID.read_text().strip(),
    ) -> None:
        self._open, self._boot_id = open_device, boot_id

    def read(self, cursor: Cursor | None) -> Batch:
        """Return the records behind a cursor; after a reboot, all records."""
        boot = self._boot_id()
        same_boot = cursor is not None and cursor.get("boot") == boot
        last = int(cursor["seq"]) if cursor is not None and same_boot else -1
        lines: list[str] = []
        missed = 0
        device = self._open()
        try:
            for number, record in _records(device):
                if number <= last:
                    continue
                if last >= 0:
                    missed += number - last - 1
                last = number
                lines.append(_text(record))
                if len(lines) == MAX_RECORDS:
                    break
        finally:
            os.close(device)
        text = f"{missed} records of the kernel log were overwritten before they were read" if missed else ""
        return Batch(tuple(lines), {"boot": boot, "seq": last}, text)


def _records(device: int) -> Iterator[tuple[int, bytes]]:
    """Yield all records that can be read without waiting; each read of the device is one record."""
    while True:
        try:
            record = os.read(device, _RECORD_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            # The next record was overwritten: the device goes on behind it, and numbers tell how many went
            if error.errno == errno.EPIPE:
                continue
            raise
        if not record:
            return
        head = _KMSG_HEAD.match(record)
        if head is not None:
            yield int(head[1]), record


def _text(record: bytes) -> str:
    """Return the first line; those below it hold names of devices."""
    return record.split(b"\n", 1)[0].decode(errors="replace")


class LogFile(KernelLog):
    """Whole lines of a file; a cursor is its inode, an offset and a fingerprint of what lies before that.

    The fingerprint tells the file that was read from one that was emptied and written anew, and from one that
    got the inode of a deleted file. What was rotated away meanwhile is found beside the file (`kern.log.1`,
    `kern.log-20261116`) and read to its end first. Only packed or deleted files are lost, which is said.
    """

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        """`from_start`: a reader without a cursor gets the file from its beginning, not only new lines."""
        self._path, self._from_start = path, from_start

    def read(self, cursor: Cursor | None) -> Batch:
        """Return the whole lines behind a cursor, of one file at a time; none while there is no file."""
        if cursor is None:
            return self._begin()
        with ExitStack() as files:
            there = self._all(files)
            if there is None:
                return Batch((), cursor)  # they are being rotated: the next read finds them in order
            old, newer = _find(cursor, there)
            if old is not None:
                return _take_on(old, newer, int(cursor["offset"]))
            current = self._open(self._path, files)
            if current is None:
                return Batch((), cursor)
            text = f"{self._path} was replaced; what was not read of the file before is gone or packed"
            # Inode 0 says that there was no file: then nothing can be missing.
            return _take(current, 0, missed=text if cursor["inode"] else "")

    def _begin(self) -> Batch:
        with ExitStack() as files:
            file = self._open(self._path, files)
            if file is None:
                return Batch((), {"inode": 0, "offset": 0, "print": ""})
            if self._from_start:
                return _take(file, 0)
            return Batch((), _cursor(file, _line_start(file)))

    def _all(self, files: ExitStack) -> list[BinaryIO] | None:
        """Open the file and those beside it, the newest first; None while they are being renamed.

        A listing that is made meanwhile may lack a file, or have one twice, and so may what is opened by it:
        it counts if all have the same names before and afterwards.
        """
        for _ in range(_LISTING_TRIES):
            paths = [str(self._path), *self._rotated()]
            opened = [self._open(path, files) for path in paths]
            inodes = [None if file is None else os.fstat(file.fileno()).st_ino for file in opened]
            if [paths[0], *self._rotated()] == paths and list(map(_inode, paths)) == inodes:
                return [file for file in opened if file is not None]
        return None

    def _rotated(self) -> list[str]:
        """Return the rotated files beside it, the newest first."""
        beginnings = (f"{self._path.name}.", f"{self._path.name}-")
        try:
            # Listed twice at every look, so without a path object and a system call for each.
            with os.scandir(self._path.parent) as folder:
                beside = [
                    one.path
                    for one in folder
                    if one.name.startswith(beginnings) and not _COMPRESSED.search(one.name) and one.is_file()
                ]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []
        numbered = {path: int(found[1]) for path in beside if (found := _ROTATION_NUMBER.search(path))}
        dated = sorted((path for path in beside if path not in numbered), reverse=True)
        return [*sorted(numbered, key=numbered.__getitem__), *dated]

    @staticmethod
    def _open(path: str | Path, files: ExitStack) -> BinaryIO | None:
        try:
            return files.enter_context(open(path, "rb"))
        except FileNotFoundError:
            return None


def _find(cursor: Cursor, there: list[BinaryIO]) -> tuple[BinaryIO | None, list[BinaryIO]]:
    """Return the file that a cursor is about, and all newer ones, the oldest of them first."""
    # A copy will do if the file itself is not there: some daemons copy a log and empty it.
    for must_be_itself in (True, False):
        for place, file in enumerate(there):
            if _is_of(file, cursor, must_be_itself):
                return file, there[:place][::-1]
    return None, []


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _take_on(old: BinaryIO, newer: list[BinaryIO], offset: int) -> Batch:
    """Read on in the old file, or in a newer one when the old one is at its end for good."""
    # A daemon goes on with the old file for a while after it was renamed. Once there is something in a newer
    # one, it does not any more; so this is looked at before the old one is read. Some are rotated empty.
    successor = next((file for file in newer if os.fstat(file.fileno()).st_size > 0), None)
    batch = _take(old, offset, is_final=successor is not None)
    if successor is None or batch.lines:
        return batch
    return _take(successor, 0)


def _take(file: BinaryIO, offset: int, *, is_final: bool = False, missed: str = "") -> Batch:
    """Return the whole lines from an offset on; of a final file also a last line without an end."""
    file.seek(offset)
    data = file.read(_MAX_FILE_BYTES)
    whole = len(data) if is_final and len(data) < _MAX_FILE_BYTES else data.rfind(b"\n") + 1
    if not whole and len(data) == _MAX_FILE_BYTES:
        whole = len(data)  # A line without an end is none of the kernel's.
    text = data[:whole].decode(errors="replace")
    lines = text.removesuffix("\n").split("\n") if text else []
    return Batch(tuple(lines), _cursor(file, offset + whole), missed)


def _cursor(file: BinaryIO, offset: int) -> Cursor:
    return {"inode": os.fstat(file.fileno()).st_ino, "offset": offset, "print": _fingerprint(file, offset)}


def _is_of(file: BinaryIO, cursor: Cursor, must_be_itself: bool) -> bool:
    offset, stat = int(cursor["offset"]), os.fstat(file.fileno())
    is_itself = stat.st_ino == cursor["inode"]
    if stat.st_size < offset or not (is_itself or (offset and not must_be_itself)):
        return False
    return _fingerprint(file, offset) == cursor["print"]


def _fingerprint(file: BinaryIO, offset: int) -> str:
    file.seek(0)
    head = file.read(min(offset, _FINGERPRINT_BYTES))
    file.seek(max(0, offset - _FINGERPRINT_BYTES))
    return hashlib.sha256(head + file.read(min(offset, _FINGERPRINT_BYTES))).hexdigest()[:32]


def _line_start(file: BinaryIO) -> int:
    """Return where the line begins that is being written at the end."""
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - (64 << 10))
    file.seek(start)
    return start + file.read(end - start).rfind(b"\n") + 1
