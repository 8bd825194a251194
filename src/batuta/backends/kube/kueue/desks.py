"""Which desks an operator has for quota, by its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from batuta.backends.kube import names
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.gate_desk import GateDesk
from batuta.backends.kube.kueue.notices import Notices
from batuta.backends.kube.kueue.queue_desk import QueueDesk
from batuta.backends.kube.kueue.queue_files import quota_from_config
from batuta.backends.kube.kueue.quota_desk import QuotaDesk
from batuta.backends.kube.kueue.quota_watch import QuotaWatch, look_at_use
from batuta.backends.kube.kueue.shown_desk import ShownDesk
from batuta.backends.kube.kueue.workload_book import WorkloadBook
from batuta.backends.kube.operator.floor import Floor
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.operator_config import Admission, OperatorConfig
from batuta.core import event as ev
from batuta.core.job import JobId
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.engine.loop import Watcher


def watched_kinds(config: OperatorConfig) -> tuple[Kind[Any], ...]:
    """The kinds of Kueue that the operator needs to see."""
    if config.admission is Admission.KUEUE:
        return kinds.RESOURCE_FLAVOR, kinds.WORKLOAD_PRIORITY_CLASS, kinds.WORKLOAD
    if not config.kueue.read_quota:
        return ()
    return kinds.ALL if config.kueue.show_workloads else kinds.SETTINGS


@dataclass(slots=True)
class QuotaDesks:
    """What was set up; `watch` puts those that show things behind the engine's decisions."""

    shown: ShownDesk | None = None
    queues: QueueDesk | None = None

    def watch(self, inner: Watcher) -> Watcher:
        if self.shown is None or self.queues is None:
            return inner
        return QuotaWatch(inner, self.shown, self.queues)


def set_up_quota(
    floor: Floor, site: Site, observed: Observed, config: OperatorConfig, world: World
) -> QuotaDesks:
    """Gives the floor its desks. With a Kueue that decides, the World knows of no quota."""
    ask = site.writes.ask
    book = WorkloadBook(ask)
    if config.admission is Admission.KUEUE:
        gate = GateDesk(book, floor.runs, floor.touch, observed.workload_priorities)
        site.gate = gate
        if world.quota != Quota():
            site.say(ev.QuotaSet(world.now_s, Quota(), cause="kubernetes"))
        floor.desks.append(gate)
        return QuotaDesks()
    named = quota_from_config(
        [queue.model_dump(by_alias=True, exclude_defaults=True) for queue in config.queues]
    )
    quota = QuotaDesk(
        site.say,
        Notices(ask),
        known=world.quota,
        base=replace(named, fair_sharing=config.fair_sharing),
        fair_sharing=config.fair_sharing,
        priorities=observed.workload_priorities,
        touch=_touch_classes(floor, observed),
    )
    site.tolerations = lambda job: _tolerations(world, job)
    floor.desks.append(quota)
    if not config.kueue.show_workloads:
        return QuotaDesks()
    shown = ShownDesk(book, floor.runs, observed)
    queues = QueueDesk(ask, quota.objects, lambda: look_at_use(world))
    floor.desks += [shown, queues]
    return QuotaDesks(shown, queues)


def _touch_classes(floor: Floor, observed: Observed) -> Callable[[], None]:
    def touch() -> None:
        for key, uj in observed.unified_jobs.items():
            if names.KUEUE_PRIORITY_CLASS in uj.metadata.labels:
                floor.touch(key)

    return touch


def _tolerations(world: World, job: JobId) -> tuple[dict[str, Any], ...]:
    """What the flavors that a job uses let its pods tolerate."""
    flavors = {flavor for _, flavor in world.flavors.get(job, ())}
    found = []
    for flavor in sorted(flavors):
        known = world.quota.flavor_of.get(flavor)
        for one in known.tolerations if known is not None else ():
            said = {"key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect}
            found.append({key: value for key, value in said.items() if value})
    return tuple(found)
