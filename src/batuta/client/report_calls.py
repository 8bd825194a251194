"""Asking where the GPU time went."""

from __future__ import annotations

from batuta.client.decoding import decode
from batuta.client.report_answers import Report
from batuta.client.transport import Transport

ANSWER_WITHIN_S = 200.0


class ReportCalls:
    """The part of `Client` that looks back. A long journal takes a while to read."""

    _transport: Transport

    def report(self, from_s: float | None = None, to_s: float | None = None) -> Report:
        """GPU time used, lost, idle and waited for; without times, of the last week."""
        params = {key: value for key, value in (("from_s", from_s), ("to_s", to_s)) if value is not None}
        found = self._transport.json("GET", "/report", params=params, timeout=ANSWER_WITHIN_S)
        return decode(Report, found)
