"""How a log line looks."""

from __future__ import annotations

from enum import StrEnum


class LogFormat(StrEnum):
    """The words of --log-format."""

    JSON = "json"
    """One object per line, for programs."""
    TEXT = "text"
    """For people."""
