"""The kernel's own log, `/dev/kmsg`: numbered records since the boot."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from batuta.gpu.health.kernel_log import Batch, Cursor

_DEVICE: Final = Path("/dev/kmsg")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_RECORD_BYTES: Final = 16_384
_HEAD: Final = re.compile(rb"\d{1,5},(\d{1,20}),\d{1,20},[^;]*;")
MOST_RECORDS: Final = 20_000
"""Read at once. The rest comes with the next read, so that a flood is taken in steps."""


def _open_device() -> int:
    return os.open(_DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class KmsgLog:
    """The records of this boot; a cursor is the boot's id and the number of the last record.

    Whoever has no cursor gets all records that the kernel has: a GPU that was lost an hour ago still is.
    """

    def __init__(
        self,
        open_device: Callable[[], int] = _open_device,
        boot_id: Callable[[], str] = lambda: _BOOT.read_text().strip(),
    ) -> None:
        self._open, self._boot_id = open_device, boot_id

    def read(self, cursor: Cursor | None) -> Batch:
        """The records behind a cursor; after a reboot, all there are."""
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
                if len(lines) == MOST_RECORDS:
                    break
        finally:
            os.close(device)
        told = f"{missed} records of the kernel log were overwritten before they were read" if missed else ""
        return Batch(tuple(lines), {"boot": boot, "seq": last}, told)


def _records(device: int) -> Iterator[tuple[int, bytes]]:
    """All that can be read without waiting; each read of the device is one record."""
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
        head = _HEAD.match(record)
        if head is not None:
            yield int(head[1]), record


def _text(record: bytes) -> str:
    """The first line; those below it hold names of devices."""
    return record.split(b"\n", 1)[0].decode(errors="replace")
