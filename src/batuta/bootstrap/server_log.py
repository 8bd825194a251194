"""The server's own log: one JSON object per line, in a file that does not grow for ever."""

from __future__ import annotations

import logging
import logging.handlers
import os
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, cast

import structlog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_MOST_BYTES, _KEPT = 10 << 20, 3
_LIBRARIES = ("uvicorn", "asyncio")
"""Who else has something to say: what went wrong within a request, for one."""


def open_log(path: Path) -> FilteringBoundLogger:
    """A logger that appends to a file; what libraries warn of goes there too."""
    handler = _PrivateFile(path, maxBytes=_MOST_BYTES, backupCount=_KEPT, encoding="utf-8", delay=True)
    timing = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[structlog.typing.Processor] = [structlog.stdlib.add_log_level, timing]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger("batuta")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for own in (logger, *map(logging.getLogger, _LIBRARIES)):
        for old in [old for old in own.handlers if isinstance(old, _PrivateFile)]:
            own.removeHandler(old)
            old.close()
        own.addHandler(handler)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    wrapped = structlog.wrap_logger(
        logger,
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast("FilteringBoundLogger", wrapped)


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A log that only its owner may read: it names jobs, users and paths."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
