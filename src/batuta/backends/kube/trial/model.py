"""TrialRun as the API server stores it: the only declaration of its fields, and the rules between them.

The decoder and the OpenAPI schema of the CRD come from these declarations. Each rule is written once for the
API server, as CEL, and once for Batuta, as Python.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from batuta.backends.kube import names
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.crd import Int32, Int64, Resource, Rule, Time, doc, name_rule, unchanged
from batuta.backends.kube.unified_job.model import Condition
from batuta.spec.task_elastic import (
    LONGEST_TRIAL_S,
    MOST_TRIAL_GPUS,
    MOST_TRIAL_SIZES,
    SHORTEST_TRIAL_S,
    TRIAL_BUDGET_S,
)

_LABEL_VALUE: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
Name: TypeAlias = Annotated[str, Meta(max_length=253)]
TrialTime: TypeAlias = Annotated[Int32, Meta(ge=int(SHORTEST_TRIAL_S), le=int(LONGEST_TRIAL_S))]
_FREE: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class _Part(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Names as the API server spells them; what it sends beyond these fields is skipped."""


class TemplateMeta(_Part, frozen=True):
    """What the jobs of a trial carry beside what the trial itself writes on them."""

    name: Annotated[
        Annotated[str, Meta(max_length=63, pattern=_LABEL_VALUE)] | None,
        doc("The application that is measured, unless the label app.kubernetes.io/name says it."),
    ] = None
    labels: Annotated[dict[str, str], doc("Labels of the UnifiedJobs.")] = {}
    annotations: Annotated[dict[str, str], doc("Annotations of the UnifiedJobs.")] = {}


class JobTemplate(_Part, frozen=True):
    """The UnifiedJob that is tried out, as it would be submitted."""

    metadata: TemplateMeta = TemplateMeta()
    spec: Annotated[
        dict[str, Any],
        doc(
            "The spec of a UnifiedJob. Of minReplicas and maxReplicas follow the sizes.",
            extra={"required": True, "schema": _FREE},
        ),
    ] = {}


class TrialSpec(_Part, frozen=True):
    """What is to be tried out."""

    job_name: Annotated[
        Name | None,
        doc(
            "A UnifiedJob of the namespace. It is looked at only: it waits for a trial when "
            "its annotation or its queue says so."
        ),
    ] = None
    template: JobTemplate | None = None
    sizes: Annotated[
        Annotated[
            list[Annotated[Int32, Meta(ge=1, le=MOST_TRIAL_GPUS)]], Meta(min_length=1, max_length=MOST_TRIAL_SIZES)
        ]
        | None,
        doc(
            "GPUs in all, ascending. Without it: the smallest size, then twice the one "
            "before, as far as the job may and the nodes could.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = None
    budget_seconds: Annotated[TrialTime, doc("So long after its creation nothing more is tried.")] = int(TRIAL_BUDGET_S)
    each_seconds: Annotated[
        TrialTime | None, doc("How long it runs at each size; without it its part of the budget, at most 60.")
    ] = None
    parallelism: Annotated[
        Int32,
        doc(
            "So many sizes may run beside each other, where there is room. They may disturb each other then.",
            ge=1,
            le=MOST_TRIAL_SIZES,
        ),
    ] = 1
    priority_class_name: Annotated[Name | None, doc("A PriorityClass of the runs; without it that of the job.")] = None


class MeasuredRun(_Part, frozen=True):
    """What one size showed. What is not known is left out."""

    gpus: Annotated[Int32, Meta(extra={"required": True})] = 0
    job: Annotated[str, doc("The UnifiedJob that it is, or was.")] = ""
    state: Annotated[
        str,
        doc(
            "planned, waits, runs; then measured, reported no speed, out of memory, failed, got "
            "no GPUs in time, or not tried."
        ),
    ] = ""
    gpu_type: str = ""
    nodes: Annotated[Int32, doc("Two stands for more of them.")] = 1
    racks: Annotated[Int32, doc("Two stands for more of them.")] = 1
    unit: Annotated[str, doc("What the speed counts: samples, epochs or steps.")] = ""
    batch: Annotated[Int64, doc("Samples in a step.")] = 0
    units_per_second: Annotated[str, doc("The speed, as a decimal number.")] = ""
    steps_per_second: Annotated[str, doc("The same in steps.")] = ""
    efficiency_percentage: Annotated[Int32 | None, doc("Speed for each GPU, of that at the smallest size.")] = None
    memory_mib: Annotated[Int64 | None, doc("The most in use on one GPU.")] = None
    utilisation_percentage: Int32 | None = None
    message: Annotated[str, Meta(max_length=1024)] = ""


class TrialStatus(_Part, frozen=True):
    """What has been found out. Written by the operator only."""

    observed_generation: Int64 | None = None
    state: Annotated[str, doc("RUNNING, SUCCEEDED, FAILED or CANCELLED.")] = ""
    reason: Annotated[str, doc("The same in more detail, as one word.", max_length=1024)] = ""
    message: Annotated[str, doc("What it comes to, as a sentence.", max_length=32_768)] = ""
    conditions: Annotated[
        list[Condition],
        doc(
            "Complete, Failed.",
            max_length=32,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = []
    progress: Annotated[str, doc("Sizes that are done, of those to be tried.")] = ""
    each_seconds: Int32 | None = None
    runs: Annotated[
        list[MeasuredRun],
        doc(
            "By size, ascending.",
            max_length=MOST_TRIAL_SIZES,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["gpus"]},
        ),
    ] = []
    chosen_gpus: Annotated[Int32 | None, doc("What is best asked for; left out while not known.")] = None
    chosen_percentage: Annotated[Int32 | None, doc("Its speed, in percent of that with fastestGpus.")] = None
    fastest_gpus: Int32 | None = None
    completion_time: Time | None = None


class TrialRun(Resource[TrialSpec, TrialStatus], kw_only=True, dict=True):
    """A trial."""

    spec_type = TrialSpec
    status_type = TrialStatus


TRIAL_RUN: Final = Kind(names.GROUP, names.VERSION, names.TRIAL_PLURAL, names.TRIAL_KIND, TrialRun)
RULES: Final[tuple[Rule, ...]] = (
    name_rule(),
    Rule(
        "spec",
        "has(self.jobName) != has(self.template)",
        "say what is to be tried out by jobName or by template, one of them",
        holds=lambda spec: (spec.job_name is None) != (spec.template is None),
    ),
    Rule(
        "spec",
        "!has(self.sizes) || self.sizes.isSorted()",
        "sizes must ascend",
        field="sizes",
        holds=lambda spec: not spec.sizes or spec.sizes == sorted(spec.sizes),
    ),
    Rule(
        "spec",
        "!has(self.eachSeconds) || self.eachSeconds <= self.budgetSeconds",
        "eachSeconds must be at most budgetSeconds",
        field="eachSeconds",
        holds=lambda spec: spec.each_seconds is None or spec.each_seconds <= spec.budget_seconds,
    ),
    *(
        Rule(
            "spec",
            unchanged(field),
            f"{field} cannot be changed: what was measured would be of another trial; create another one",
            field=field,
        )
        for field in ("jobName", "sizes", "budgetSeconds", "eachSeconds")
    ),
)
