"""`batuta up`: wires engine, journal, processes and API together, and serves until it is told to end."""

from __future__ import annotations

import getpass
import ipaddress
import json
import math
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastapi import FastAPI

from batuta.api.app import ApiServer, create_app
from batuta.api.auth import PeerAuthenticator
from batuta.api.dependencies import MAX_JOB_SERIES, USER_PRIORITY
from batuta.apitypes.server_proof import server_proof
from batuta.backends.local.addresses import node_address
from batuta.backends.local.backend import LocalBackend
from batuta.backends.local.containers import ContainerRuntimes
from batuta.backends.local.job_environment import inherited_env, with_job_python
from batuta.backends.local.job_manager import expected_jobs
from batuta.backends.local.limits import LimitOptions, machine_limits
from batuta.backends.local.mounts import why_no_views
from batuta.backends.local.tenants import Tenants, account_name, check_unexchangeable, named_area, open_area
from batuta.bootstrap.engine_host import EngineHost
from batuta.bootstrap.local_gpus import LocalGpus
from batuta.bootstrap.local_state import open_own_store
from batuta.bootstrap.serving import call_at_signals, listen, listen_unix, raise_descriptor_limit
from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.decide import SchedulerProfile
from batuta.core.health_rules import HealthRules
from batuta.core.job import Job
from batuta.core.utilisation import IdleRules
from batuta.core.world import World
from batuta.engine.assembly import AssemblyOptions
from batuta.engine.observers import Observer
from batuta.engine.profile import find_policy, profile_for
from batuta.engine.retention import Keep
from batuta.engine.stragglers.rank_watch import RankRules
from batuta.engine.trials.controller import TrialController
from batuta.engine.usage_watch import UsageWatch
from batuta.gpu.health.findings import make_sources
from batuta.gpu.health.repair import RepairWorker
from batuta.gpu.health.rules import read_health
from batuta.gpu.health.watch import EngineAccess, HealthWatch
from batuta.gpu.local_nodes import (
    LocalNodes,
    TrialMonitor,
    VirtualGpus,
    check_counts,
    node_events,
    physical_nodes,
    usage_watch,
    virtual_nodes,
    with_capacity,
)
from batuta.placement import PlacerOptions
from batuta.policies.registry import DEFAULT_POLICY
from batuta.spec.problem import InputError
from batuta.spec.task import Task
from batuta.spec.task_paths import PathRules
from batuta.spec.task_resources import VIRTUAL_GPU
from batuta.spec.task_serialization import task_from_json
from batuta.store.errors import DamagedRowError
from batuta.store.identity import StateMark
from batuta.store.records import Role
from batuta.store.state_dir import StateDir
from batuta.store.store import SqliteStore
from batuta.telemetry import LogFormat
from batuta.telemetry.exporter import telemetry
from batuta.telemetry.logs import open_log

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


DEFAULT_PORT = 7077
LOOPBACK = "127.0.0.1"
JOB_FILES = Path("/var/lib/batuta/jobs")


@dataclass(frozen=True, slots=True)
class LocalNodeInfo:
    """The nodes of local mode have addresses on this machine, and GPUs that are looked at."""

    world: World
    usage: UsageWatch | None

    def address(self, node: NodeName) -> str:
        return node_address(self.world.nodes.index[node])

    def utilisation(self, node: NodeName) -> Mapping[int, float]:
        return {} if self.usage is None else self.usage.latest(node)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `batuta up` was told."""

    home: Path | None = None
    nodes: int | None = None
    gpus: int | None = None
    virtual: bool = False
    gpu_type: str = VIRTUAL_GPU  # what the virtual GPUs call themselves, to try task files that ask for H100s
    cpus: float | None = None  # of each node; None: by its GPUs
    memory_gib: float | None = None  # of each node; None: by its GPUs
    port: int | None = None  # None: the usual one, or any if that is taken; 0: any
    listen: str = LOOPBACK
    unix_socket: Path | str | None = None
    """Where all users of this machine reach it: then each job runs as its user's account. For root alone."""
    job_files: Path | str = JOB_FILES  # with a unix socket: where the files of other users' jobs are
    jobs_run_as_me: bool = False  # whether callers from elsewhere may run programs as the user of the server
    policy: str = ""  # empty: the one that was chosen last
    shadow: str = ""  # a second policy, which only watches
    user_priority: int = USER_PRIORITY
    """The highest priority that users may give their jobs, where the queue says nothing."""
    open_metrics: bool = False
    metrics_per_job: int = MAX_JOB_SERIES
    pass_env: tuple[str, ...] = ()  # variables of the server's environment that jobs inherit beside the harmless ones
    idle: IdleRules = field(default_factory=IdleRules)
    """What becomes of jobs that leave their GPUs idle, where their queue says nothing."""
    shares: Literal["bin-pack", "spread"] = "bin-pack"
    """Which cards shares of a GPU go to first: full ones, or empty ones."""
    busiest: float = 0.7  # a card gets no further sharer, while there is another place, if it would be busier than this
    over_allocate: int = 100  # percent of a GPU's compute that is promised to soft shares together
    keep: Keep = field(default_factory=Keep)  # how long jobs that are over are kept in mind
    health_log: Path | str | None = None  # the kernel log to read; None: the kernel's own, or that of the virtual GPUs
    health_rules: Path | str | None = None  # what errors of GPUs mean; None: as Batuta has it
    ranks: RankRules = field(default_factory=RankRules)
    """When ranks hold a job up, where the job itself says nothing, and what follows."""
    set_aside: bool = False  # whether folders that are not of this journal's jobs are moved out of the way
    otlp: str = ""  # where traces of cycles are sent; empty: nowhere
    log_format: LogFormat = LogFormat.JSON
    limits: LimitOptions = field(default_factory=LimitOptions)
    """What jobs may have at most, where their task says nothing."""
    open_files: int | None = None  # the limit that jobs get; set by `serve`, which raises the server's own


class Server(EngineHost):
    """Everything that `batuta up` is made of, wired together. It runs from `serve` on."""

    def __init__(
        self,
        options: UpOptions,
        state: StateDir,
        store: SqliteStore,
        mark: StateMark,
        local: LocalNodes,
        health_rules: HealthRules,
    ) -> None:
        self.options, self.state = options, state
        self.log = log = open_log(state.path / "server.log", options.log_format)
        self.keep_jobs = True  # whether jobs go on when the server ends. Only `batuta down` says no.
        self.ask_to_end: Callable[[], None] | None = None  # tells the HTTP server to end; returns at once
        self.url = ""
        self.user = account_name(os.geteuid()) or getpass.getuser()  # not $LOGNAME: jobs run as this account
        self.token = ""  # the admin's, from the end of the start on
        profile_of = partial(local_profile, options=options)
        chosen = AssemblyOptions(profile_of, DEFAULT_POLICY, options.policy, options.shadow, options.keep)
        super().__init__(store, chosen)
        assembly, world, fence = self.assembly, self.world, self.assembly.fence
        recovered = assembly.recovered
        log.info("recovered", events=recovered.seq, snapshot=recovered.snapshot_seq, jobs=world.jobs.n)
        for sentence in recovered.unusable:
            log.warning("snapshot unusable", why=sentence)
        now_s = max(time.time(), world.now_s)
        assembly.start(now_s, node_events(world, local.nodes, now_s))
        self.tenants = _open_tenants(options, state)
        if _gives_root(options):
            _check_users(world, self.user)
        for_all = self.tenants is not None
        gpu_files = state.path if self.tenants is None else self.tenants.area
        virtual = VirtualGpus(gpu_files, local.nodes, for_all=for_all) if options.virtual else None
        self.gpus = LocalGpus(gpu_files, local.devices, virtual, for_all=for_all)
        containers = ContainerRuntimes(virtual=options.virtual)
        self.backend = backend = LocalBackend(
            state.path,
            local.nodes,
            _task_reader(store, world),
            devices=local.devices,
            gpu_injector=self.gpus,
            containers=containers,
            limits=machine_limits(state.path, options.limits, options.open_files),
            on_result=store.results.stage,
            inherited=_inherited(state.path, options.pass_env, log),
            since_s=world.now_s,
            ranks=options.ranks,
            fence=fence,
            journal=store.journal.id,
            tenants=self.tenants,
        )
        backend.resume(expected_jobs(world))
        self.gpus.prepare(self._replicas_can_start, fence)
        ask = assembly.attach(backend).ask
        trials = TrialController(ask, store.tasks.get, TrialMonitor(local, virtual, backend.ranks, backend.log_path))
        next_due_s = fence.asking("trial runs", trials.next_due_s, math.inf)
        told = telemetry(fence, world, options.otlp, place="local")
        service = self.build_service(told, [("jobs", _BackendNotifier(backend))], backend.forget, next_due_s)
        service.after_step("trial runs", trials.after_step)
        self.usage = usage_watch(virtual, local, ask, fence)
        engine = EngineAccess(ask, service.reading, fence)
        sources, repair = make_sources(
            state.path, options.health_log, local, virtual, backend.log_path, believes_jobs=self.tenants is None
        )
        self.health = HealthWatch(health_rules, local.nodes, store.settings, engine, sources, RepairWorker(repair))
        backend.context.excuse = self.health.excuse
        backend.context.held_up = self.watch_stragglers(self.health.suspect).found
        self.parts = self.dependencies(
            backend,
            assembly.policy,
            profile_of,
            shutdown=self._shut_down,
            nodes=LocalNodeInfo(world, self.usage),
            node_health=self.health,
            virtual=options.virtual,
            images=containers.rules,
            # People reach the ports of jobs at this machine, under the name that the server has.
            ports_at=socket.gethostname() if options.listen in ("0.0.0.0", "::") else options.listen,
            paths=PathRules(None, Path.home(), no_mounts=why_no_views),
            user_priority=options.user_priority,
            open_metrics=options.open_metrics,
            metrics_per_job=options.metrics_per_job,
            hosts=() if options.listen == LOOPBACK else (options.listen,),
            take_number=mark.take_number,
            prove=lambda nonce: server_proof(self.token, nonce, self.url),
            peers=None if self.tenants is None else PeerAuthenticator(account_name, frozenset((0, os.geteuid()))),
            only_submitter=self.user if _gives_root(options) else None,
            web_url=lambda: self.url,
            tenants=self.tenants,
        )
        self.token = _admin_token(state, store, self.user)
        self.health.start()
        if self.usage is not None:
            self.usage.start()

    @property
    def whom_it_serves(self) -> str:
        """Who its users are, and as whom their jobs run, for people."""
        if self.options.unix_socket is not None:
            return f"for all users of this machine, at unix://{self.options.unix_socket}: each job runs as its user"
        if self.options.jobs_run_as_me:
            return f"whose jobs all run as {self.user}, whoever submits them"
        refuses = (
            "; jobs of other users are refused, and --socket PATH serves them" if _gives_root(self.options) else ""
        )
        return f"for one user: all jobs run as {self.user}{refuses}"

    def _replicas_can_start(self) -> None:
        for note in self.gpus.notes:  # what is missing
            self.log.warning("GPUs", why=note)
        self.backend.wake()

    def _shut_down(self, keep_jobs: bool) -> None:
        self.keep_jobs = keep_jobs
        if self.ask_to_end is not None:
            self.ask_to_end()

    def end(self) -> None:
        around = self.assembly.fence.around
        if self.usage is not None:
            with around("GPU use"):
                self.usage.close()
        with around("GPU health"):
            self.health.close()
        super().end()

    def own_parts(self) -> Iterable[tuple[str, Callable[[], None]]]:
        return [("jobs", lambda: self.backend.shutdown(keep_jobs=self.keep_jobs))]


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
    local = with_capacity(local, options.over_allocate, options.cpus, options.memory_gib, virtual=options.virtual)
    state = StateDir(options.home)
    state.prepare()
    if options.unix_socket is not None:
        check_unexchangeable(state.path, f"--home {state.path}", "--home /var/lib/batuta/state")
    with state.lock:
        # It is removed at a clean end: a server that finds it checks the whole journal first.
        unclean = (state.path / "server.json").exists()
        mark = StateMark(state)
        store = open_own_store(state, mark, check=unclean, strays_aside=options.set_aside)
        server = Server(options, state, store, mark, local, rules)
        try:
            yield server
        finally:
            server.end()
            with suppress(OSError):
                (state.path / "server.json").unlink()


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


def _task_reader(store: SqliteStore, world: World) -> Callable[[str], tuple[Task, Job]]:
    """What a living job runs, and what it asks for now. Only the engine's thread may ask."""

    def read(job: str) -> tuple[Task, Job]:
        try:
            text = store.tasks.get(job)
        except DamagedRowError as error:
            raise KeyError(str(error)) from error
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
            pairs = zip(world.jobs.ids, world.jobs.placements, strict=True)
            self._backend.lost(event.node, event.gpu, {job for job, placement in pairs if placement is not None})


def _admin_token(state: StateDir, store: SqliteStore, user: str) -> str:
    """The token of who started the server, in a file that only they can read."""
    token = state.read_secret()
    if token is None or store.tokens.find(token) is None:
        token = store.tokens.create(user, Role.ADMIN, time.time())
        state.write_secret(token)
    return token


def serve(options: UpOptions, ready: Callable[[Server], None] | None = None) -> int:
    """Runs a server until it is told to end; returns the exit code. Jobs go on, unless `batuta down` says no.

    `ready` is called when requests would be answered.
    """
    _check_socket(options)
    _check_listen(options)
    if options.unix_socket is not None:
        os.umask(0o022)  # jobs inherit it: a server of root's may have been started with one that opens or closes more
    options = replace(options, open_files=raise_descriptor_limit())
    with built(options) as server:
        listener = _listen(options.listen, options.port)
        listeners = [listener]
        if options.unix_socket is not None:
            listeners.append(listen_unix(Path(options.unix_socket).absolute()))
        server.url = f"http://{_host_in_url(options.listen)}:{listener.getsockname()[1]}"
        http = _HttpServer(create_app(server.parts), lambda: _now_ready(server, ready))
        server.ask_to_end = http.end
        server.service.on_death = lambda error: _engine_died(server, error)
        server.service.start()
        http.run(sockets=listeners)
        if options.unix_socket is not None:
            Path(options.unix_socket).unlink(missing_ok=True)
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
        # The second signal ends it without waiting for requests.
        call_at_signals(lambda: self.handle_exit(signal.SIGINT, None))
        yield


def _now_ready(server: Server, ready: Callable[[Server], None] | None) -> None:
    # Where the server is to be found, for commands on this machine.
    facts = {"url": server.url, "pid": os.getpid(), "started_s": server.parts.started_s}
    path = server.state.path / "server.json"
    draft = path.with_name(f".server.json.{secrets.token_hex(4)}")
    draft.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(path)
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


def _check_socket(options: UpOptions) -> None:
    """Raise InputError for a unix socket of a server that cannot start jobs as other users, or is told not to."""
    if options.unix_socket is None:
        return
    if os.geteuid() != 0:
        raise InputError.of(
            "--socket is for all users of this machine, whose jobs only root can start as theirs",
            fix="start the server as root, or leave --socket out: a server for one user needs none",
        )
    if options.jobs_run_as_me:
        raise InputError.of(
            "--socket and --jobs-run-as-me contradict each other: at the socket each user's jobs run as that user",
            fix="leave one of them out",
        )


def _open_tenants(options: UpOptions, state: StateDir) -> Tenants | None:
    """Return who jobs run as; None where all run as this user. Raises InputError where the last server knew others."""
    if options.unix_socket is not None:
        return open_area(state.path, Path(options.job_files))
    if (area := named_area(state.path)) is not None:
        raise InputError.of(
            f"the jobs of {state.path} run as their users, with files in {area}: "
            "without a socket they would be started as the server's user",
            fix=f"--socket PATH --job-files {area}, or another --home",
        )
    return None


def _check_users(world: World, user: str) -> None:
    """Raise InputError when jobs of other users are in the journal, which a server of root's would start as root."""
    others = {job.user: job.id for job in reversed(world.jobs.jobs) if job.user not in ("", user)}
    if others:
        name, job = min(others.items())
        raise InputError.of(
            f"job {job} is {name}'s, and all jobs of this server would run as {user}",
            fix="--socket PATH with another --home, so that each user's jobs run as that user; "
            "or --jobs-run-as-me, if these may run as root",
        )


def _gives_root(options: UpOptions) -> bool:
    """Whether every user's jobs would run as root, without a word that this is meant."""
    return os.geteuid() == 0 and options.unix_socket is None and not options.jobs_run_as_me


def _check_listen(options: UpOptions) -> None:
    """Raise InputError for a server that others can reach, unless its user has said what that means."""
    if options.unix_socket is not None:
        return  # jobs run as the users of their tokens
    if options.jobs_run_as_me or _is_loopback(options.listen):
        return
    raise InputError.of(
        f"--listen {options.listen} lets others reach this server, and their jobs run as {getpass.getuser()}: "
        "every caller with a token can read and change what is yours",
        fix="add --jobs-run-as-me if that is what you want, or give each user a server of their own",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port that was asked for; without one, the usual or any other."""
    if port is None:
        with suppress(InputError):
            return listen(host, DEFAULT_PORT, "")
    return listen(host, port or 0, "choose another --port or --listen")


def _host_in_url(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return LOOPBACK if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host
