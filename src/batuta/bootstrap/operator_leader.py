"""What decides, once an operator leads: engine, journal and the backend of a cluster, wired together."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from batuta.api.cycle_watch import CycleWatch
from batuta.api.operations import most_that_fit
from batuta.api.picture import Pictures
from batuta.backends.kube.binder import BadProfile, Binder, Cluster, Profile, profile_of
from batuta.backends.kube.binder.profile import DEFAULT_WEIGHTS
from batuta.backends.kube.health.desk import HealthDesk
from batuta.backends.kube.kueue.desks import QuotaDesks, set_up_quota
from batuta.backends.kube.operator.backend import KubeBackend
from batuta.backends.kube.operator.floor import Floor
from batuta.backends.kube.operator.inbox import Inbox
from batuta.backends.kube.operator.node_desk import NodeDesk, Used
from batuta.backends.kube.operator.nodes import NodeTeller
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.outlook import OutlookWatch
from batuta.backends.kube.operator.parking import ParkingDesk
from batuta.backends.kube.operator.run import Known, Site, Timing
from batuta.backends.kube.operator.usage_desk import UsageDesk, sharers_on
from batuta.backends.kube.operator.usher import Usher
from batuta.backends.kube.operator.writes import Clerks, Writes
from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE, OperatorConfig
from batuta.backends.kube.progress.listening import Listeners, Listening
from batuta.backends.kube.trial.set_up import set_up_trials
from batuta.bootstrap import live_cadence, rules_for
from batuta.bootstrap.experience import Experience
from batuta.bootstrap.foresight import ForesightProcess
from batuta.bootstrap.operator_health import HealthStart
from batuta.bootstrap.telemetry import Telemetry, telemetry
from batuta.core.apply import apply
from batuta.core.bitsets import bits
from batuta.core.cluster import NodeName
from batuta.core.decide import Rules
from batuta.core.event import PolicySet
from batuta.core.expected import SizeChoice
from batuta.core.job import Job, JobId
from batuta.core.job_table import Phase
from batuta.core.load import known_load
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.clock import SteadyClock
from batuta.engine.loop import Engine, Live
from batuta.engine.requests import Requests
from batuta.engine.said import Said
from batuta.engine.service import PatientJournal, Service
from batuta.engine.shadow import Shadow
from batuta.engine.stragglers.desk import StragglerDesk
from batuta.placement import TopologyPlacer
from batuta.spec.problem import InputError
from batuta.store.address import open_store
from batuta.store.store import Store
from batuta.store.upkeep import Upkeep

_log = logging.getLogger("batuta.operator")


@dataclass(slots=True)
class Leader:
    """Everything that decides, once this operator leads."""

    service: Service
    backend: KubeBackend
    usher: Usher
    upkeep: Upkeep
    experience: Experience
    shadow: Shadow
    foresight: ForesightProcess
    store: Store
    world: World
    cycles: CycleWatch
    listening: Listening
    telemetry: Telemetry
    pictures: Pictures = field(init=False)
    """For scrapes, which look again and again."""

    def __post_init__(self) -> None:
        self.pictures = Pictures(self.service, self.cycles)

    def end(self) -> None:
        """Ends the engine. Jobs go on: what matters is in the cluster."""
        if self.service.stop() and self.service.failure is None:
            self.upkeep.finish(self.world)
        self.telemetry.close()
        self.experience.finish()
        self.foresight.close()
        self.shadow.close()
        self.store.close()


def build_leader(
    config: OperatorConfig,
    state: Path,
    inbox: Inbox,
    clerks: Clerks,
    listeners: Listeners,
    health: HealthStart | None = None,
) -> Leader:
    """The World from the journal, brought up to date with what the cluster shows."""
    store = open_store(os.environ.get(JOURNAL_URL_VARIABLE) or _journal_in(state))
    recovered = store.recover()
    world = recovered.world
    clock = SteadyClock(time.time, world.now_s)
    _note_policy(world, store, config.policy, clock())
    listening = Listening(listeners.post)
    experience = Experience(store.settings)
    experience.recall(world)
    company = Company(listening, experience, store.results.stage, health)
    backend, usher, desks = kube_backend(world, inbox, clerks, config, clock, company)
    outlook = experience.watching(desks.watch(OutlookWatch(backend.floor)))

    def rules_of(name: str) -> Rules:
        return sharing_rules(rules_for(name), config)

    shadow = Shadow(world, rules_of, outlook)
    guard, journal, cycles = threading.RLock(), PatientJournal(store.journal), CycleWatch(shadow)
    requests = Requests(backend.wake)
    told = telemetry(cycles, world, config.telemetry.otlp_url, place="kubernetes", tells_of_preempted=False)
    engine = Engine(
        world,
        backend,
        rules_of(config.policy),
        journal,
        told.watcher,
        live_cadence(),
        told.watcher.after_step,
        Live(requests, rules_of, guard),
    )
    upkeep = Upkeep(store, recovered.snapshot_seq, tell=_log.warning)

    def after_step(world: World) -> None:
        upkeep.after_step(world)
        experience.after_step(world)
        held_up.after_step(world)

    service = Service(engine, requests, journal, guard, backend.wake, after_step)
    held_up = StragglerDesk(requests.ask, _suspecting(backend.floor.desks))
    listening.on_held_up = held_up.found
    beside = (upkeep, experience, shadow, ForesightProcess())
    return Leader(service, backend, usher, *beside, store, world, cycles, listening, told)


def _suspecting(desks: Iterable[object]) -> Callable[[NodeName, JobId, str], None]:
    """Who is told of nodes that hold jobs up: health, if it is looked after."""
    found = (desk.suspect for desk in desks if isinstance(desk, HealthDesk))
    return next(found, _note_suspect)


def _note_suspect(node: NodeName, job: JobId, why: str) -> None:
    """Somebody should look at this node; jobs but this one may still go there."""
    _log.warning("node %s is suspect: %s", node, why, extra={"job": job})


def _note_policy(world: World, store: Store, policy: str, now_s: float) -> None:
    """Writes down who decides from now on: the configuration says it, and a replay has only the journal."""
    if world.policy == policy:
        return
    event = PolicySet(now_s, policy, cause="start")
    store.journal.append(event)
    apply(world, event)
    store.journal.commit()


def _journal_in(state: Path) -> Path:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return state / "journal.db"


@dataclass(frozen=True, slots=True)
class Company:
    """Who a backend of a cluster works together with; it does without any of them."""

    listening: Listening = field(default_factory=Listening)
    """By whom the logs of jobs are read."""
    experience: Experience | None = None
    """What is known of new jobs."""
    keep_result: Callable[[JobId, str], None] = lambda job, result: None
    """Stores what jobs give as their result."""
    health: HealthStart | None = None
    """What is remembered of the health of nodes."""


ALONE = Company()


def kube_backend(
    world: World,
    inbox: Inbox,
    clerks: Clerks,
    config: OperatorConfig,
    clock: Callable[[], float],
    company: Company = ALONE,
) -> tuple[KubeBackend, Usher, QuotaDesks]:
    """What carries decisions out on a cluster, once it has looked at all that is there."""
    said, experience, health = Said(), company.experience, company.health
    observed = Observed()
    writes = Writes(clerks.post)
    binder = Binder(Cluster(), binder_profile(config))
    timing = Timing(
        gang_timeout_s=config.gang_timeout_seconds, restart_backoff_s=config.restart_backoff_seconds
    )
    usher = Usher(binder, writes, timing, partial(_expected, world))
    teller = NodeTeller(_known_nodes(world), _known_ill(world))
    site = Site(
        binder.cluster,
        writes,
        observed.owners(),
        said.append if experience is None else experience.advising(said.append),
        usher.seat,
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
        job.id: Known(
            job,
            jobs.placements[row],
            jobs.phase_of(row) is Phase.STOPPING,
            jobs.wish_of(row) is Wish.PARK,
        )
        for row, job in enumerate(jobs.jobs)
    }
    nodes = NodeDesk(site, observed, teller, config.gpu_resources, _told_of_others(world))
    floor = Floor(site, usher, observed, nodes, known, config.namespaces)
    desks = set_up_quota(floor, site, observed, config, world)
    is_known = (lambda job: True) if experience is None else experience.knows
    set_up_trials(floor, site, observed, world, partial(_most, teller), is_known)
    floor.desks.append(ParkingDesk(world, observed, writes))
    sharers = partial(sharers_on, world, observed, binder.cluster.pods_on, floor.job_of)
    floor.desks.append(UsageDesk(observed, teller.__contains__, sharers, site.say))
    if health is not None:
        desk = health.desk(site, observed, floor.runs, tuple(config.gpu_resources))
        floor.desks.append(desk)
        site.excuse = desk.excuse
    backend = KubeBackend(floor, said, inbox, clock)
    backend.look_first()
    return backend, usher, desks


def _expected(world: World, job: JobId) -> float | None:
    """How busy a job will keep a GPU, by what its like were measured at: in trial runs, or as they ran."""
    load = known_load(world, world.jobs.jobs[world.jobs.row(job)]) if job in world.jobs else None
    return None if load is None else round(load, 2)


def _choose(experience: Experience, teller: NodeTeller, job: Job) -> SizeChoice:
    return experience.choose(job, _most(teller, job))


def _most(teller: NodeTeller, job: Job) -> int:
    """Not more than its nodes could ever give; while there are none, whoever adds them is not limited."""
    nodes = teller.nodes()
    return most_that_fit(job, nodes) if nodes else job.max


def sharing_rules(rules: Rules, config: OperatorConfig) -> Rules:
    """The rules of a policy, with shares of GPUs placed as the configuration says."""
    if not isinstance(rules.placer, TopologyPlacer):
        return rules
    wanted = config.placement
    options = replace(rules.placer.options, shares=wanted.shares.value, busiest=wanted.busiest)
    return replace(rules, placer=TopologyPlacer(options))


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
