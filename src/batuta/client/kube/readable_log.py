"""A log as its reader wants it: without the lines by which `batuta.sdk` reports."""

from __future__ import annotations

from typing import Final

from batuta.backends.kube.names import REPORT_PREFIX

_MARK: Final = f"{REPORT_PREFIX}{{".encode()
_LONGEST: Final = 2**15
"""What does not end by then is no report."""


class ReadableLog:
    """Passes a log on piece by piece, as it comes; only what may be the beginning of a report is held."""

    def __init__(self) -> None:
        self._held = b""

    def take(self, piece: bytes) -> bytes:
        """What there is to show of one more piece."""
        data, shown = self._held + piece, []
        while (at := data.find(_MARK)) >= 0:
            end = data.find(b"\n", at) + 1
            if not end and len(data) - at <= _LONGEST:
                break
            shown.append(data[:at] if end else data)
            data = data[end:] if end else b""
        # Held back is a report without its end, or an end that may become one.
        at = at if at >= 0 else len(data) - _begun(data)
        shown.append(data[:at])
        self._held = data[at:]
        return b"".join(shown)

    def rest(self) -> bytes:
        """What was held back; nothing more comes."""
        held, self._held = self._held, b""
        return held


def last_lines(log: bytes, count: int) -> bytes:
    """The last lines of a log."""
    return b"".join(log.splitlines(keepends=True)[-count:]) if count > 0 else b""


def _begun(data: bytes) -> int:
    """How much of the mark of a report is at the end."""
    return next((n for n in range(min(len(_MARK) - 1, len(data)), 0, -1) if data.endswith(_MARK[:n])), 0)
