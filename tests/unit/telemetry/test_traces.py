"""A cycle is a trace: its steps within it, and its commands until it is known what came of them."""

import time
from dataclasses import replace
from itertools import pairwise

import pytest

from batuta.api.scheduler_counters import SchedulerCounters
from batuta.backends.sim.backend import SimBackend
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import placement_of
from batuta.core.decide import STEPS
from batuta.core.job import JobState
from batuta.core.plan import Migrate, Plan, Preempt, Resize, Start, Stop, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.fence import NoFence
from batuta.engine.journal import JournaledWorld
from batuta.engine.loop import Engine
from batuta.engine.observers import Observers
from batuta.engine.profile import profile_for
from batuta.telemetry.exporter import QUEUE_FULL, ExportLimits, SpanExporter
from batuta.telemetry.otlp import parse_endpoint
from batuta.telemetry.traces import CARRY_OUT, CommandTraces, CycleTrace, IdGenerator, Span
from tests.support.memory_journal import MemoryJournal
from tests.support.otlp_receiver import receiving
from tests.support.sims import sim_job
from tests.support.worlds import make_nodes


def traced_run(offer, jobs: int = 3) -> tuple[SchedulerCounters, MemoryJournal]:
    """Jobs of four GPUs one after another on four GPUs, simulated to their end."""
    backend = SimBackend([sim_job(f"j{k}", 4, submit_s=10.0 * k) for k in range(jobs)], make_nodes(4))
    world, cycles, journal = World(), SchedulerCounters(), MemoryJournal()
    for event in backend.opening():
        apply(world, event)
    trace = CycleTrace(world, offer)
    observers = Observers(NoFence(), [("traces", trace), ("metrics", cycles)])
    Engine(JournaledWorld(world, journal), backend, profile_for("fifo"), observers).run()
    trace.finish()
    return cycles, journal


# ------------------------------------------------------------------------------------------- cycles and steps


@pytest.fixture(scope="module")
def run() -> tuple[list[Span], SchedulerCounters, MemoryJournal]:
    spans: list[Span] = []
    cycles, journal = traced_run(spans.extend)
    return spans, cycles, journal


def test_every_cycle_is_one_trace_with_its_steps_in_order(run):
    spans, cycles, _ = run
    roots = [span for span in spans if span.name == "cycle"]
    assert len(roots) == cycles.count == len({root.trace_id for root in roots})
    for root in roots:
        own = [span for span in spans if span.parent_id == root.span_id and span.name in (*STEPS, CARRY_OUT)]
        commands = dict(root.attributes)["batuta.commands"]
        if dict(root.attributes)["batuta.jobs"] or commands:
            assert [span.name for span in own] == [*STEPS, *([CARRY_OUT] if commands else [])]
        assert all(root.start_ns <= span.start_ns <= span.end_ns <= root.end_ns for span in own)
        assert all(before.end_ns == after.start_ns for before, after in pairwise(own))


def test_a_cycle_is_named_by_the_version_that_its_plan_holds_for(run):
    spans, _, journal = run
    planned = {event.plan.world_version for event in journal if isinstance(event, ev.Planned)}
    told = {dict(span.attributes)["batuta.cycle"] for span in spans if span.name == "start"}
    assert told == planned
    for span in spans:
        if span.name in STEPS:
            (root,) = [one for one in spans if one.span_id == span.parent_id]
            assert dict(root.attributes)["batuta.cycle"] == dict(span.attributes)["batuta.cycle"]


def test_every_command_is_a_span_of_its_cycle_with_job_kind_and_reason(run):
    spans, _, journal = run
    roots = {span.span_id: span for span in spans if span.name == "cycle"}
    commands = [span for span in spans if "batuta.kind" in dict(span.attributes)]
    ordered = [
        (one.job, type(one).__name__.lower(), one.reason.name)
        for event in journal
        if isinstance(event, ev.Planned)
        for one in event.plan.commands
    ]
    told = [tuple(dict(span.attributes)[f"batuta.{name}"] for name in ("job", "kind", "reason")) for span in commands]
    assert sorted(told) == sorted(ordered)
    assert len(told) == 3
    for span in commands:
        assert roots[span.parent_id].trace_id == span.trace_id
        assert dict(span.attributes)["batuta.outcome"] == "running"
        assert dict(span.attributes)["batuta.gpus"] == 4


def test_the_inner_watcher_hears_of_everything(run):
    _, cycles, journal = run
    assert cycles.schedule.ended["SUCCEEDED"] == 3
    assert sum(cycles.step_times["place"].buckets) > 0
    assert sum(cycles.events.by_type.values()) == len(journal.events)


# --------------------------------------------------------------------------------------------------- commands


def order(*commands) -> Plan:
    return Plan(7, 100.0, "fifo", commands, (), no_decisions())


PLACE = placement_of([("a", 0), ("b", 0)])
NS = 1_000_000_000


@pytest.fixture
def traces() -> CommandTraces:
    return CommandTraces(IdGenerator(), tells_of_preempted=True)


def told(span: Span) -> tuple[str, object, float, str]:
    return span.name, dict(span.attributes)["batuta.outcome"], (span.end_ns - span.start_ns) / NS, span.error


@pytest.mark.parametrize(
    ("command", "event", "outcome", "error"),
    [
        (Start, ev.JobStarted(105.0, "j"), "running", ""),
        (Resize, ev.JobStarted(105.0, "j"), "running", ""),
        (Migrate, ev.JobFound(105.0, "j", PLACE, detail="node b would not"), "found", "node b would not"),
        (Start, ev.JobInterrupted(105.0, "j", detail="exit code 1"), "interrupted", "exit code 1"),
        (Start, ev.JobEnded(105.0, "j", JobState.SUCCEEDED), "succeeded", ""),
        (Start, ev.JobEnded(105.0, "j", JobState.FAILED_SETUP, detail="no pip"), "failed_setup", "no pip"),
        (Stop, ev.JobEnded(105.0, "j", JobState.CANCELLED), "cancelled", ""),
        (Preempt, ev.TransitionTimed(105.0, "j", 0, stop_s=None), "left", ""),
        (Preempt, ev.JobInterrupted(105.0, "j", detail="killed"), "left", ""),
    ],
)
def test_a_command_lasts_until_it_is_known_what_came_of_it(traces, command, event, outcome, error):
    where = () if command in (Preempt, Stop) else (PLACE,)
    traces.ordered(order(command("j", *where, Reason.REPAIRED)), 1, 2, 100 * NS)
    assert traces.carried_out(101 * NS) == []
    assert traces.saw(ev.JobProgressed(102.0, "j", 1.0)) == []
    assert traces.saw(replace(event, job="another")) == []
    (span,) = traces.saw(event)
    assert told(span) == (command.__name__.lower(), outcome, 5.0, error)
    assert traces.saw(event) == []


def test_where_the_time_of_a_resize_went(traces):
    traces.ordered(order(Resize("j", PLACE, Reason.REPAIRED)), 1, 2, 100 * NS)
    (resize,) = traces.saw(ev.JobStarted(110.0, "j"))
    steps = traces.saw(ev.TransitionTimed(110.0, "j", 2, checkpoint_s=3.0, stop_s=1.0, start_s=2.0))
    assert [(one.name, one.start_ns // NS, one.end_ns // NS) for one in steps] == [
        ("checkpoint", 100, 103),
        ("stop replicas", 103, 104),
        ("start replicas", 108, 110),
    ]
    assert {one.parent_id for one in steps} == {resize.span_id}


def test_a_command_that_another_replaces_ends_with_it(traces):
    traces.ordered(order(Start("j", PLACE, Reason.REPAIRED)), 1, 2, 100 * NS)
    traces.ordered(order(Stop("j", Reason.REPAIRED)), 3, 4, 104 * NS)
    (span,) = traces.carried_out(105 * NS)
    assert told(span) == ("start", "replaced", 4.0, "")
    (stop,) = traces.saw(ev.JobEnded(106.0, "j", JobState.CANCELLED))
    assert told(stop) == ("stop", "cancelled", 2.0, "")


def test_where_nobody_tells_of_it_a_preemption_ends_with_its_cycle():
    traces = CommandTraces(IdGenerator(), tells_of_preempted=False)
    traces.ordered(order(Preempt("j", Reason.REPAIRED)), 1, 2, 100 * NS)
    (span,) = traces.carried_out(101 * NS)
    assert told(span) == ("preempt", "given", 1.0, "")


def test_an_effect_is_never_before_its_order(traces):
    traces.ordered(order(Start("j", PLACE, Reason.REPAIRED)), 1, 2, 100 * NS)
    (span,) = traces.saw(ev.JobStarted(99.0, "j"))
    assert span.end_ns == span.start_ns


def test_what_is_open_at_the_end_is_told_as_unknown(traces):
    traces.ordered(order(Start("j", PLACE, Reason.REPAIRED)), 1, 2, 100 * NS)
    (span,) = traces.finish(103 * NS)
    assert told(span) == ("start", "unknown", 3.0, "")
    assert traces.finish(104 * NS) == []


# ------------------------------------------------------------------------------------------- nobody waits


def test_an_endpoint_that_hangs_holds_up_no_cycle():
    """All cycles of a run are over while the endpoint has not answered once."""
    with receiving(hangs=True) as receiver:
        limits = ExportLimits(queued=20, batch=5, every_s=0.01, timeout_s=60.0, flush_s=0.1)
        exporter = SpanExporter(parse_endpoint(receiver.url), (), "0.1", limits)
        try:
            exporter.offer([Span(1, 1, 0, "first", 1, 2)])
            assert receiver.wait_for(1)
            cycles, _ = traced_run(exporter.offer, jobs=20)
            assert cycles.schedule.ended["SUCCEEDED"] == 20
            assert receiver.requests == []
            assert exporter.counts[QUEUE_FULL] > 0
        finally:
            exporter.close()


def test_times_are_those_of_the_wall():
    spans: list[Span] = []
    before_ns = time.time_ns()
    traced_run(spans.extend, jobs=1)
    assert all(before_ns - NS <= span.start_ns <= time.time_ns() + NS for span in spans)
