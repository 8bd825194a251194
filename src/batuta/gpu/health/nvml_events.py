"""Xid errors as NVML tells of them, for whoever may not read the kernel log: its lines, without details."""

from __future__ import annotations

import ctypes
import threading
import uuid as unique
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from batuta.gpu.health.kernel_log import Batch, Cursor
from batuta.gpu.health.nvml_figures import NoNvml

_WAIT_MS: Final = 1_000
MOST_LINES: Final = 10_000
"""Kept for readers that have not seen them; of more the oldest go."""


class NvmlEvents:
    """Listens from when it is made to when it is closed. What happens at other times is not heard.

    An event has a code and a GPU: no process, and none of the words by which some rules tell kinds of an
    error apart.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        """`uuids`: of the GPUs to listen to. NoNvml where nobody tells of any."""
        import pynvml  # noqa: PLC0415 - most servers that are tried out have no GPU

        self._nvml: Any = pynvml
        self._run = unique.uuid4().hex
        self._lines: list[str] = []
        self._count = 0
        """Lines so far; those that are kept are the last of them."""
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._handles: list[tuple[Any, str]] = []
        try:
            pynvml.nvmlInit()
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            raise NoNvml(str(error)) from None
        for uuid in uuids:
            with suppress(pynvml.NVMLError):
                self._register(uuid)
        if not self._handles:
            raise NoNvml("no GPU tells of events")
        self._thread = threading.Thread(target=self._listen, name="batuta-xids", daemon=True)
        self._thread.start()

    def _register(self, uuid: str) -> None:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        self._handles.append((handle, bus.decode() if isinstance(bus, bytes) else bus))

    def _listen(self) -> None:
        nvml = self._nvml
        while not self._stop.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, _WAIT_MS)
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError:  # the driver is being replaced, say
                self._stop.wait(_WAIT_MS / 1000)
                continue
            # By its handle: a GPU that is lost cannot tell its address any more.
            pci = next((bus for one, bus in self._handles if _same(one, event.device)), "")
            if pci and event.eventType & nvml.nvmlEventTypeXidCriticalError:
                self._note(pci, int(event.eventData))

    def _note(self, pci: str, code: int) -> None:
        address = pci.lower()[-12:].rpartition(".")[0]
        with self._lock:
            self._lines = [*self._lines, f"NVRM: Xid (PCI:{address}): {code}, by NVML"][-MOST_LINES:]
            self._count += 1

    def read(self, cursor: Cursor | None) -> Batch:
        """The lines behind a cursor; for one of another run, all there are."""
        with self._lock:
            is_own = cursor is not None and cursor.get("run") == self._run
            seen = int(cursor["seen"]) if cursor is not None and is_own else 0
            first = self._count - len(self._lines)
            missed = f"{first - seen} errors came too fast" if seen < first else ""
            return Batch(
                tuple(self._lines[max(0, seen - first) :]), {"run": self._run, "seen": self._count}, missed
            )

    def close(self) -> None:
        """Ends the listening, within about a second."""
        self._stop.set()
        self._thread.join(2 * _WAIT_MS / 1000)
        if not self._thread.is_alive():
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)


def _same(one: Any, other: Any) -> bool:
    """Whether two handles of NVML are of one card."""
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value
