"""Create the quota controllers that the configuration asks for, and the observer that feeds them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, replace
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.admission_gate import KueueAdmissionGate
from batuta.backends.kube.kueue.queue_status import LocalQueueKey, QueueStatusController, usage_by_local_queue
from batuta.backends.kube.kueue.quota_controller import QuotaController, QuotaEventRecorder, quota_from_config
from batuta.backends.kube.kueue.workload import workload_state
from batuta.backends.kube.kueue.workload_cache import WorkloadCache
from batuta.backends.kube.kueue.workload_controller import WorkloadController
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.reconciler import Reconciler
from batuta.backends.kube.operator_config import Admission, OperatorConfig
from batuta.core import event as ev
from batuta.core.event import Event, JobEnded, Planned
from batuta.core.job import DesiredState, JobId
from batuta.core.plan import Plan
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.engine.observers import Observer
from batuta.quota.usage import JobUse, QuotaUse, measure

SWEEP_S: Final = 1.0  # jobs to which nothing happens are looked at so often, …
SPARING: Final = 20  # … but no more than this fraction of the time goes into it


class QuotaObserver(Observer):
    """The engine's thread calls it."""

    def __init__(self, shown: WorkloadController, queues: QueueStatusController) -> None:
        self._shown = shown
        self._queues = queues
        self._touched: set[JobId] = set()
        self._sweep_s = 0.0

    def saw(self, world: World, event: Event) -> None:
        if isinstance(event, Planned):
            self._touched.update(command.job for command in event.plan.commands)
            return
        if isinstance(event, JobEnded):
            self._shown.ended(event.job, event.state, event.detail)
        job = getattr(event, "job", "")
        self._touched.add(job if isinstance(job, str) else job.id)

    def decided(self, world: World, plan: Plan) -> None:
        now_s = time.monotonic()
        touched, self._touched = self._touched, set()
        is_sweep = now_s >= self._sweep_s
        if is_sweep:
            touched.update(world.jobs.short)
        for job in touched:
            if job in world.jobs:
                row = world.jobs.row(job)
                decision = plan.decisions.at(row) if row < len(plan.decisions) else None
                if decision is not None and decision.job == job:
                    self._shown.note(workload_state(world, row, decision))
        if touched:
            self._queues.doubt()
        if is_sweep:
            done_s = time.monotonic()
            self._sweep_s = done_s + max(SWEEP_S, SPARING * (done_s - now_s))


def measure_usage(world: World) -> tuple[QuotaUse, dict[LocalQueueKey, Counter[tuple[str, str]]]]:
    table, uses = world.jobs, []
    for row, job in enumerate(table.jobs):
        has = table.placements[row] is not None
        is_wanted = table.wish_of(row) is DesiredState.RUN
        flavors = world.flavors.get(job.id, ()) if has else ()
        uses.append(JobUse(job, int(table.held[row]), not has, not has and not is_wanted, flavors))
    return measure(world.quota, uses), usage_by_local_queue(uses)


def watched_kinds(config: OperatorConfig) -> tuple[Kind[Any], ...]:
    if config.admission is Admission.KUEUE:
        return kinds.RESOURCE_FLAVOR, kinds.WORKLOAD_PRIORITY_CLASS, kinds.WORKLOAD
    if not config.kueue.read_quota:
        return ()
    return kinds.ALL if config.kueue.show_workloads else kinds.SETTINGS


def own_quota(config: OperatorConfig) -> Quota:
    """The quota that the configuration's own queues make, or an InputError."""
    named = quota_from_config([queue.model_dump(by_alias=True, exclude_defaults=True) for queue in config.queues])
    return replace(named, fair_sharing=config.fair_sharing)


def set_up_quota(
    reconciler: Reconciler, context: ReconcileContext, observed: ObjectCache, config: OperatorConfig, world: World
) -> QuotaObserver | None:
    """Adds the quota controllers to the reconciler, and returns who feeds those that show things, if any do.

    If Kueue decides, the World knows no quota.
    """
    ask = context.writes.ask
    cache = WorkloadCache(ask)
    if config.admission is Admission.KUEUE:
        gate = KueueAdmissionGate(cache, reconciler.runs, reconciler.touch, observed.workload_priorities)
        context.gate = gate
        if world.quota != Quota():
            context.say(ev.QuotaSet(world.now_s, Quota(), cause="kubernetes"))
        reconciler.controllers.append(gate)
        reconciler.needs.append(gate.needs)
        return None

    def touch_classes() -> None:
        for key, uj in observed.unified_jobs.items():
            if names.KUEUE_PRIORITY_CLASS in uj.metadata.labels:
                reconciler.touch(key)

    quota = QuotaController(
        context.say,
        QuotaEventRecorder(ask),
        known=world.quota,
        base=own_quota(config),
        fair_sharing=config.fair_sharing,
        priorities=observed.workload_priorities,
        touch=touch_classes,
    )
    context.tolerations = lambda job: _tolerations(world, job)
    reconciler.controllers.append(quota)
    if not config.kueue.show_workloads:
        return None
    shown = WorkloadController(cache, reconciler.runs, observed)
    queues = QueueStatusController(ask, quota.objects, lambda: measure_usage(world))
    reconciler.controllers += [shown, queues]
    return QuotaObserver(shown, queues)


def _tolerations(world: World, job: JobId) -> tuple[dict[str, Any], ...]:
    named = sorted({flavor for _, flavor in world.flavors.get(job, ())})
    flavors = [world.quota.flavor_of[flavor] for flavor in named if flavor in world.quota.flavor_of]
    tolerations = (asdict(one) for flavor in flavors for one in flavor.tolerations)
    return tuple({key: value for key, value in one.items() if value} for one in tolerations)
