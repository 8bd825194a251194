"""Findings about GPUs from what programs print before they fail, and from counters that NVML reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from batuta.core.cluster import NodeName, Span
from batuta.core.health_record import Target
from batuta.core.health_rules import Finding, HealthRules, Source
from batuta.core.job import JobId


def findings_in(
    rules: HealthRules, lines: Iterable[str], worker: Span, job: JobId, now_s: float, *, is_hearsay: bool = False
) -> Iterator[Finding]:
    """One finding for each rule that a line fits: a program says the same thing many times."""
    gpu = worker.gpus[0] if len(worker.gpus) == 1 else None
    told = set[str]()
    for line in lines:
        rule = rules.find(Source.LOG, 0, line)
        if rule is not None and rule.means not in told:
            told.add(rule.means)
            yield Finding(now_s, worker.node, Source.LOG, text=line, gpu=gpu, jobs=(job,), is_hearsay=is_hearsay)


class Figure(StrEnum):
    """What is looked at. A GPU that does not answer to one of them is not judged by it."""

    LOST = "lost"  # 1: the driver does not reach the GPU any more, or does not count it any more
    ECC_CORRECTED = "ecc-corrected"
    ECC_UNCORRECTED = "ecc-uncorrected"  # since the driver was loaded
    REMAP_PENDING = "remap-pending"
    REMAP_FAILED = "remap-failed"  # 1: so it is
    NVLINKS_DOWN = "nvlinks-down"  # how many are not up, where others of the same GPU are
    NVLINK_ERRORS = "nvlink-errors"  # replays, recoveries and checksum errors of all links
    TEMPERATURE = "temperature"  # in °C
    SLOWED_DOWN = "slowed-down"  # 1: clocks are low for heat or power, by the hardware's own doing


COUNTERS: Final = frozenset({Figure.ECC_CORRECTED, Figure.ECC_UNCORRECTED, Figure.NVLINK_ERRORS})
"""These only grow, until a reset; what is new since the last look is what counts."""

Values: TypeAlias = Mapping[Figure, int]
Figures: TypeAlias = Mapping[tuple[NodeName, int], Values]
Seen: TypeAlias = dict[Target, dict[str, int]]
"""What figures were at the last look. Plain, so that it can be kept: then nothing counts twice."""


class FigureSource(Protocol):
    """Looks at GPUs. For one thread."""

    def read(self) -> Figures:
        """The figures of all GPUs that can be looked at now."""
        ...


def news(rules: HealthRules, seen: Seen, found: Figures, now_s: float) -> Iterator[Finding]:
    """What is new since the last look and of interest to the rules; `seen` is brought up to date.

    A counter that was never seen before begins where it is: what it counted before is not news. One that is
    lower than before was reset, and all of it is new. Any other figure is news when it comes to fit another
    rule than before: a GPU that stays hot is told of once.
    """
    for (node, gpu), values in sorted(found.items()):
        before = seen.setdefault(Target(node, gpu), {})
        for figure, value in values.items():
            last = before.get(figure)
            before[figure] = value
            if figure in COUNTERS:
                new = 0 if last is None else value - last if value >= last else value
            else:
                new = value if _rule(rules, figure, value) != _rule(rules, figure, last or 0) else 0
            if new and _rule(rules, figure, new) is not None:
                yield Finding(now_s, node, Source.NVML, new, figure.value, gpu)


def _rule(rules: HealthRules, figure: Figure, value: int) -> object:
    return rules.find(Source.NVML, value, figure.value)
