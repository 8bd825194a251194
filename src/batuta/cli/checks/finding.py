"""What a check found, how bad it is, and what to do about it."""

from __future__ import annotations

from batuta.engine.finding import Finding, Severity, error, named, note, ok, warning

__all__ = ["Finding", "Severity", "error", "named", "note", "ok", "warning"]
