"""Log lines are written by a thread of their own: a slow disk or a full pipe holds nobody up."""

from __future__ import annotations

import logging
import threading
from collections import deque

from batuta.telemetry.log_ids import note_cycle

MOST_LINES = 10_000
_CLOSE_S = 3.0
_TOGETHER_S = 0.05


class LogBehind(logging.Handler):
    """Hands records to another handler. More than it can keep are dropped, and how many is told."""

    def __init__(self, behind: logging.Handler, most: int = MOST_LINES) -> None:
        super().__init__()
        self.dropped = 0
        self._behind = behind
        self._most = most
        self._records: deque[logging.LogRecord] = deque()
        self._changed = threading.Condition()
        self._is_closed = self._is_writing = self._is_hurried = False
        self._untold = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the lock of other handlers: this one has a shorter one."""
        kept = self.filter(record)
        if kept:
            self.emit(record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        note_cycle(record)
        if record.args:
            # What it speaks of may have changed when it is written. Other handlers want it as it was.
            message, record = record.getMessage(), logging.makeLogRecord(vars(record))
            record.msg, record.args = message, None
        with self._changed:
            if self._is_closed or len(self._records) >= self._most:
                self.dropped += 1
                self._untold += 1
                return
            self._records.append(record)
            if len(self._records) in (1, self._most // 2):
                self._changed.notify_all()

    def flush(self) -> None:
        """Waits until all is written, but not for ever."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._records and not self._is_writing, _CLOSE_S)
            self._is_hurried = False

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._behind.close()
        super().close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._records or self._is_closed)
                if not self._records:
                    return
                # Lines that come together are written together: whoever has them to say is not interrupted.
                self._changed.wait_for(self._is_due, _TOGETHER_S)
                taken, untold = list(self._records), self._untold
                self._records.clear()
                self._untold, self._is_writing = 0, True
            for record in taken:
                self._behind.handle(record)
            if untold:
                self._behind.handle(_notice(untold))

    def _is_due(self) -> bool:
        return self._is_closed or self._is_hurried or len(self._records) >= self._most // 2


def _notice(dropped: int) -> logging.LogRecord:
    name, text = "batuta.log", f"{dropped} lines could not be written in time and are lost"
    return logging.LogRecord(name, logging.WARNING, __file__, 0, text, None, None)
