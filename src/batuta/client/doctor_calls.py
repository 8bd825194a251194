"""Asking a server what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.client.decoding import decode
from batuta.client.transport import Transport

ANSWER_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one check of the server's found."""

    check: str
    severity: str
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """All of them."""

    findings: tuple[Found, ...] = ()
    version: str = ""
    now_s: float | None = None


class DoctorCalls:
    """The part of `Client` that asks how the server is."""

    _transport: Transport

    def examine(self, *, full: bool = False) -> Examination:
        """Stuck gangs, leaked quota, the journal and so on; `full` looks through a large journal, too."""
        params = {"full": "true"} if full else {}
        found = self._transport.json("GET", "/doctor", params=params, timeout=ANSWER_WITHIN_S)
        return decode(Examination, found)
