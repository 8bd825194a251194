"""`/doctor`: the server's checks of itself, for `batuta doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import anyio.to_thread
from fastapi import APIRouter, Response

from batuta.api.auth import Viewer
from batuta.api.models import Examination
from batuta.api.responses import json_response
from batuta.api.routes import problems
from batuta.api.state import AppState, StateDep
from batuta.engine.fence import Trouble
from batuta.engine.soundness import Finding, check_world, error, note, ok, warning
from batuta.store.integrity import check_disk_space, check_journal
from batuta.store.sqlite import SqliteDatabase
from batuta.telemetry.exporter import SENT, SpanExporter

router = APIRouter(prefix="/doctor", tags=["cluster"])
_SLOW_CYCLE_S = 5.0


@router.get("", response_model=Examination, responses=problems())
async def get_doctor(state: StateDep, caller: Viewer, full: bool = False) -> Response:
    """Stuck gangs, leaked quota, orphan reservations, the journal, its disk, traces.

    With `full`, even a large journal is looked through for damage.
    """
    found = await anyio.to_thread.run_sync(lambda: list(run_checks(state, full)), limiter=state.slow_questions)
    return json_response({"version": state.deps.version, "now_s": state.now_s(), "findings": found})


def run_checks(state: AppState, full: bool = False) -> Iterator[Finding]:
    """Yield all findings. It works on a copy of the World, so the engine goes on meanwhile."""
    deps = state.deps
    yield _engine(state)
    yield from _failures(deps.service.fence.troubles, state.now_s())
    yield from check_world(deps.service.fork(), state.now_s())
    database = deps.store.database
    if isinstance(database, SqliteDatabase):
        yield from check_journal(database.path, full=full)
        yield check_disk_space(database.path.parent, "server's disk")
    if deps.spans is not None:
        yield _traces(deps.spans)


def _engine(state: AppState) -> Finding:
    service, cycles = state.deps.service, state.deps.cycles
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


def _failures(troubles: Mapping[str, Trouble], now_s: float) -> Iterator[Finding]:
    """Yield the failures of parts that the engine goes on without."""
    for part, trouble in sorted(troubles.items()):
        times = "once" if trouble.failures == 1 else f"{trouble.failures:,} times"
        found = f"failed {times}, last {max(0.0, now_s - trouble.last_s):.0f} s ago: {trouble.why}"
        if trouble.is_failing:
            fix = "the scheduler goes on without it and tries again; see server.log, or the operator's log"
            yield warning(part, found, fix)
        else:
            yield note(part, f"{found}; it works now", "see in the log when, and why")


def _traces(spans: SpanExporter) -> Finding:
    counts = dict(spans.counts)
    lost = sum(counts.values()) - counts[SENT]
    if lost and spans.is_failing:
        return warning("traces", f"{lost:,} spans are lost, {counts[SENT]:,} were sent", "see --otlp and its collector")
    if lost:
        found = f"{lost:,} spans were lost, {counts[SENT]:,} were sent; it works now"
        return note("traces", found, "see in the log when, and why its collector did not take them")
    return ok("traces", f"{counts[SENT]:,} spans sent")
