"""Traces over OTLP and log lines with the ids of cycle and job.

It lies right above the engine: it receives events and plans, and the engine never waits for it.
"""

from __future__ import annotations

from enum import StrEnum


class LogFormat(StrEnum):
    """The words of --log-format."""

    JSON = "json"  # one object per line, for programs
    TEXT = "text"  # for a terminal
