"""The status of a TrialRun: the table of its sizes, and what it comes to. Written here, and read again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from batuta.backends.kube.trial.model import TrialRun
from batuta.backends.kube.trial.run_manifest import run_name
from batuta.core.job import JobState
from batuta.core.trial import TrialMeasurement, TrialOutcome, TrialPlan
from batuta.engine.trials.lesson import Lesson

_OUTCOMES: Final = {one.value: one for one in TrialOutcome}
_LONGEST_DETAIL: Final = 1024
PLANNED, WAITS, RUNS, NOT_TRIED = "planned", "waits", "runs", "not tried"
OUT_OF_MEMORY, MEASURED, TOO_LITTLE = "OutOfMemory", "Measured", "TooLittleMeasured"
FROM_LESSONS: Final = (OUT_OF_MEMORY, MEASURED, TOO_LITTLE)
"""Reasons of trials that came to their end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trial has ended."""

    state: JobState
    reason: str
    message: str
    lesson: Lesson | None = None


def verdict_of(lesson: Lesson) -> Verdict:
    """What follows from all that was measured."""
    if not lesson.fits:
        return Verdict(JobState.FAILED, OUT_OF_MEMORY, lesson.sentence, lesson)
    reason = TOO_LITTLE if lesson.choice is None else MEASURED
    return Verdict(JobState.SUCCEEDED, reason, lesson.sentence, lesson)


def status_of(
    trial: TrialRun,
    plan: TrialPlan | None,
    measured: Mapping[int, TrialMeasurement],
    living: Mapping[int, str],
    verdict: Verdict | None,
    now_s: float,
) -> dict[str, Any]:
    """The whole status, as it shall be. `living`: by size, what a run does that is not measured yet."""
    sizes = () if plan is None else plan.sizes
    state = JobState.RUNNING if verdict is None else verdict.state
    found: dict[str, Any] = {
        "observedGeneration": trial.metadata.generation,
        "state": state.value,
        "reason": "InTrial" if verdict is None else verdict.reason,
        "message": f"{len(measured)} of {len(sizes)} sizes are done" if verdict is None else verdict.message,
        "progress": f"{len(measured)}/{len(sizes)}",
        "runs": _rows(trial, sizes, measured, living, is_over=verdict is not None),
    }
    if plan is not None:
        found["eachSeconds"] = max(1, round(plan.each_s))
    if verdict is not None:
        found["completionTime"] = trial.status.completion_time or _time(now_s)
        choice = None if verdict.lesson is None else verdict.lesson.choice
        if choice is not None:
            found["chosenGpus"], found["fastestGpus"] = choice.gpus, choice.best_gpus
            found["chosenPercentage"] = round(100 * choice.speed_share)
    found["conditions"] = _conditions(trial, verdict, found, now_s)
    return found


def shows(trial: TrialRun, status: Mapping[str, Any]) -> bool:
    """Whether the object has this status."""
    shown = trial.raw_status if isinstance(trial.raw_status, dict) else {}
    return all(shown.get(key) == value for key, value in status.items())


def read_measured(trial: TrialRun, application: str) -> dict[int, TrialMeasurement]:
    """What an operator before this one has written down."""
    namespace = trial.metadata.namespace
    return {
        one.gpus: TrialMeasurement(
            run=f"{namespace}/{one.job}",
            gpus=one.gpus,
            outcome=_OUTCOMES[one.state],
            application=application,
            gpu_type=one.gpu_type,
            nodes=one.nodes,
            racks=one.racks,
            unit=one.unit,
            batch=one.batch,
            units_per_s=_number(one.units_per_second),
            step_s=None if not (per_s := _number(one.steps_per_second)) else 1.0 / per_s,
            memory_mib=one.memory_mib,
            utilisation=None if one.utilisation_percentage is None else one.utilisation_percentage / 100,
            detail=one.message,
        )
        for one in trial.status.runs
        if one.state in _OUTCOMES
    }


def efficiencies(measured: Iterable[TrialMeasurement]) -> dict[int, float]:
    """By size: speed for each GPU, relative to that at the smallest size that was measured."""
    speeds = {one.gpus: one.units_per_s / one.gpus for one in measured if one.units_per_s}
    return {gpus: speed / speeds[min(speeds)] for gpus, speed in speeds.items()}


def _rows(
    trial: TrialRun,
    sizes: Sequence[int],
    measured: Mapping[int, TrialMeasurement],
    living: Mapping[int, str],
    *,
    is_over: bool,
) -> list[dict[str, Any]]:
    shares = efficiencies(measured.values())
    rows = []
    for gpus in sizes:
        row: dict[str, Any] = {"gpus": gpus, "job": run_name(trial.metadata.name, gpus)}
        if gpus in measured:
            rows.append(row | _row(measured[gpus], shares.get(gpus)))
        else:
            rows.append(row | {"state": NOT_TRIED if is_over else living.get(gpus, PLANNED)})
    return rows


def _row(one: TrialMeasurement, share: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"state": one.outcome.value, "nodes": one.nodes, "racks": one.racks}
    known = {
        "gpuType": one.gpu_type,
        "unit": one.unit,
        "batch": one.batch,
        "unitsPerSecond": "" if one.units_per_s is None else f"{one.units_per_s:.6g}",
        "stepsPerSecond": "" if not one.step_s else f"{1.0 / one.step_s:.6g}",
        "message": one.detail[:_LONGEST_DETAIL],
    }
    row |= {key: value for key, value in known.items() if value}
    if share is not None:
        row["efficiencyPercentage"] = round(100 * share)
    if one.memory_mib is not None:
        row["memoryMib"] = one.memory_mib
    if one.utilisation is not None:
        row["utilisationPercentage"] = round(100 * one.utilisation)
    return row


def _conditions(
    trial: TrialRun, verdict: Verdict | None, found: Mapping[str, Any], now_s: float
) -> list[dict[str, Any]]:
    is_complete = verdict is not None and verdict.state is JobState.SUCCEEDED
    truths = {"Complete": is_complete, "Failed": verdict is not None and not is_complete}
    before = {one.type: one for one in trial.status.conditions}
    listed = []
    for kind, truth in truths.items():
        status, known = "True" if truth else "False", before.get(kind)
        since = known.last_transition_time if known is not None and known.status == status else _time(now_s)
        listed.append(
            {
                "type": kind,
                "status": status,
                "reason": found["reason"],
                "message": found["message"][:_LONGEST_DETAIL],
                "lastTransitionTime": since,
                "observedGeneration": trial.metadata.generation,
            }
        )
    return listed


def _number(text: str) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and value > 0 else None


def _time(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
