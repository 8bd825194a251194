"""Find progress reports, checkpoints and results among the lines of a pod's log, in whatever chunks it comes.

Each line begins with the timestamp of its node. A report is delivered once, and a flood is cut off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from batuta.backends.kube.bounded_text import read_time
from batuta.backends.kube.names import REPORT_PREFIX
from batuta.core.job import JobId
from batuta.spec.progress import ProgressReport, parse_line

LONGEST_REPORT_BYTES: Final = 2**14  # as long as the SDK writes one; what is longer is none
LONGEST_RESULT: Final = 2**14
_RESULT: Final = "result"
_PREFIX: Final = REPORT_PREFIX.encode()
_MARK: Final = _PREFIX + b"{"
_LONGEST_STAMP: Final = 40
_LONGEST_REST: Final = 2 * LONGEST_REPORT_BYTES


class ReportLine(NamedTuple):
    """One line that claims to be a report."""

    time_s: float | None  # when it was written, by the clock of the node; None where that cannot be read
    text: bytes


@dataclass(slots=True)
class LogLines:
    """Cuts the reports out of one log, through any number of connections.

    Whatever else is printed is skipped without being looked at, and of a line that does not end only its end
    is kept. `refused` counts reports that were too long.
    """

    refused: int = 0
    _last: bytes = b""  # the time of the last line that was read whole
    _resumed: bytes = b""  # lines up to this time have been read on an earlier connection
    _rest: bytes = b""  # what came last, without an end yet

    @property
    def since(self) -> str:
        """From when on the log is to be read again; empty for one of which nothing was read."""
        return self._last.decode("ascii")

    def reconnect(self) -> None:
        """The next piece is the beginning of a new answer, from `since` on."""
        self._rest, self._resumed = b"", self._last

    def take(self, piece: bytes) -> list[ReportLine]:
        data = self._rest + piece if self._rest else piece
        end = data.rfind(b"\n") + 1
        self._rest = self._shortened(data[end:])
        if not end:
            return []
        begin = self._begin_of_new(data, end)
        last = _stamp(data, data.rfind(b"\n", 0, end - 1) + 1)
        if last > self._last and _seconds(last) is not None:  # a node that explains itself gives no time
            self._last = last
        return list(self._reports(data, begin, end))

    def _begin_of_new(self, data: bytes, end: int) -> int:
        """Where the lines begin that were not read before."""
        if not self._resumed:
            return 0
        begin = 0
        while begin < end:
            if _stamp(data, begin) > self._resumed:
                self._resumed = b""
                break
            begin = data.find(b"\n", begin) + 1
        return begin

    def _reports(self, data: bytes, begin: int, end: int) -> Iterator[ReportLine]:
        at = data.find(_MARK, begin, end)
        while at >= 0:
            line_end = data.find(b"\n", at)
            # Two of them in one line: only the last can be whole.
            at = data.rfind(_MARK, at, line_end)
            text = data[at + len(_PREFIX) : line_end]
            if len(text) > LONGEST_REPORT_BYTES:
                self.refused += 1
            else:
                stamp = _stamp(data, data.rfind(b"\n", 0, at) + 1)
                yield ReportLine(_seconds(stamp), text)
            at = data.find(_MARK, line_end, end)

    def _shortened(self, rest: bytes) -> bytes:
        """A line without an end: a bar that moves for hours must not fill the memory."""
        if len(rest) <= _LONGEST_REST:
            return rest
        head, tail = rest[:_LONGEST_STAMP].partition(b" ")[0] + b" ", rest[-LONGEST_REPORT_BYTES:]
        self.refused += _MARK in rest and _MARK not in tail
        return head + tail


def _stamp(data: bytes, begin: int) -> bytes:
    """The time at the beginning of a line, as it is written: times of one node are in the order of texts."""
    return data[begin : begin + _LONGEST_STAMP].partition(b" ")[0]


def _seconds(stamp: bytes) -> float | None:
    return read_time(stamp.decode("ascii", "replace"))


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """A report, or a checkpoint that was made."""

    report: ProgressReport
    time_s: float | None  # when the line was written, by the clock of its node


@dataclass(frozen=True, slots=True)
class ResultReport:
    """What the script gave to `batuta.sdk.result`, as JSON."""

    text: str


Report: TypeAlias = TrainingReport | ResultReport


def parse_report(line: ReportLine) -> Report | None:
    """What a line says; None for what is no report. Never raises."""
    if b'"result"' in line.text and (result := _result_in(line.text)) is not None:
        return result
    report = parse_line(line.text)
    return None if report is None else TrainingReport(report, line.time_s)


def _result_in(text: bytes) -> ResultReport | None:
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("event") != _RESULT or "value" not in values:
            return None
        # NaN is no JSON, and the reader of the result may be strict.
        found = json.dumps(values["value"], allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        found.encode()  # half a character cannot be stored
    except (ValueError, RecursionError):
        return None
    return ResultReport(found) if len(found) <= LONGEST_RESULT else None


@dataclass(frozen=True, slots=True)
class LogSource:
    """The log of one container of one pod."""

    job: JobId
    namespace: str
    pod: str
    uid: str
    container: str
    is_over: bool = False  # the pod has ended: nothing more will be written


@dataclass(frozen=True, slots=True)
class LogReport:
    """Something was said in the log of a pod."""

    job: JobId
    uid: str
    said: tuple[Report, ...] = ()
    refused: int = 0  # lines that claimed to be reports and were none, or too many
    is_all: bool = False  # nothing more can be heard of this pod

    @property
    def is_urgent(self) -> bool:
        """Whether a user may wait for it: how far a job is can lie for a moment."""
        return self.is_all or any(isinstance(one, ResultReport) or one.report.is_checkpoint for one in self.said)
