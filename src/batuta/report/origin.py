"""How a report was made, so that it can be made again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batuta import __version__
from batuta.report.markup import escape, tag
from batuta.report.metrics import METRICS
from batuta.report.study import Study
from batuta.report.units import count, duration, significant


@dataclass(frozen=True, slots=True)
class Origin:
    """What the runs themselves do not know. No clock is read: the time is there when the caller gives it."""

    command: str = ""
    made_at: str = ""
    version: str = __version__


def origin_section(study: Study, origin: Origin) -> str:
    """Workloads, clusters, seeds, version and command line; notes of runs; what the columns mean."""
    runs = study.runs
    events = count(sum(run.events for run in runs), "event")
    facts = [
        ("Workload", _listed(run.workload for run in runs)),
        ("Jobs", f"{_range([len(run.jobs) for run in runs])} per run"),
        ("Cluster", ", ".join(dict.fromkeys(f"{run.cluster} ({count(run.gpus, 'GPU')})" for run in runs))),
        ("Policies", ", ".join(dict.fromkeys(run.policy for run in runs))),
        ("Seeds", _listed(run.seed for run in runs)),
        (
            "Runs",
            f"{count(len(runs), 'run')}, {events}, {_cpu(study)} of CPU time",
        ),
        ("Batuta", origin.version),
    ]
    if len(runs) == 1 and runs[0].step_ms:
        steps = ", ".join(f"{name} {significant(ms)}" for name, ms in runs[0].step_ms.items())
        facts.append(
            ("Decision cycle", f"{len(runs[0].decide_ms):,} cycles; mean of each step in ms: {steps}")
        )
    if origin.made_at:
        facts.append(("Made at", origin.made_at))
    parts = [_definitions(facts)]
    if origin.command:
        parts.append(tag("pre", tag("code", escape(origin.command)), tabindex=0))
    notes = _notes(study)
    if notes:
        parts += [tag("h3", "Notes of the runs"), tag("ul", *(tag("li", escape(note)) for note in notes))]
    meanings = [(f"{m.group} {m.label}".strip(), m.meaning) for m in METRICS]
    parts.append(tag("details", tag("summary", "What the columns mean"), _definitions(meanings)))
    return "".join(parts)


def _notes(study: Study, most: int = 20) -> list[str]:
    """What runs say of themselves, the same words once."""
    found: dict[str, list[str]] = {}
    for run in study.runs:
        for note in run.notes:
            found.setdefault(note, []).append(run.policy)
    notes = [f"{', '.join(dict.fromkeys(policies))}: {note}" for note, policies in found.items()]
    return notes if len(notes) <= most else [*notes[:most], f"… and {len(notes) - most} more"]


def _cpu(study: Study) -> str:
    return duration(math.fsum(run.cpu_s for run in study.runs))


def _listed(values: Iterable[object], most: int = 12) -> str:
    names = [str(value) for value in dict.fromkeys(values)]
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, … ({len(names)})"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _definitions(entries: Sequence[tuple[str, str]]) -> str:
    return tag("dl", *(tag("dt", escape(term)) + tag("dd", escape(text)) for term, text in entries))
