"""What programs print about GPUs before they fail, held against the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batuta.core.cluster import Span
from batuta.core.health_rules import Finding, HealthRules, Source
from batuta.core.job import JobId


def findings_in(
    rules: HealthRules, lines: Iterable[str], worker: Span, job: JobId, now_s: float
) -> Iterator[Finding]:
    """One finding for each rule that a line fits: a program says the same thing many times."""
    gpu = worker.gpus[0] if len(worker.gpus) == 1 else None
    told = set[str]()
    for line in lines:
        rule = rules.find(Source.LOG, 0, line)
        if rule is not None and rule.means not in told:
            told.add(rule.means)
            yield Finding(now_s, worker.node, Source.LOG, text=line, gpu=gpu, jobs=(job,))
