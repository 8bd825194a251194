"""What a check found, how bad it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Not needed by everybody."""
    WARNING = "warning"
    """Works, but somebody should look at it."""
    ERROR = "error"
    """Does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of what `batuta doctor` says."""

    check: str
    severity: Severity
    found: str
    fix: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Severity.OK, found)


# Whoever is told that something is not as it might be is told what to do about it.


def note(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Severity.NOTE, found, fix)


def warning(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Severity.WARNING, found, fix)


def error(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Severity.ERROR, found, fix)


def named(names: list[str], most: int = 5) -> str:
    """The first of many, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
