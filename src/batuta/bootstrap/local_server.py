"""`batuta up`: wires engine, journal, processes and API together, and serves until it is told to end."""

from __future__ import annotations

import getpass
import json
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastapi import FastAPI

from batuta import __version__
from batuta.api.app import ApiServer, create_app
from batuta.api.dependencies import MAX_JOB_SERIES, USER_PRIORITY, ServerDependencies
from batuta.api.scheduler_counters import SchedulerCounters
from batuta.backends.local.addresses import node_address
from batuta.backends.local.backend import LocalBackend
from batuta.backends.local.containers import ContainerRuntimes
from batuta.backends.local.job_environment import inherited_env, with_job_python
from batuta.backends.local.job_manager import expected_jobs
from batuta.backends.local.mounts import why_no_views
from batuta.bootstrap.forecast_process import ForecastProcess
from batuta.bootstrap.local_gpus import (
    LocalGpus,
    LocalNodes,
    TrialMonitor,
    VirtualGpus,
    check_counts,
    node_events,
    physical_nodes,
    promising,
    usage_watch,
    virtual_nodes,
    with_cpus,
)
from batuta.bootstrap.local_health import make_watch, read_health
from batuta.bootstrap.offline import account
from batuta.bootstrap.telemetry import Telemetry, open_log, telemetry
from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.decide import SchedulerProfile
from batuta.core.health_rules import HealthRules
from batuta.core.job import Job
from batuta.core.quota import IdleAction
from batuta.core.utilisation import IdleRules
from batuta.core.world import World
from batuta.engine.assembly import Assembly, AssemblyOptions
from batuta.engine.observers import Observer
from batuta.engine.profile import find_policy, profile_for
from batuta.engine.retention import Keep
from batuta.engine.service import Service
from batuta.engine.stragglers.controller import StragglerController
from batuta.engine.stragglers.rank_watch import RankRules
from batuta.engine.trials.controller import TrialController
from batuta.engine.usage_watch import UsageWatch
from batuta.gpu.health.watch import EngineAccess, HealthWatch
from batuta.placement import PlacerOptions
from batuta.policies.registry import DEFAULT_POLICY, policy_summaries
from batuta.report.gpu_usage_page import render_usage
from batuta.spec.problem import InputError
from batuta.spec.task import Task
from batuta.spec.task_paths import PathRules
from batuta.spec.task_resources import VIRTUAL_GPU
from batuta.spec.task_serialization import task_from_json
from batuta.store.records import Role
from batuta.store.state_dir import StateDir
from batuta.store.store import SqliteStore
from batuta.telemetry import LogFormat

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class LocalNodeInfo:
    """The nodes of local mode have addresses on this machine, and GPUs that are looked at."""

    def __init__(self, world: World, usage: UsageWatch | None) -> None:
        self._world = world
        self._usage = usage

    def address(self, node: NodeName) -> str:
        return node_address(self._world.nodes.index[node])

    def utilisation(self, node: NodeName) -> Mapping[int, float]:
        return {} if self._usage is None else self._usage.latest(node)


DEFAULT_PORT = 7077
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `batuta up` was told."""

    home: Path | None = None
    nodes: int | None = None
    gpus: int | None = None
    virtual: bool = False
    gpu_type: str = VIRTUAL_GPU
    """What the virtual GPUs call themselves, to try task files that ask for H100s."""
    cpus: float | None = None
    """Of each node; None: by its GPUs."""
    memory_gib: float | None = None
    """Of each node; None: by its GPUs."""
    port: int | None = None
    """None: the usual one, or any if that is taken; 0: any."""
    listen: str = LOOPBACK
    policy: str = ""
    """Empty: the one that was chosen last."""
    shadow: str = ""
    """A second policy, which only watches."""
    user_priority: int = USER_PRIORITY
    """The highest priority that users may give their jobs, where the queue says nothing."""
    open_metrics: bool = False
    metrics_per_job: int = MAX_JOB_SERIES
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
    assembly: Assembly
    backend: LocalBackend
    foresight: ForecastProcess
    usage: UsageWatch | None
    telemetry: Telemetry
    parts: ServerDependencies
    token: str
    log: FilteringBoundLogger
    gpus: LocalGpus
    health: HealthWatch
    keep_jobs: bool = True
    """Whether jobs go on when the server ends. Only `batuta down` says no."""
    ask_to_end: Callable[[], None] | None = None
    """Tells the HTTP server to end; returns at once."""
    url: str = ""

    @property
    def service(self) -> Service:
        return self.assembly.service

    @property
    def world(self) -> World:
        return self.assembly.world

    def end(self) -> None:
        """Ends what `build` and `start` began, in an order that loses nothing."""
        around = self.assembly.fence.around
        if self.usage is not None:
            with around("GPU use"):
                self.usage.close()
        with around("GPU health"):
            self.health.close()
        self.assembly.end(
            [
                ("traces", self.telemetry.close),
                ("jobs", lambda: self.backend.shutdown(keep_jobs=self.keep_jobs)),
                ("looking ahead", self.foresight.close),
            ]
        )


@contextmanager
def built(options: UpOptions) -> Iterator[Server]:
    """A server on its state directory, which it has locked."""
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
    local = with_cpus(local, virtual=options.virtual, cpus=options.cpus, memory_gib=options.memory_gib)
    state = StateDir(options.home)
    state.prepare()
    with state.lock:
        # It is removed at a clean end: a server that finds it checks the whole journal first.
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

    def profile_of(name: str) -> SchedulerProfile:
        return local_profile(name, options)

    assembly = Assembly(
        store, AssemblyOptions(profile_of, DEFAULT_POLICY, options.policy, options.shadow, options.keep)
    )
    world, fence, recovered = assembly.world, assembly.fence, assembly.recovered
    log.info("recovered", events=recovered.seq, snapshot=recovered.snapshot_seq, jobs=world.jobs.n)
    for sentence in recovered.unusable:
        log.warning("snapshot unusable", why=sentence)
    now_s = max(time.time(), world.now_s)
    assembly.start(now_s, node_events(world, local.nodes, now_s))
    virtual = VirtualGpus(state.path, local.nodes) if options.virtual else None
    gpus = LocalGpus(state.path, local.devices, virtual)
    containers = ContainerRuntimes(virtual=options.virtual)
    backend = LocalBackend(
        state.path,
        local.nodes,
        _task_reader(store, world),
        devices=local.devices,
        gpu_injector=gpus,
        containers=containers,
        on_result=store.results.stage,
        inherited=_inherited(state.path, options.pass_env, log),
        since_s=world.now_s,
        ranks=options.ranks,
        fence=fence,
    )
    backend.resume(expected_jobs(world))
    gpus.prepare(lambda: _tell_of(gpus, backend, log), fence)
    requests = assembly.attach(backend)
    trials = TrialController(requests.ask, store.tasks.get, TrialMonitor(backend, local, virtual))
    cycles = SchedulerCounters()
    told = telemetry(fence, world, options.otlp, place="local")
    service = assembly.build(
        told.measuring(cycles),
        [("jobs", _BackendNotifier(backend)), *told.logging()],
        backend.forget,
        fence.asking("trial runs", trials.next_due_s, math.inf),
    )
    service.after_step("trial runs", trials.after_step)
    usage = usage_watch(gpus.virtual, local, requests.ask, fence)
    foresight = ForecastProcess()
    doors = EngineAccess(requests.ask, service.reading, fence)
    about = (state.path, options.health_log, health_rules, local, virtual)
    health = make_watch(*about, store.settings, doors, backend.log_path)
    backend.context.excuse = health.excuse
    held_up = StragglerController(requests.ask, health.suspect)
    backend.context.held_up = held_up.found
    service.after_step("stragglers", held_up.after_step)
    server: Server
    parts = ServerDependencies(
        service,
        store,
        backend,
        assembly.policy,
        policy_summaries(),
        find_policy,
        profile_of,
        shutdown=lambda keep_jobs: _ask_to_end(server, keep_jobs),
        nodes=LocalNodeInfo(world, usage),
        node_health=health,
        cycles=cycles,
        virtual=options.virtual,
        images=containers.rules,
        ports_at=_ports_at(options.listen),
        paths=PathRules(None, Path.home(), no_mounts=why_no_views),
        version=__version__,
        user_priority=options.user_priority,
        open_metrics=options.open_metrics,
        metrics_per_job=options.metrics_per_job,
        experience=assembly.history,
        account=lambda from_s, to_s: account(store.journal, store.snapshots, from_s, to_s, time.time()).plain(),
        account_page=render_usage,
        shadow=assembly.shadow,
        foresight=foresight,
        spans=told.exporter,
        hosts=() if options.listen == LOOPBACK else (options.listen,),
    )
    token = _admin_token(state, store)
    server = Server(options, state, store, assembly, backend, foresight, usage, told, parts, token, log, gpus, health)
    health.start()
    if usage is not None:
        usage.start()
    return server


def _ports_at(listen: str) -> str:
    """The host at which people reach the ports of jobs: this machine, under the name that the server has."""
    return socket.gethostname() if listen in ("0.0.0.0", "::") else listen


def local_profile(policy: str, options: UpOptions) -> SchedulerProfile:
    """The profile of a policy as this server was told to apply it."""
    placing = PlacerOptions(shares=options.shares, busiest=options.busiest)
    return profile_for(policy, placing=placing, idle=options.idle)


def _inherited(home: Path, also: tuple[str, ...], log: FilteringBoundLogger) -> dict[str, str]:
    """What jobs have of the server's environment, with a Python that is not Batuta's own."""
    passed = inherited_env(os.environ, also)
    try:
        return with_job_python(home, passed)
    except OSError as error:
        log.warning("jobs install into the environment of Batuta", why=str(error))
        return passed


def _tell_of(gpus: LocalGpus, backend: LocalBackend, log: FilteringBoundLogger) -> None:
    """Replicas can start; some things may be missing."""
    for note in gpus.notes:
        log.warning("GPUs", why=note)
    backend.wake()


def _task_reader(store: SqliteStore, world: World) -> Callable[[str], tuple[Task, Job]]:
    """What a living job runs, and what it asks for now. Only the engine's thread may ask."""

    def read(job: str) -> tuple[Task, Job]:
        text = store.tasks.get(job)
        if text is None:
            raise KeyError(f"job {job} has no task in the journal")
        return task_from_json(text), world.jobs.jobs[world.jobs.row(job)]

    return read


class _BackendNotifier(Observer):
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


def idle_rules(after_s: float, action: str) -> IdleRules:
    """What is done about idle jobs, from the words of the command line."""
    return IdleRules(after_s, IdleAction(action))


def serve(options: UpOptions, ready: Callable[[Server], None] | None = None) -> int:
    """Runs a server until it is told to end; returns the exit code. Jobs go on, unless `batuta down` says no.

    `ready` is called when requests would be answered.
    """
    with built(options) as server:
        listener = _listen(options.listen, options.port)
        server.url = f"http://{_host_in_url(options.listen)}:{listener.getsockname()[1]}"
        http = _HttpServer(create_app(server.parts), lambda: _now_ready(server, ready))
        server.ask_to_end = http.end
        server.service.on_death = lambda error: _engine_died(server, error)
        server.service.start()
        http.run(sockets=[listener])
        server.log.info("ending", keep_jobs=server.keep_jobs)
        if server.service.failure is not None:
            return 1
        if server.keep_jobs:
            _tell_what_goes_on(server)
        return 0


class _HttpServer(ApiServer):
    """Ends at SIGINT and SIGTERM as at any other wish to end, without raising them again."""

    def __init__(self, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(app)
        self._ready = ready

    def end(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _now_ready(server: Server, ready: Callable[[Server], None] | None) -> None:
    _write_server_file(server)
    server.state.lock.tell(server.url)
    server.log.info("serving", url=server.url, pid=os.getpid())
    if ready is not None:
        ready(server)


def _tell_what_goes_on(server: Server) -> None:
    """Who presses Ctrl-C may think that all of it ends."""
    with server.service.reading() as (world, _):
        running = sum(placement is not None for placement in world.jobs.placements)
    if running:
        jobs = "1 job runs" if running == 1 else f"{running} jobs run"
        sys.stderr.write(f"{jobs} on, for the next `batuta up` to take over; `batuta down` stops jobs too\n")


def _engine_died(server: Server, error: BaseException) -> None:
    """A server without an engine is of no use: it ends, and a new one finds everything in the journal."""
    server.log.error("the engine has died", exc_info=error)
    sys.stderr.write(f"the engine has died: {error!r}; see {server.state.path / 'server.log'}\n")
    if server.ask_to_end is not None:
        server.ask_to_end()


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port that was asked for; without one, the usual or any other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (DEFAULT_PORT, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, wanted))
        except OSError as error:
            listener.close()
            if port is None and wanted:
                continue
            raise InputError.of(
                f"cannot listen at {host}:{wanted}: {error.strerror}", fix="choose another --port or --listen"
            ) from error
        listener.listen(1024)
        listener.set_inheritable(False)
        return listener
    raise AssertionError("port 0 is always there")


def _host_in_url(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return LOOPBACK if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _write_server_file(server: Server) -> None:
    """Says where the server is to be found, for commands on this machine."""
    facts = {"url": server.url, "pid": os.getpid(), "started_s": server.parts.started_s}
    path = server.state.path / "server.json"
    draft = path.with_name(f".server.json.{secrets.token_hex(4)}")
    draft.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(path)
