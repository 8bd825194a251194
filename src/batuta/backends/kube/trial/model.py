"""TrialRun as the API server stores it: the only declaration of its fields, and the rules between them.

The decoder and the OpenAPI schema of the CRD come from these declarations. Each rule is written once for the
API server, as CEL, and once for Batuta, as Python.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.crd import Rule, broken
from batuta.backends.kube.unified_job.model import NAME_PATTERN, Condition, read_tolerantly
from batuta.spec.task_elastic import (
    LONGEST_TRIAL_S,
    MOST_TRIAL_GPUS,
    MOST_TRIAL_SIZES,
    SHORTEST_TRIAL_S,
    TRIAL_BUDGET_S,
)

_INT32: Final = {"format": "int32"}
_INT64: Final = {"format": "int64"}
_TIME: Final = {"format": "date-time"}
_LABEL_VALUE: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_FREE: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class _Part(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Names as the API server spells them; what it sends beyond these fields is skipped."""


class TemplateMeta(_Part, frozen=True):
    """What the jobs of a trial carry beside what the trial itself writes on them."""

    name: (
        Annotated[
            str,
            Meta(
                max_length=63,
                pattern=_LABEL_VALUE,
                description="The application that is measured, unless the label app.kubernetes.io/name says it.",
            ),
        ]
        | None
    ) = None
    labels: Annotated[dict[str, str], Meta(description="Labels of the UnifiedJobs.")] = {}
    annotations: Annotated[dict[str, str], Meta(description="Annotations of the UnifiedJobs.")] = {}


class JobTemplate(_Part, frozen=True):
    """The UnifiedJob that is tried out, as it would be submitted."""

    metadata: TemplateMeta = TemplateMeta()
    spec: Annotated[
        dict[str, Any],
        Meta(
            extra={"required": True, "schema": _FREE},
            description="The spec of a UnifiedJob. Of minReplicas and maxReplicas follow the sizes.",
        ),
    ] = {}


class TrialSpec(_Part, frozen=True):
    """What is to be tried out."""

    job_name: (
        Annotated[
            str,
            Meta(
                max_length=253,
                description="A UnifiedJob of the namespace. It is looked at only: it waits for a trial when "
                "its annotation or its queue says so.",
            ),
        ]
        | None
    ) = None
    template: JobTemplate | None = None
    sizes: (
        Annotated[
            list[Annotated[int, Meta(ge=1, le=MOST_TRIAL_GPUS, extra_json_schema=_INT32)]],
            Meta(
                min_length=1,
                max_length=MOST_TRIAL_SIZES,
                extra_json_schema={"x-kubernetes-list-type": "set"},
                description="GPUs in all, ascending. Without it: the smallest size, then twice the one "
                "before, as far as the job may and the nodes could.",
            ),
        ]
        | None
    ) = None
    budget_seconds: Annotated[
        int,
        Meta(
            ge=int(SHORTEST_TRIAL_S),
            le=int(LONGEST_TRIAL_S),
            extra_json_schema=_INT32,
            description="So long after its creation nothing more is tried.",
        ),
    ] = int(TRIAL_BUDGET_S)
    each_seconds: (
        Annotated[
            int,
            Meta(
                ge=int(SHORTEST_TRIAL_S),
                le=int(LONGEST_TRIAL_S),
                extra_json_schema=_INT32,
                description="How long it runs at each size; without it its part of the budget, at most 60.",
            ),
        ]
        | None
    ) = None
    parallelism: Annotated[
        int,
        Meta(
            ge=1,
            le=MOST_TRIAL_SIZES,
            extra_json_schema=_INT32,
            description="So many sizes may run beside each other, where there is room. They may disturb each "
            "other then.",
        ),
    ] = 1
    priority_class_name: (
        Annotated[
            str,
            Meta(max_length=253, description="A PriorityClass of the runs; without it that of the job."),
        ]
        | None
    ) = None


class MeasuredRun(_Part, frozen=True):
    """What one size showed. What is not known is left out."""

    gpus: Annotated[int, Meta(extra={"required": True}, extra_json_schema=_INT32)] = 0
    job: Annotated[str, Meta(description="The UnifiedJob that it is, or was.")] = ""
    state: Annotated[
        str,
        Meta(
            description="planned, waits, runs; then measured, reported no speed, out of memory, failed, got "
            "no GPUs in time, or not tried."
        ),
    ] = ""
    gpu_type: str = ""
    nodes: Annotated[int, Meta(extra_json_schema=_INT32, description="Two stands for more of them.")] = 1
    racks: Annotated[int, Meta(extra_json_schema=_INT32, description="Two stands for more of them.")] = 1
    unit: Annotated[str, Meta(description="What the speed counts: samples, epochs or steps.")] = ""
    batch: Annotated[int, Meta(extra_json_schema=_INT64, description="Samples in a step.")] = 0
    units_per_second: Annotated[str, Meta(description="The speed, as a decimal number.")] = ""
    steps_per_second: Annotated[str, Meta(description="The same in steps.")] = ""
    efficiency_percentage: (
        Annotated[
            int,
            Meta(extra_json_schema=_INT32, description="Speed for each GPU, of that at the smallest size."),
        ]
        | None
    ) = None
    memory_mib: Annotated[int, Meta(extra_json_schema=_INT64, description="The most in use on one GPU.")] | None = None
    utilisation_percentage: Annotated[int, Meta(extra_json_schema=_INT32)] | None = None
    message: Annotated[str, Meta(max_length=1024)] = ""


class TrialStatus(_Part, frozen=True):
    """What has been found out. Written by the operator only."""

    observed_generation: Annotated[int, Meta(extra_json_schema=_INT64)] | None = None
    state: Annotated[str, Meta(description="RUNNING, SUCCEEDED, FAILED or CANCELLED.")] = ""
    reason: Annotated[str, Meta(max_length=1024, description="The same in more detail, as one word.")] = ""
    message: Annotated[str, Meta(max_length=32_768, description="What it comes to, as a sentence.")] = ""
    conditions: Annotated[
        list[Condition],
        Meta(
            max_length=32,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            description="Complete, Failed.",
        ),
    ] = []
    progress: Annotated[str, Meta(description="Sizes that are done, of those to be tried.")] = ""
    each_seconds: Annotated[int, Meta(extra_json_schema=_INT32)] | None = None
    runs: Annotated[
        list[MeasuredRun],
        Meta(
            max_length=MOST_TRIAL_SIZES,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["gpus"]},
            description="By size, ascending.",
        ),
    ] = []
    chosen_gpus: (
        Annotated[
            int,
            Meta(extra_json_schema=_INT32, description="What is best asked for; left out while not known."),
        ]
        | None
    ) = None
    chosen_percentage: (
        Annotated[
            int,
            Meta(extra_json_schema=_INT32, description="Its speed, in percent of that with fastestGpus."),
        ]
        | None
    ) = None
    fastest_gpus: Annotated[int, Meta(extra_json_schema=_INT32)] | None = None
    completion_time: Annotated[str, Meta(extra_json_schema=_TIME)] | None = None


class TrialRun(msgspec.Struct, kw_only=True, dict=True):
    """A trial. Decoding it never fails: faults of `spec` and `status` are found when they are first read."""

    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)
    raw_spec: Any = msgspec.field(default=None, name="spec")
    raw_status: Any = msgspec.field(default=None, name="status")

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def spec(self) -> TrialSpec:
        """What is to be tried out, without what could not be read."""
        return self._read[0]

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What could not be read in `spec`, as sentences with the place and the fix."""
        return self._read[1]

    @cached_property
    def status(self) -> TrialStatus:
        """What the operator wrote; empty where that cannot be read, for it will be written again."""
        return read_tolerantly(self.raw_status or {}, TrialStatus, "status")[0]

    @cached_property
    def _read(self) -> tuple[TrialSpec, tuple[str, ...]]:
        return read_tolerantly(self.raw_spec, TrialSpec, "spec")

    @property
    def is_over(self) -> bool:
        return any(one.status == "True" and one.type in ("Complete", "Failed") for one in self.status.conditions)


TRIAL_RUN: Final = Kind(names.GROUP, names.VERSION, names.TRIAL_PLURAL, names.TRIAL_KIND, TrialRun)
LONGEST_TRIAL_NAME: Final = 50
"""Characters of a trial's name: those of its jobs are made of it."""
TRIAL_NAME_PATTERN: Final = NAME_PATTERN


_KEPT: Final = ("jobName", "sizes", "budgetSeconds", "eachSeconds")


def broken_rules(trial: TrialRun) -> list[str]:
    """The messages of the rules that a trial breaks, each with its field."""
    return broken(RULES, trial)


def _ascends(trial: TrialRun) -> bool:
    sizes = trial.spec.sizes
    return sizes is None or sizes == sorted(sizes)


def _is_within(trial: TrialRun) -> bool:
    spec = trial.spec
    return spec.each_seconds is None or spec.each_seconds <= spec.budget_seconds


def _sound_name(trial: TrialRun) -> bool:
    name = trial.metadata.name
    return len(name) <= LONGEST_TRIAL_NAME and re.search(TRIAL_NAME_PATTERN, name) is not None


def _stays(field: str) -> Rule[TrialRun]:
    new, old = f"self.{field}", f"oldSelf.{field}"
    return Rule(
        "spec",
        f"has({new}) == has({old}) && (!has({new}) || {new} == {old})",
        f"{field} cannot be changed: what was measured would be of another trial; create another one",
        field=field,
    )


RULES: Final[tuple[Rule[TrialRun], ...]] = (
    Rule(
        "",
        f"size(self.metadata.name) <= {LONGEST_TRIAL_NAME} && self.metadata.name.matches('{TRIAL_NAME_PATTERN}')",
        f"the name becomes part of host names: at most {LONGEST_TRIAL_NAME} letters, digits and dashes, "
        "beginning with a letter",
        holds=_sound_name,
    ),
    Rule(
        "spec",
        "has(self.jobName) != has(self.template)",
        "say what is to be tried out by jobName or by template, one of them",
        holds=lambda trial: (trial.spec.job_name is None) != (trial.spec.template is None),
    ),
    Rule(
        "spec",
        "!has(self.sizes) || self.sizes.isSorted()",
        "sizes must ascend",
        field="sizes",
        holds=_ascends,
    ),
    Rule(
        "spec",
        "!has(self.eachSeconds) || self.eachSeconds <= self.budgetSeconds",
        "eachSeconds must be at most budgetSeconds",
        field="eachSeconds",
        holds=_is_within,
    ),
    *map(_stays, _KEPT),
)
