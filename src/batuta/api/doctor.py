"""What a server finds wrong with itself: what only it can know, for `batuta doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import anyio.to_thread
from fastapi import APIRouter
from pydantic import BaseModel

from batuta.api.auth import Viewer
from batuta.api.desk import AtDesk, Desk
from batuta.api.routes import problems
from batuta.engine.finding import Finding, error, note, ok, warning
from batuta.engine.soundness import check_world
from batuta.store.journal_checkup import check_journal
from batuta.store.room import check_room
from batuta.store.sqlite_database import SqliteDatabase
from batuta.telemetry.exporter import SENT, SpanExporter

router = APIRouter(prefix="/doctor", tags=["cluster"])
_SLOW_CYCLE_S = 5.0


class FindingView(BaseModel):
    """What one check found."""

    check: str
    severity: Literal["ok", "note", "warning", "error"]
    found: str
    fix: str
    """What to do about it; empty when nothing is to be done."""


class Examination(BaseModel):
    """All checks."""

    version: str
    now_s: float
    findings: list[FindingView]


@router.get("", responses=problems())
async def get_doctor(desk: AtDesk, who: Viewer, full: bool = False) -> Examination:
    """Stuck gangs, leaked quota, orphan reservations, the journal, its disk, traces.

    With `full`, even a large journal is looked through for damage.
    """

    def work() -> list[Finding]:
        return list(examine(desk, full))

    found = await anyio.to_thread.run_sync(work, limiter=desk.questions)
    views = [FindingView(check=f.check, severity=f.severity.value, found=f.found, fix=f.fix) for f in found]
    return Examination(version=desk.parts.version, now_s=desk.now_s(), findings=views)


def examine(desk: Desk, full: bool = False) -> Iterator[Finding]:
    """All that is found. It works on a copy of the World, so the engine goes on meanwhile."""
    parts = desk.parts
    yield _engine(desk)
    yield from check_world(parts.service.fork(), desk.now_s())
    database = parts.store.database
    if isinstance(database, SqliteDatabase):
        yield from check_journal(database.path, full=full)
        yield check_room(database.path.parent, "server's disk")
    if parts.spans is not None:
        yield _traces(parts.spans)


def _engine(desk: Desk) -> Finding:
    service, cycles = desk.parts.service, desk.parts.cycles
    if service.cannot_store:
        fix = "make room; jobs run on and nothing is lost meanwhile"
        return error("journal", f"cannot be written: {service.cannot_store}", fix)
    if service.trouble:
        return error("engine", service.trouble, "see server.log, or the log of the operator's pod")
    if cycles.last_s > _SLOW_CYCLE_S:
        return warning(
            "engine",
            f"the last decision took {cycles.last_s:.1f} s",
            "see which step in the dashboard Health, or send traces with --otlp",
        )
    return ok("engine", f"goes on; the last of {cycles.count:,} decisions took {1000 * cycles.last_s:.1f} ms")


def _traces(spans: SpanExporter) -> Finding:
    counts = dict(spans.counts)
    lost = sum(counts.values()) - counts[SENT]
    if lost and spans.is_failing:
        return warning(
            "traces", f"{lost:,} spans are lost, {counts[SENT]:,} were sent", "see --otlp and its collector"
        )
    if lost:
        found = f"{lost:,} spans were lost, {counts[SENT]:,} were sent; it works now"
        return note("traces", found, "see in the log when, and why its collector did not take them")
    return ok("traces", f"{counts[SENT]:,} spans sent")
