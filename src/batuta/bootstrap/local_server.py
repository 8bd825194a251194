"""What local mode is made of, wired together: engine, journal, processes, and what the API needs of them."""

from __future__ import annotations

import getpass
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from batuta.api.cycle_watch import CycleWatch
from batuta.api.parts import MOST_JOBS, ServerParts
from batuta.backends.local.backend import LocalBackend, held_in
from batuta.backends.local.passed_env import passed_env
from batuta.bootstrap import find_policy, live_cadence, policy_summaries, rules_for, version
from batuta.bootstrap.experience import Experience
from batuta.bootstrap.foresight import ForesightProcess
from batuta.bootstrap.health_local import make_watch, read_health
from batuta.bootstrap.local_gpus import LocalGpus, usage_watch
from batuta.bootstrap.local_nodes import (
    VIRTUAL,
    LocalNodes,
    check_counts,
    node_events,
    physical_nodes,
    promising,
    virtual_nodes,
)
from batuta.bootstrap.loopback import Loopback
from batuta.bootstrap.server_log import open_log
from batuta.bootstrap.telemetry import Telemetry, telemetry
from batuta.bootstrap.trial_sight import LocalSight
from batuta.bootstrap.virtual_gpus import VirtualGpus
from batuta.bootstrap.waste import account
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.decide import Rules
from batuta.core.health_rules import HealthRules
from batuta.core.idle import IdleRules
from batuta.core.job import Job
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.loop import Engine, Live
from batuta.engine.requests import Requests
from batuta.engine.retention import Keep, Retention
from batuta.engine.service import PatientJournal, Service
from batuta.engine.shadow import Shadow
from batuta.engine.stragglers.desk import StragglerDesk
from batuta.engine.stragglers.rank_watch import RankRules
from batuta.engine.trials.conductor import TrialConductor
from batuta.engine.usage_watch import UsageWatch
from batuta.gpu.health.watch import Doors, HealthWatch
from batuta.placement.placer import TopologyPlacer
from batuta.report.waste_page import render_waste
from batuta.spec.task import Task
from batuta.spec.task_json import task_from_json
from batuta.store.records import Role
from batuta.store.sqlite_store import SqliteStore
from batuta.store.state_dir import StateDir
from batuta.store.upkeep import Upkeep
from batuta.telemetry.log_format import LogFormat

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

DEFAULT_POLICY = "rent"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `batuta up` was told."""

    home: Path | None = None
    nodes: int | None = None
    gpus: int | None = None
    virtual: bool = False
    gpu_type: str = VIRTUAL
    """What the virtual GPUs call themselves, to try task files that ask for H100s."""
    port: int | None = None
    """None: the usual one, or any if that is taken; 0: any."""
    listen: str = LOOPBACK
    policy: str = ""
    """Empty: the one that was chosen last."""
    shadow: str = ""
    """A second policy, which only watches."""
    open_metrics: bool = False
    metrics_per_job: int = MOST_JOBS
    """How many jobs have metrics of their own."""
    pass_env: tuple[str, ...] = ()
    """Variables of the server's environment that jobs inherit beside the harmless ones."""
    idle: IdleRules = field(default_factory=IdleRules)
    """What becomes of jobs that leave their GPUs idle, where their queue says nothing."""
    shares: Literal["bin-pack", "spread"] = "bin-pack"
    """Which cards shares of a GPU go to first: full ones, or empty ones."""
    busiest: float = 0.7
    """A card gets no further sharer, while there is another place, if it would be busier than this."""
    over_allocate: int = 100
    """Percent of a GPU's compute that is promised to soft shares together."""
    keep: Keep = field(default_factory=Keep)
    """How long jobs that are over are kept in mind."""
    health_log: Path | str | None = None
    """The kernel log to read; None: the kernel's own, or that of the virtual GPUs."""
    health_rules: Path | str | None = None
    """What errors of GPUs mean; None: as Batuta has it."""
    ranks: RankRules = field(default_factory=RankRules)
    """When ranks hold a job up, where the job itself says nothing, and what follows."""
    otlp: str = ""
    """Where traces of cycles are sent; empty: nowhere."""
    log_format: LogFormat = LogFormat.JSON
    """Of server.log."""


@dataclass(slots=True)
class Server:
    """Everything that `batuta up` is made of, wired together and not started yet."""

    options: UpOptions
    state: StateDir
    store: SqliteStore
    world: World
    backend: LocalBackend
    service: Service
    upkeep: Upkeep
    experience: Experience
    foresight: ForesightProcess
    shadow: Shadow
    usage: UsageWatch | None
    telemetry: Telemetry
    parts: ServerParts
    token: str
    log: FilteringBoundLogger
    gpus: LocalGpus
    health: HealthWatch
    keep_jobs: bool = True
    """Whether jobs go on when the server ends. Only `batuta down` says no."""
    ask_to_end: Callable[[], None] | None = None
    """How whoever serves it is told to end; it returns at once."""
    url: str = ""

    def end(self) -> None:
        """Ends what `build` and `start` began, in an order that loses nothing."""
        if self.usage is not None:
            self.usage.close()
        self.health.close()
        has_stopped = self.service.stop()
        self.telemetry.close()
        self.backend.shutdown(keep_jobs=self.keep_jobs)
        # An engine that died within an event, or still is in one, leaves a World that never was.
        if has_stopped and self.service.failure is None:
            self.upkeep.finish(self.world)
        self.experience.finish()
        self.foresight.close()
        self.shadow.close()
        self.store.close()


@contextmanager
def built(options: UpOptions) -> Iterator[Server]:
    """A server on its state directory, which nobody else has meanwhile."""
    check_counts(options.nodes, options.gpus)
    for policy in filter(None, (options.policy, options.shadow)):
        find_policy(policy)
    rules = read_health(options.health_log, options.health_rules)
    local = (
        virtual_nodes(options.nodes, options.gpus, options.gpu_type)
        if options.virtual
        else physical_nodes(options.nodes, options.gpus)
    )
    local = promising(local, options.over_allocate)
    state = StateDir(options.home)
    state.prepare()
    with state.lock:
        # It is removed at a clean end: whoever finds it looks at the whole journal first.
        unclean = (state.path / "server.json").exists()
        server = _build(options, state, SqliteStore(state.journal, check=unclean), local, rules)
        try:
            yield server
        finally:
            server.end()
            with suppress(OSError):
                (state.path / "server.json").unlink()


def _build(
    options: UpOptions, state: StateDir, store: SqliteStore, local: LocalNodes, health_rules: HealthRules
) -> Server:
    log = open_log(state.path / "server.log", options.log_format)
    recovered = store.recover()
    world = recovered.world
    log.info("recovered", events=recovered.seq, snapshot=recovered.snapshot_seq, jobs=world.jobs.n)
    for sentence in recovered.unusable:
        log.warning("snapshot unusable", why=sentence)
    _open_cluster(world, store, local, options.policy)
    virtual = VirtualGpus(state.path, local.nodes) if options.virtual else None
    gpus = LocalGpus(state.path, local.devices, virtual)
    backend = LocalBackend(
        state.path,
        local.nodes,
        _task_reader(store, world),
        devices=local.devices,
        equipment=gpus,
        on_result=store.results.stage,
        inherited=passed_env(os.environ, options.pass_env),
        since_s=world.now_s,
        ranks=options.ranks,
    )
    backend.resume(held_in(world))
    gpus.prepare(lambda: _tell_of(gpus, backend, log))

    def rules_of(name: str) -> Rules:
        return _with_options(rules_for(name), options)

    experience = Experience(store.settings)
    experience.recall(world)
    shadow = Shadow(world, rules_of, experience.watching(_TellsBackend(backend)), options.shadow)
    guard, journal, cycles = (
        threading.RLock(),
        PatientJournal(store.journal),
        CycleWatch(shadow),
    )
    requests = Requests(backend.wake)
    policy = world.policy or DEFAULT_POLICY
    trials = TrialConductor(requests.ask, store.tasks.get, LocalSight(backend, local, virtual))
    live = Live(requests, rules_of, guard, trials.next_due_s)
    told = telemetry(cycles, world, options.otlp, place="local")
    watcher = told.watcher
    engine = Engine(
        world, backend, rules_of(policy), journal, watcher, live_cadence(), watcher.after_step, live
    )
    upkeep = Upkeep(store, recovered.snapshot_seq, tell=lambda what: log.warning("upkeep", why=what))
    retention = Retention(options.keep, requests.ask, backend.forget)

    def after_step(world: World) -> None:
        upkeep.after_step(world)
        retention.after_step(world)
        experience.after_step(world)
        trials.after_step(world)
        held_up.after_step(world)

    service = Service(engine, requests, journal, guard, backend.wake, after_step)
    usage = usage_watch(gpus.virtual, local, requests.ask)
    foresight = ForesightProcess()
    doors = Doors(requests.ask, service.reading)
    about = (state.path, options.health_log, health_rules, local, virtual)
    health = make_watch(*about, store.settings, doors, backend.log_path)
    backend.excuse = health.excuse
    held_up = StragglerDesk(requests.ask, health.suspect)
    backend.on_held_up = held_up.found
    server: Server
    parts = ServerParts(
        service,
        store,
        backend,
        policy,
        policy_summaries(),
        find_policy,
        rules_of,
        shutdown=lambda keep_jobs: _ask_to_end(server, keep_jobs),
        nodes=Loopback(world, usage),
        node_health=health,
        cycles=cycles,
        virtual=options.virtual,
        version=version(),
        open_metrics=options.open_metrics,
        metrics_per_job=options.metrics_per_job,
        experience=experience,
        account=lambda from_s, to_s: account(
            store.journal, store.snapshots, from_s, to_s, time.time()
        ).plain(),
        account_page=render_waste,
        shadow=shadow,
        foresight=foresight,
        spans=told.exporter,
        hosts=() if options.listen == LOOPBACK else (options.listen,),
    )
    token = _admin_token(state, store)
    beside = (upkeep, experience, foresight, shadow, usage, told)
    server = Server(options, state, store, world, backend, service, *beside, parts, token, log, gpus, health)
    health.start()
    if usage is not None:
        usage.start()
    return server


def _with_options(rules: Rules, options: UpOptions) -> Rules:
    """The rules of a policy as this server was told to apply them."""
    placer = rules.placer
    if isinstance(placer, TopologyPlacer):
        placer = TopologyPlacer(replace(placer.options, shares=options.shares, busiest=options.busiest))
    return replace(rules, placer=placer, idle=options.idle)


def _tell_of(gpus: LocalGpus, backend: LocalBackend, log: FilteringBoundLogger) -> None:
    """Replicas can start; some things may be missing."""
    for note in gpus.notes:
        log.warning("GPUs", why=note)
    backend.wake()


def _open_cluster(world: World, store: SqliteStore, local: LocalNodes, policy: str) -> None:
    """Brings the World up to date with what this start was told: its nodes, its policy."""
    now_s = max(time.time(), world.now_s)
    events = node_events(world, local.nodes, now_s)
    if policy and policy != world.policy:
        events.append(ev.PolicySet(now_s, policy, cause="start"))
    if world.jobs.n:
        # What is decided and found now is of now, however long nobody was there.
        events.append(ev.TimePassed(now_s, cause="start"))
    for event in events:
        store.journal.append(event)
        apply(world, event)
    store.journal.commit()


def _task_reader(store: SqliteStore, world: World) -> Callable[[str], tuple[Task, Job]]:
    """What a living job runs, and what it asks for now. Only the engine's thread may ask."""

    def read(job: str) -> tuple[Task, Job]:
        text = store.tasks.get(job)
        if text is None:
            raise KeyError(f"job {job} has no task in the journal")
        return task_from_json(text), world.jobs.jobs[world.jobs.row(job)]

    return read


class _TellsBackend:
    """Tells the backend what users change about jobs that it runs, and that GPUs have failed that were all
    a job had; of all else it hears by commands.
    """

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend

    def saw(self, world: World, event: ev.Event) -> None:
        if isinstance(event, ev.JobChanged) and event.job.id in world.jobs:
            self._backend.changed(world.jobs.jobs[world.jobs.row(event.job.id)])
        elif isinstance(event, ev.GpuFailed):
            placed = {
                job
                for job, placement in zip(world.jobs.ids, world.jobs.placements, strict=True)
                if placement is not None
            }
            self._backend.lost(event.node, event.gpu, placed)

    def deciding(self) -> None:
        pass

    def decided(self, world: World, plan: Plan) -> None:
        pass

    def postponed(self, world: World) -> None:
        pass


def _admin_token(state: StateDir, store: SqliteStore) -> str:
    """The token of who started the server, in a file that only they can read."""
    token = state.read_secret()
    if token is None or store.tokens.find(token) is None:
        token = store.tokens.create(getpass.getuser(), Role.ADMIN, time.time())
        state.write_secret(token)
    return token


def _ask_to_end(server: Server, keep_jobs: bool) -> None:
    server.keep_jobs = keep_jobs
    if server.ask_to_end is not None:
        server.ask_to_end()
