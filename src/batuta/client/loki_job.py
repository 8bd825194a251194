"""What a replica printed whose pods are gone, as a Loki has kept it.

The labels are those that the chart's collector sets: the namespace and, as `service.name`, the job are labels
of the stream; the replica stands beside each line. A launcher's lines have the replica `launcher`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from batuta.client.kube.readable_log import ReadableLog, last_lines
from batuta.client.loki import Line, Loki, quoted
from batuta.client.loki_paging import PAGE_LINES, Question, lines

NAMESPACE_LABEL: Final = "k8s_namespace_name"
JOB_LABEL: Final = "service_name"
REPLICA_LABEL: Final = "batuta_replica"
LAUNCHER: Final = "launcher"
MOST_LINES: Final = 1_000_000
MOST_BYTES: Final = 512 << 20
"""Of what is printed in all."""
_NS_PER_S: Final = 10**9
_PIECE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class OldJob:
    """Whose output is asked for, and of which time."""

    namespace: str
    name: str
    rank: int
    from_s: float
    to_s: float

    def question(self, replica: str) -> Question:
        labels = f"{NAMESPACE_LABEL}={quoted(self.namespace)}, {JOB_LABEL}={quoted(self.name)}"
        query = f"{{{labels}}} | {REPLICA_LABEL}={quoted(replica)}"
        return Question(query, int(self.from_s * _NS_PER_S), int(self.to_s * _NS_PER_S))


def old_output(loki: Loki, job: OldJob, tail: int | None, note: Callable[[str], None]) -> Iterator[bytes]:
    """Its output in order, without the reports of the SDK; with `tail`, the last lines of it."""
    asked = _question(loki, job)
    if tail is None:
        yield from _pieces(_bounded(lines(loki, asked, note=note), note))
    elif tail > 0:
        yield _tail(loki, asked, tail, note)


def _question(loki: Loki, job: OldJob) -> Question:
    """Replica 0 of a job with a launcher is the launcher, as it is while its pods are there."""
    if job.rank == 0:
        launcher = job.question(LAUNCHER)
        if next(lines(loki, launcher, newest_first=True, page_lines=1), None) is not None:
            return launcher
    return job.question(str(job.rank))


def _pieces(found: Iterable[Line]) -> Iterator[bytes]:
    readable, held = ReadableLog(), bytearray()
    for line in found:
        held += readable.take(_bytes(line))
        if len(held) >= _PIECE_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held) + readable.rest()


def _tail(loki: Loki, asked: Question, count: int, note: Callable[[str], None]) -> bytes:
    """Reads back until there are enough lines that are no reports."""
    found: list[Line] = []
    enough, shown = count, b""
    page_lines = min(PAGE_LINES, 100 + count)
    back = _bounded(lines(loki, asked, newest_first=True, page_lines=page_lines, note=note), note)
    for line in back:
        found.append(line)
        if len(found) < enough:
            continue
        shown = last_lines(_readable(found), count)
        if shown.count(b"\n") >= count:
            return shown
        enough = 2 * len(found)
    return last_lines(_readable(found), count)


def _readable(newest_first: list[Line]) -> bytes:
    readable = ReadableLog()
    return readable.take(b"".join(map(_bytes, reversed(newest_first)))) + readable.rest()


def _bounded(found: Iterable[Line], note: Callable[[str], None]) -> Iterator[Line]:
    size = 0
    for number, line in enumerate(found):
        size += len(line.text)
        if number >= MOST_LINES or size > MOST_BYTES:
            note(f"stopped after {number:,} lines: --since TIME and --tail N choose others")
            return
        yield line


def _bytes(line: Line) -> bytes:
    return line.text.encode("utf-8", "surrogatepass") + b"\n"
