"""CPU time of a cycle: with nothing told, with log lines, with traces, with a receiver that hangs.

Ratios are against an engine that tells nothing. What other threads do (JSON, writing, sending) is not the
engine's; it is in the last column. The point is the last row: a receiver that never answers costs a cycle no
more than one that does.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from batuta.api.scheduler_counters import SchedulerCounters
from batuta.backends.sim.backend import SimBackend
from batuta.core.apply import apply
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.journal import JournaledWorld, NoJournal
from batuta.engine.loop import Engine
from batuta.engine.observers import Observer, Observers
from batuta.engine.profile import profile_for
from batuta.telemetry.exporter import ExportLimits, SpanExporter
from batuta.telemetry.logs import CycleLog, open_log
from batuta.telemetry.otlp import parse_endpoint
from batuta.telemetry.traces import CycleTrace
from benchmarks.measure import no_collection, show
from tests.support.otlp_receiver import receiving
from tests.support.sims import sim_job
from tests.support.worlds import make_nodes

JOBS, NODES, REPEAT = 600, 64, 3
CASES = ("nothing", "log lines", "traces", "traces, hanging receiver")


def run(case: str) -> tuple[float, float]:
    """CPU microseconds per cycle: of the engine's thread, and of the whole process."""
    jobs = [sim_job(f"j{k}", 1 + k % 4, submit_s=1.0 * k, work_s=200.0) for k in range(JOBS)]
    backend, world, cycles = SimBackend(jobs, make_nodes(*[8] * NODES)), World(), SchedulerCounters()
    for event in backend.opening():
        apply(world, event)
    observers: list[tuple[str, Observer]] = [("metrics", cycles)]
    with receiving(hangs=case == CASES[3]) as receiver:
        exporter = None
        if case != "nothing":
            observers.append(("log", CycleLog(world)))
        if case.startswith("traces"):
            exporter = SpanExporter(parse_endpoint(receiver.url), (), "", ExportLimits(flush_s=0.2))
            observers.insert(1, ("traces", CycleTrace(world, exporter.offer)))
        state = JournaledWorld(world, NoJournal())
        engine = Engine(state, backend, profile_for("rent"), Observers(Fence(), observers))
        with no_collection():
            thread_s, process_s = time.thread_time(), time.process_time()
            engine.run()
            thread_s, process_s = time.thread_time() - thread_s, time.process_time() - process_s
        if exporter is not None:
            exporter.close()
    return 1e6 * thread_s / cycles.count, 1e6 * process_s / cycles.count


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        open_log(Path(folder) / "server.log")
        run("nothing")
        # In turns: what else the machine does meets all of them alike.
        measured = [{case: run(case) for case in CASES} for _ in range(REPEAT)]
        open_log(Path(folder) / "end.log")
    reference = statistics.median(one["nothing"][0] for one in measured)
    rows = []
    for case in CASES:
        thread_us, process_us = (statistics.median(one[case][k] for one in measured) for k in (0, 1))
        rows.append([case, f"{thread_us:.0f} µs", f"{thread_us / reference:.2f}", f"{process_us:.0f} µs"])
    show("What telling costs", ["told", "engine's thread, per cycle", "ratio", "whole process"], rows)


if __name__ == "__main__":
    main()
