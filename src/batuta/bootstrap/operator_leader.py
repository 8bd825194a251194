"""What decides once an operator leads: wires engine, journal, health and backend together."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from batuta.api.operations import largest_fitting_size
from batuta.api.snapshot import SnapshotCache
from batuta.backends.kube import names
from batuta.backends.kube.binder import BadProfile, Binder, Cluster, Profile, profile_of
from batuta.backends.kube.binder.profile import DEFAULT_WEIGHTS
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden, NotFound
from batuta.backends.kube.health.burn_in import BurnInOptions
from batuta.backends.kube.health.controller import HealthController, HealthOptions
from batuta.backends.kube.health.state import load_state
from batuta.backends.kube.kueue.quota_controller import QuotaController
from batuta.backends.kube.kueue.setup import QuotaObserver, own_quota, set_up_quota
from batuta.backends.kube.operator.backend import KubeBackend, OutlookObserver, ParkingController
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.config_controller import ConfigController, read_config_map
from batuta.backends.kube.operator.context import RESTART_BACKOFF, KnownJob, ReconcileContext, Timing
from batuta.backends.kube.operator.gang_binder import GangBinder
from batuta.backends.kube.operator.node_controller import NodeController, UsageController, Used
from batuta.backends.kube.operator.nodes import NodeReporter
from batuta.backends.kube.operator.pod_usage import PodAnnotator, sharers_on
from batuta.backends.kube.operator.reconciler import Reconciler
from batuta.backends.kube.operator.workqueue import Inbox, WriteQueue, WriteWorkers
from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE, OperatorConfig
from batuta.backends.kube.operator_config_map import OPERATOR_CONFIG, at_run_time, author_of
from batuta.backends.kube.progress.log_reader import LogReaders, LogSubscriptions
from batuta.backends.kube.settings import YamlSource
from batuta.backends.kube.trial.controller import set_up_trials
from batuta.bootstrap.engine_host import EngineHost
from batuta.core.arrays import bits
from batuta.core.cluster import NodeName
from batuta.core.decide import SchedulerProfile
from batuta.core.job import DesiredState, Job, JobId
from batuta.core.job_table import Phase
from batuta.core.utilisation import known_load
from batuta.core.world import World
from batuta.engine.assembly import AssemblyOptions
from batuta.engine.fence import Fence, NoFence
from batuta.engine.health import HealthSeen
from batuta.engine.history import History
from batuta.engine.observers import Observer
from batuta.engine.ports import EventBuffer, SteadyClock
from batuta.engine.profile import find_policy, profile_for
from batuta.engine.retention import Keep
from batuta.gpu.health.rules import parse_rules, read_rules
from batuta.placement import PlacerOptions
from batuta.spec.problem import InputError
from batuta.store.store import Store, open_store
from batuta.telemetry.exporter import telemetry

_log = logging.getLogger("batuta.operator")
_TRY_AGAIN_S = 2.0
_NO_RESULT = "null"


def health_options(config: OperatorConfig, namespace: str) -> HealthOptions | None:
    """How health is looked after, None where it is not; an InputError for rules that cannot be read."""
    chosen = config.health
    if not chosen.enabled:
        return None
    burn_in = chosen.burn_in
    return HealthOptions(
        parse_rules(chosen.rules, "config.health.rules") if chosen.rules else read_rules(),
        namespace,
        config.health_memory,
        chosen.pool_label,
        BurnInOptions(
            burn_in.image, tuple(burn_in.command), burn_in.runtime_class_name, burn_in.timeout_seconds, namespace
        ),
    )


class OperatorHealthView:
    """What the API and Prometheus are told of health. Nothing is changed through them: kubectl does that."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._controller = next(
            (controller for controller in reconciler.controllers if isinstance(controller, HealthController)), None
        )

    def seen(self) -> HealthSeen:
        return HealthSeen() if self._controller is None else HealthSeen(*self._controller.snapshot)

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        part = "node" if gpu is None else f"gpu-{gpu}"
        raise ValueError(f"say it to the cluster: kubectl annotate node {node} {names.MENDED}={part}")

    def cordoned(self, node: NodeName, who: str) -> None:
        raise ValueError(f"say it to the cluster: kubectl cordon {node}")

    def uncordoned(self, node: NodeName, who: str) -> None:
        raise ValueError(f"say it to the cluster: kubectl uncordon {node}")


MakeHealth: TypeAlias = Callable[..., HealthController]
"""Makes the controller of health, which goes on from what the last leader stored."""


async def recall_health(api: Api, options: HealthOptions) -> MakeHealth:
    """Reads what the last leader stored. Nothing is decided before: what is ill would be used again."""
    while True:
        try:
            return partial(HealthController, options, await load_state(api, options.namespace, options.memory_name))
        except ApiError as error:
            _log.warning("cannot read the memory of health: %s; trying again", error)
            await asyncio.sleep(_TRY_AGAIN_S)


@dataclass(frozen=True, slots=True)
class LedConfig:
    """The configuration by which a leader begins."""

    config: OperatorConfig
    file: OperatorConfig  # what the process read at its start: keys that need a restart are compared with it
    author: str | None = None  # who set it in the ConfigMap


async def current_config(api: Api, namespace: str, config: OperatorConfig, file: OperatorConfig) -> LedConfig:
    """The configuration with what its ConfigMap says by now: an operator may wait for long before it leads."""
    led = LedConfig(config, file)
    if not config.config_map:
        return led
    while True:
        try:
            found = await api.get(OPERATOR_CONFIG, config.config_map, namespace)
            wanted = await asyncio.to_thread(read_config_map, found, check_config)
            return LedConfig(at_run_time(config, wanted), file, author_of(found))
        except (NotFound, Forbidden, InputError) as error:
            _log.warning("ConfigMap %s is not used, but the file that this operator has: %s", config.config_map, error)
            return led
        except ApiError as error:
            _log.warning("cannot read ConfigMap %s: %s; trying again", config.config_map, error)
            await asyncio.sleep(_TRY_AGAIN_S)


class Leader(EngineHost):
    """Everything that decides, once this operator leads. At its end jobs go on: what matters is in the cluster."""

    def __init__(
        self,
        led: LedConfig,
        state: Path,
        inbox: Inbox,
        write_workers: WriteWorkers,
        listeners: LogReaders,
        health: MakeHealth | None = None,
    ) -> None:
        """The World from the journal, brought up to date with what the cluster shows."""
        config = self.config = led.config  # by now: keys of it change at run time
        journal = os.environ.get(JOURNAL_URL_VARIABLE)
        if not journal:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = open_store(journal or state / "journal.db")
        # The configuration says the policy; it is written down because a replay has only the journal.
        options = AssemblyOptions(
            self.profile_of, config.policy, config.policy, keep=_keep(config), policy_by=led.author
        )
        super().__init__(store, options)
        assembly, world = self.assembly, self.world
        clock = SteadyClock(time.time, world.now_s)
        assembly.start(clock())
        self.listening = LogSubscriptions(listeners.post)
        source = ConfigSource(led.file, self._reload) if config.config_map else None
        learned = assembly.history, store.results.stage
        dependencies = Dependencies(self.listening, *learned, health, assembly.fence, source)
        self.backend, self.gang_binder, shown = kube_backend(world, inbox, write_workers, config, clock, dependencies)
        assembly.attach(self.backend)
        observers: list[tuple[str, Observer]] = [("status of jobs", OutlookObserver(self.backend.reconciler))]
        if shown is not None:
            observers.append(("status of queues", shown))
        url = config.telemetry.otlp_url
        told = telemetry(assembly.fence, world, url, place="kubernetes", tells_of_preempted=False)
        self.build_service(told, observers, partial(_forget, self.backend, store))
        self.listening.on_held_up = self.watch_stragglers(_suspecting(self.backend.reconciler.controllers)).found
        self.snapshots = SnapshotCache(self.service, self.cycles)  # for scrapes, which look again and again

    def profile_of(self, policy: str) -> SchedulerProfile:
        """The profile of a policy, by the configuration of now."""
        return operator_profile(policy, self.config)

    def _reload(self, config: OperatorConfig) -> None:
        self.config = config
        self.assembly.reconfigure(_keep(config))


def _keep(config: OperatorConfig) -> Keep:
    return Keep(config.retention.jobs, config.retention.days * 86_400.0)


def _forget(backend: KubeBackend, store: Store, job: JobId) -> None:
    """A job is forgotten. The next one of its name has not given what this one gave."""
    backend.forget(job)
    if store.results.get(job) not in (None, _NO_RESULT):
        store.results.stage(job, _NO_RESULT)


def _suspecting(controllers: Iterable[object]) -> Callable[[NodeName, JobId, str], None]:
    """Who is told of nodes that hold jobs up: health, if it is looked after."""
    found = (controller.suspect for controller in controllers if isinstance(controller, HealthController))
    return next(found, _note_suspect)


def _note_suspect(node: NodeName, job: JobId, why: str) -> None:
    """An administrator should look at this node; jobs but this one may still go there."""
    _log.warning("node %s is suspect: %s", node, why, extra={"job": job})


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A configuration whose ConfigMap is watched."""

    file: OperatorConfig  # what the process read at its start
    reload: Callable[[OperatorConfig], None]  # takes up what is not the backend's; in the engine's thread


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a Kubernetes backend can use besides the cluster; each has a default."""

    listening: LogSubscriptions = field(default_factory=LogSubscriptions)  # by whom the logs of jobs are read
    experience: History | None = None  # what is known of new jobs
    keep_result: Callable[[JobId, str], None] = lambda job, result: None  # stores what jobs give as their result
    health: MakeHealth | None = None  # what is remembered of the health of nodes
    fence: Fence = field(default_factory=NoFence)
    """Around what jobs can do without, and around each job: one that cannot be handled holds up no other."""
    config: ConfigSource | None = None  # None: the configuration stays as it is


NO_DEPENDENCIES = Dependencies()


def kube_backend(
    world: World,
    inbox: Inbox,
    write_workers: WriteWorkers,
    config: OperatorConfig,
    clock: Callable[[], float],
    dependencies: Dependencies = NO_DEPENDENCIES,
) -> tuple[KubeBackend, GangBinder, QuotaObserver | None]:
    """What carries decisions out on a cluster, once it has looked at all that is there."""
    said, experience, health = EventBuffer(), dependencies.experience, dependencies.health
    observed = ObjectCache()
    writes = WriteQueue(write_workers.post)
    binder = Binder(Cluster(), binder_profile(config))
    timing = _timing(config)
    gang_binder = GangBinder(binder, writes, timing, partial(_expected, world))
    reporter = NodeReporter(_known_nodes(world), _known_ill(world))
    context = ReconcileContext(
        binder.cluster,
        writes,
        observed.owners(),
        said.append if experience is None else experience.advising(said.append),
        gang_binder.request_binding,
        has_node=observed.nodes.__contains__,
        timing=timing,
        past=set(world.past),
        listening=dependencies.listening,
        keep_result=dependencies.keep_result,
    )
    if experience is not None:
        context.choose = lambda job: experience.choose(job, _most(reporter, job))
    jobs = world.jobs
    known = {
        job.id: KnownJob(
            job, jobs.placements[row], jobs.phase_of(row) is Phase.STOPPING, jobs.wish_of(row) is DesiredState.PARK
        )
        for row, job in enumerate(jobs.jobs)
    }
    nodes = NodeController(context, observed, reporter, config.gpu_resources, _told_of_others(world))
    reconciler = Reconciler(context, gang_binder, observed, nodes, known, config.namespaces, dependencies.fence)
    shown = set_up_quota(reconciler, context, observed, config, world)
    is_known = (lambda job: True) if experience is None else experience.knows
    set_up_trials(reconciler, context, observed, world, partial(_most, reporter), is_known)
    reconciler.controllers.append(ParkingController(world, observed, writes))
    sharers = partial(sharers_on, world, observed, binder.cluster.pods_on, reconciler.job_of)
    reconciler.controllers.append(UsageController(observed, reporter.__contains__, sharers, context.say))
    reconciler.controllers.append(PodAnnotator(observed, binder.cluster.pods_on, writes, config.namespaces))
    if health is not None:
        controller = health(context, observed, reconciler.runs, tuple(config.gpu_resources))
        reconciler.controllers.append(controller)
        context.excuse = controller.excuse
    if dependencies.config is not None:
        reconfigure = partial(_reconfigure, context, gang_binder, reconciler, dependencies.config.reload)
        source = dependencies.config.file, config, check_config, reconfigure
        reconciler.controllers.append(ConfigController(*source, context.say, writes.ask))
    backend = KubeBackend(reconciler, said, inbox, clock)
    backend.look_first()
    return backend, gang_binder, shown


def _timing(config: OperatorConfig) -> Timing:
    restart_backoff = replace(RESTART_BACKOFF, first_s=config.restart_backoff_seconds)
    return Timing(gang_timeout_s=config.gang_timeout_seconds, restart_backoff=restart_backoff)


def _reconfigure(
    context: ReconcileContext,
    gang_binder: GangBinder,
    reconciler: Reconciler,
    reload: Callable[[OperatorConfig], None],
    config: OperatorConfig,
    keys: Sequence[str],
    author: str,
    now_s: float,
) -> None:
    """Take up what an author has changed in the configuration while the operator runs."""
    context.timing = _timing(config)
    gang_binder.use(binder_profile(config), context.timing)
    if "queues" in keys or "fairSharing" in keys:
        for controller in reconciler.controllers:
            if isinstance(controller, QuotaController):
                controller.reconfigure(own_quota(config), author, now_s)
    reload(config)


def _expected(world: World, job: JobId) -> float | None:
    """How busy a job will keep a GPU, by what its like were measured at: in trial runs, or as they ran."""
    load = known_load(world, world.jobs.jobs[world.jobs.row(job)]) if job in world.jobs else None
    return None if load is None else round(load, 2)


def _most(reporter: NodeReporter, job: Job) -> int:
    """Not more than its nodes could ever give; no limit while no node has GPUs, for some may be added."""
    nodes = [node for node in reporter.nodes() if node.gpus]
    return largest_fitting_size(job, nodes) if nodes else job.max


def operator_profile(policy: str, config: OperatorConfig) -> SchedulerProfile:
    """The profile of a policy, with shares of GPUs placed as the configuration says."""
    wanted = config.placement
    return profile_for(policy, placing=PlacerOptions(shares=wanted.shares.value, busiest=wanted.busiest))


def binder_profile(config: OperatorConfig) -> Profile:
    """Batuta's plugins with the weights that the configuration gives them, or an InputError."""
    try:
        placement = config.placement
        share = {"order": placement.shares.name.lower(), "busiest": placement.busiest}
        return profile_of({**DEFAULT_WEIGHTS, **placement.weights}, {"gpu_share": share})
    except BadProfile as error:
        raise InputError.of(f"placement.weights: {error}") from None


def check_config(config: OperatorConfig, source: YamlSource) -> None:
    """Raise InputError for what the text alone does not show: a policy, plugin or quota that cannot be."""
    for path, check in (
        (("policy",), lambda: find_policy(config.policy)),
        (("placement", "weights"), lambda: binder_profile(config)),
        (("queues",), lambda: own_quota(config)),
    ):
        try:
            check()
        except InputError as error:
            file, line, column = source.nearest(path)
            raise InputError(
                [one if one.line else replace(one, file=file, line=line, column=column) for one in error.problems]
            ) from None


def _known_nodes(world: World) -> dict[NodeName, tuple[Any, bool, bool]]:
    return {
        node.name: (node, not world.cordoned >> i & 1, not world.lost >> i & 1)
        for i, node in enumerate(world.nodes.nodes)
    }


def _known_ill(world: World) -> dict[NodeName, frozenset[int]]:
    return {world.nodes.nodes[i].name: frozenset(bits(ill)) for i, ill in world.ill.items()}


def _told_of_others(world: World) -> dict[NodeName, Used]:
    """What the journal says of others: what they have left since must not count as theirs for ever."""
    return {
        world.nodes.nodes[i].name: Used(tuple(bits(others.gpus)), others.cpus_milli, others.memory_mib)
        for i, others in world.others.items()
    }
