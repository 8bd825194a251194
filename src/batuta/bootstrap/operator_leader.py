"""What decides once an operator leads: wires engine, journal, health and backend together."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from batuta.api.operations import largest_fitting_size
from batuta.api.scheduler_counters import SchedulerCounters
from batuta.api.snapshot import SnapshotCache
from batuta.backends.kube import names
from batuta.backends.kube.binder import BadProfile, Binder, Cluster, Profile, profile_of
from batuta.backends.kube.binder.profile import DEFAULT_WEIGHTS
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.health.burn_in import BurnInOptions
from batuta.backends.kube.health.controller import HealthController, HealthOptions
from batuta.backends.kube.health.state import StoredState, load_state
from batuta.backends.kube.kueue.setup import QuotaControllers, set_up_quota
from batuta.backends.kube.operator.backend import KubeBackend, OutlookObserver, ParkingController
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import RESTART_BACKOFF, JobReconciler, KnownJob, ReconcileContext, Timing
from batuta.backends.kube.operator.gang_binder import GangBinder
from batuta.backends.kube.operator.node_controller import NodeController, UsageController, Used, sharers_on
from batuta.backends.kube.operator.nodes import NodeReporter
from batuta.backends.kube.operator.reconciler import Reconciler
from batuta.backends.kube.operator.workqueue import Inbox, WriteQueue, WriteWorkers
from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE, OperatorConfig
from batuta.backends.kube.progress.log_reader import LogReaders, LogSubscriptions
from batuta.backends.kube.trial.controller import set_up_trials
from batuta.bootstrap.forecast_process import ForecastProcess
from batuta.bootstrap.telemetry import Telemetry, telemetry
from batuta.core.arrays import bits
from batuta.core.cluster import NodeName
from batuta.core.decide import SchedulerProfile
from batuta.core.job import DesiredState, Job, JobId, SizeChoice
from batuta.core.job_table import Phase
from batuta.core.utilisation import known_load
from batuta.core.world import World
from batuta.engine.assembly import Assembly, AssemblyOptions
from batuta.engine.event_buffer import EventBuffer, SteadyClock
from batuta.engine.fence import Fence, NoFence
from batuta.engine.health import HealthSeen
from batuta.engine.history import History
from batuta.engine.observers import Observer
from batuta.engine.profile import profile_for
from batuta.engine.retention import Keep
from batuta.engine.service import Service
from batuta.engine.stragglers.controller import StragglerController
from batuta.gpu.health.rules import parse_rules, read_rules
from batuta.placement import PlacerOptions
from batuta.spec.problem import InputError
from batuta.store.store import Store, open_store

_log = logging.getLogger("batuta.operator")
_TRY_AGAIN_S = 2.0


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
            burn_in.image,
            tuple(burn_in.command),
            burn_in.runtime_class_name,
            burn_in.timeout_seconds,
            namespace,
        ),
    )


@dataclass(frozen=True, slots=True)
class HealthState:
    """What an operator that begins to lead knows of health."""

    options: HealthOptions
    stored: StoredState

    def desk(
        self,
        site: ReconcileContext,
        observed: ObjectCache,
        runs: Mapping[JobId, JobReconciler],
        gpu_resources: tuple[str, ...],
    ) -> HealthController:
        """The desk that goes on from there."""
        return HealthController(self.options, self.stored, site, observed, runs, gpu_resources)


class OperatorHealthView:
    """What the API and Prometheus are told of health. Nothing is changed through them: kubectl does that."""

    def __init__(self, floor: Reconciler) -> None:
        self._desk = next((desk for desk in floor.controllers if isinstance(desk, HealthController)), None)

    def seen(self) -> HealthSeen:
        return HealthSeen() if self._desk is None else HealthSeen(*self._desk.snapshot)

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        part = "node" if gpu is None else f"gpu-{gpu}"
        raise ValueError(f"say it to the cluster: kubectl annotate node {node} {names.MENDED}={part}")

    def cordoned(self, node: NodeName, who: str) -> None:
        raise ValueError(f"say it to the cluster: kubectl cordon {node}")

    def uncordoned(self, node: NodeName, who: str) -> None:
        raise ValueError(f"say it to the cluster: kubectl uncordon {node}")


async def read_health_state(api: Api, options: HealthOptions) -> HealthState:
    """Reads what the last leader stored. Nothing is decided before: what is ill would be used again."""
    while True:
        try:
            return HealthState(options, await load_state(api, options.namespace, options.memory_name))
        except ApiError as error:
            _log.warning("cannot read the memory of health: %s; trying again", error)
            await asyncio.sleep(_TRY_AGAIN_S)


_NO_RESULT = "null"


@dataclass(slots=True)
class Leader:
    """Everything that decides, once this operator leads."""

    assembly: Assembly
    backend: KubeBackend
    usher: GangBinder
    foresight: ForecastProcess
    store: Store
    cycles: SchedulerCounters
    listening: LogSubscriptions
    telemetry: Telemetry
    pictures: SnapshotCache = field(init=False)
    """For scrapes, which look again and again."""

    def __post_init__(self) -> None:
        self.pictures = SnapshotCache(self.service, self.cycles)

    @property
    def service(self) -> Service:
        return self.assembly.service

    @property
    def world(self) -> World:
        return self.assembly.world

    def end(self) -> None:
        """Ends the engine. Jobs go on: what matters is in the cluster."""
        self.assembly.end([("traces", self.telemetry.close), ("looking ahead", self.foresight.close)])


def build_leader(
    config: OperatorConfig,
    state: Path,
    inbox: Inbox,
    clerks: WriteWorkers,
    listeners: LogReaders,
    health: HealthState | None = None,
) -> Leader:
    """The World from the journal, brought up to date with what the cluster shows."""
    store = open_store(os.environ.get(JOURNAL_URL_VARIABLE) or _journal_in(state))
    keep = Keep(config.retention.jobs, config.retention.days * 86_400.0)
    profile_of = partial(operator_profile, config=config)
    # The configuration says the policy; it is written down because a replay has only the journal.
    assembly = Assembly(store, AssemblyOptions(profile_of, config.policy, config.policy, keep=keep))
    world, fence = assembly.world, assembly.fence
    clock = SteadyClock(time.time, world.now_s)
    assembly.start(clock())
    listening = LogSubscriptions(listeners.post)
    company = Dependencies(listening, assembly.history, store.results.stage, health, fence)
    backend, usher, desks = kube_backend(world, inbox, clerks, config, clock, company)
    requests, cycles = assembly.attach(backend), SchedulerCounters()
    told = telemetry(fence, world, config.telemetry.otlp_url, place="kubernetes", tells_of_preempted=False)
    observers: list[tuple[str, Observer]] = [("status of jobs", OutlookObserver(backend.reconciler))]
    if (shown := desks.watch()) is not None:
        observers.append(("status of queues", shown))
    service = assembly.build(told.measuring(cycles), [*observers, *told.logging()], partial(_forget, backend, store))
    held_up = StragglerController(requests.ask, _suspecting(backend.reconciler.controllers))
    service.after_step("stragglers", held_up.after_step)
    listening.on_held_up = held_up.found
    return Leader(assembly, backend, usher, ForecastProcess(), store, cycles, listening, told)


def _forget(backend: KubeBackend, store: Store, job: JobId) -> None:
    """A job is forgotten. The next one of its name has not given what this one gave."""
    backend.forget(job)
    if store.results.get(job) not in (None, _NO_RESULT):
        store.results.stage(job, _NO_RESULT)


def _suspecting(desks: Iterable[object]) -> Callable[[NodeName, JobId, str], None]:
    """Who is told of nodes that hold jobs up: health, if it is looked after."""
    found = (desk.suspect for desk in desks if isinstance(desk, HealthController))
    return next(found, _note_suspect)


def _note_suspect(node: NodeName, job: JobId, why: str) -> None:
    """An administrator should look at this node; jobs but this one may still go there."""
    _log.warning("node %s is suspect: %s", node, why, extra={"job": job})


def _journal_in(state: Path) -> Path:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return state / "journal.db"


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a Kubernetes backend can use besides the cluster; each has a default."""

    listening: LogSubscriptions = field(default_factory=LogSubscriptions)
    """By whom the logs of jobs are read."""
    experience: History | None = None
    """What is known of new jobs."""
    keep_result: Callable[[JobId, str], None] = lambda job, result: None
    """Stores what jobs give as their result."""
    health: HealthState | None = None
    """What is remembered of the health of nodes."""
    fence: Fence = field(default_factory=NoFence)
    """Around what jobs can do without, and around each job: one that cannot be handled holds up no other."""


NO_DEPENDENCIES = Dependencies()


def kube_backend(
    world: World,
    inbox: Inbox,
    clerks: WriteWorkers,
    config: OperatorConfig,
    clock: Callable[[], float],
    company: Dependencies = NO_DEPENDENCIES,
) -> tuple[KubeBackend, GangBinder, QuotaControllers]:
    """What carries decisions out on a cluster, once it has looked at all that is there."""
    said, experience, health = EventBuffer(), company.experience, company.health
    observed = ObjectCache()
    writes = WriteQueue(clerks.post)
    binder = Binder(Cluster(), binder_profile(config))
    restart_backoff = replace(RESTART_BACKOFF, first_s=config.restart_backoff_seconds)
    timing = Timing(gang_timeout_s=config.gang_timeout_seconds, restart_backoff=restart_backoff)
    usher = GangBinder(binder, writes, timing, partial(_expected, world))
    teller = NodeReporter(_known_nodes(world), _known_ill(world))
    site = ReconcileContext(
        binder.cluster,
        writes,
        observed.owners(),
        said.append if experience is None else experience.advising(said.append),
        usher.request_binding,
        has_node=observed.nodes.__contains__,
        timing=timing,
        past=set(world.past),
        listening=company.listening,
        keep_result=company.keep_result,
    )
    if experience is not None:
        site.choose = partial(_choose, experience, teller)
    jobs = world.jobs
    known = {
        job.id: KnownJob(
            job,
            jobs.placements[row],
            jobs.phase_of(row) is Phase.STOPPING,
            jobs.wish_of(row) is DesiredState.PARK,
        )
        for row, job in enumerate(jobs.jobs)
    }
    nodes = NodeController(site, observed, teller, config.gpu_resources, _told_of_others(world))
    floor = Reconciler(site, usher, observed, nodes, known, config.namespaces, company.fence)
    desks = set_up_quota(floor, site, observed, config, world)
    is_known = (lambda job: True) if experience is None else experience.knows
    set_up_trials(floor, site, observed, world, partial(_most, teller), is_known)
    floor.controllers.append(ParkingController(world, observed, writes))
    sharers = partial(sharers_on, world, observed, binder.cluster.pods_on, floor.job_of)
    floor.controllers.append(UsageController(observed, teller.__contains__, sharers, site.say))
    if health is not None:
        desk = health.desk(site, observed, floor.runs, tuple(config.gpu_resources))
        floor.controllers.append(desk)
        site.excuse = desk.excuse
    backend = KubeBackend(floor, said, inbox, clock)
    backend.look_first()
    return backend, usher, desks


def _expected(world: World, job: JobId) -> float | None:
    """How busy a job will keep a GPU, by what its like were measured at: in trial runs, or as they ran."""
    load = known_load(world, world.jobs.jobs[world.jobs.row(job)]) if job in world.jobs else None
    return None if load is None else round(load, 2)


def _choose(experience: History, teller: NodeReporter, job: Job) -> SizeChoice:
    return experience.choose(job, _most(teller, job))


def _most(teller: NodeReporter, job: Job) -> int:
    """Not more than its nodes could ever give; no limit while no node has GPUs, for some may be added."""
    nodes = [node for node in teller.nodes() if node.gpus]
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
