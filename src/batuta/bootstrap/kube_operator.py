"""`batuta operator`: of several, one leads; it watches the cluster, decides, and carries out."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from batuta.api.cycle_watch import CycleWatch
from batuta.backends.kube.binder import BadProfile, Binder, Cluster, Profile, profile_of
from batuta.backends.kube.binder.profile import DEFAULT_WEIGHTS
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.find import find_access
from batuta.backends.kube.client.lease import Elector, LeaseTiming
from batuta.backends.kube.kueue.desks import QuotaDesks, set_up_quota, watched_kinds
from batuta.backends.kube.operator.backend import KubeBackend
from batuta.backends.kube.operator.floor import Floor
from batuta.backends.kube.operator.inbox import Inbox
from batuta.backends.kube.operator.node_desk import NodeDesk, Used
from batuta.backends.kube.operator.nodes import NodeTeller
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.outlook import OutlookWatch
from batuta.backends.kube.operator.run import Known, Site, Timing
from batuta.backends.kube.operator.usher import Usher
from batuta.backends.kube.operator.watching import Watching
from batuta.backends.kube.operator.writes import Clerks, Writes
from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE, Admission, OperatorConfig
from batuta.backends.kube.progress.heard import Heard
from batuta.backends.kube.progress.listening import Listeners, Listening
from batuta.bootstrap import live_cadence, rules_for
from batuta.bootstrap.experience import Experience
from batuta.bootstrap.operator_front import Front, FrontServer, front_server
from batuta.core.bitsets import bits
from batuta.core.cluster import NodeName
from batuta.core.job_table import Phase
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.clock import SteadyClock
from batuta.engine.loop import Engine, Live
from batuta.engine.requests import Requests
from batuta.engine.said import Said
from batuta.engine.service import PatientJournal, Service
from batuta.spec.problem import InputError
from batuta.store.address import open_store
from batuta.store.store import Store
from batuta.store.upkeep import Upkeep

_log = logging.getLogger("batuta.operator")


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """What `batuta operator` was told."""

    config: OperatorConfig = field(default_factory=OperatorConfig)
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = "batuta-system"
    """Where the Lease is."""
    identity: str = ""
    elect: bool = True
    state_dir: Path | None = None


@dataclass(slots=True)
class Leader:
    """Everything that decides, once this operator leads."""

    service: Service
    backend: KubeBackend
    usher: Usher
    upkeep: Upkeep
    experience: Experience
    store: Store
    world: World
    cycles: CycleWatch
    listening: Listening

    def metrics(self) -> list[str]:
        """What Prometheus reads."""
        with self.service.reading() as (world, _):
            jobs, nodes = world.jobs.n, len(world.nodes.nodes)
            gpus = int(world.jobs.i("gpus").sum())
        figures = (
            ("jobs", "gauge", "Jobs that are alive.", jobs),
            ("nodes", "gauge", "Nodes with GPUs.", nodes),
            ("gpus_in_use", "gauge", "GPUs that jobs hold.", gpus),
            ("cycles_total", "counter", "Decisions made.", self.cycles.count),
            ("cycle_seconds_total", "counter", "Time spent on them.", f"{self.cycles.total_s:.6f}"),
            ("pods_bound_total", "counter", "Pods bound.", self.usher.bound),
            ("logs_wanted", "gauge", "Logs of jobs that are listened to.", self.listening.logs),
            ("reports_total", "counter", "Reports heard in logs.", self.listening.reports),
            ("reports_refused_total", "counter", "Reports refused.", self.listening.refused),
            ("engine_cpu_seconds_total", "counter", "CPU time of the engine.", f"{self.service.cpu_s:.3f}"),
        )
        lines = []
        for name, kind, text, value in figures:
            own = f"batuta_{name}"
            lines += [f"# HELP {own} {text}", f"# TYPE {own} {kind}", f"{own} {value}"]
        return lines

    def end(self) -> None:
        """Ends the engine. Jobs go on: what matters is in the cluster."""
        if self.service.stop() and self.service.failure is None:
            self.upkeep.finish(self.world)
        self.experience.finish()
        self.store.close()


def run_operator(options: OperatorOptions, ready: Callable[[Leader], None] | None = None) -> int:
    """Runs until it is told to end, or until another one leads; returns the exit code."""
    return asyncio.run(Operator(options, ready).run())


class Operator:
    """One process of possibly several."""

    def __init__(self, options: OperatorOptions, ready: Callable[[Leader], None] | None = None) -> None:
        self.options = options
        self.leader: Leader | None = None
        self._ready = ready
        self._ended = asyncio.Event()
        self._leads = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        options = self.options
        self._catch_signals()
        access = await find_access(options.kubeconfig, options.context)
        front, listener = self._front()
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(Api(access))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            own = [tasks.create_task(front.serve([listener]))]
            if options.elect:
                elector = self._elector(api)
                own.append(tasks.create_task(elector.run()))
            else:
                self._leads.set()
            if await self._first(self._leads, self._ended):
                own.append(tasks.create_task(self._lead(api)))
            await self._ended.wait()
            if self.leader is not None:
                await asyncio.to_thread(self.leader.end)
            front.should_exit = True
            for task in reversed(own[1:]):
                task.cancel()
        return self._exit_code

    def _front(self) -> tuple[FrontServer, socket.socket]:
        where = self.options.config.api
        try:
            return front_server(Front(self._trouble, self._metrics), where.listen, where.port)
        except OSError as error:
            raise InputError.of(
                f"cannot listen at {where.listen}:{where.port}: {error.strerror}", fix="choose another --port"
            ) from error

    def _trouble(self) -> str:
        """What is wrong; empty while this process does its part, leading or waiting."""
        if self.leader is None or self._ended.is_set():
            return ""
        return "" if self.leader.service.running else "the engine does not run"

    def _metrics(self) -> str:
        leads = self.leader is not None
        lines = [
            "# HELP batuta_operator_leader Whether this process leads.",
            "# TYPE batuta_operator_leader gauge",
            f"batuta_operator_leader {int(leads)}",
        ]
        if self.leader is not None:
            lines += self.leader.metrics()
        return "\n".join(lines)

    def end(self, exit_code: int = 0) -> None:
        """Begins to end; safe to call from the event loop only."""
        self._exit_code = max(self._exit_code, exit_code)
        self._ended.set()

    # -------------------------------------------------------------------------------------------- election

    def _elector(self, api: Api) -> Elector:
        times = self.options.config.leader_election
        return Elector(
            api,
            self.options.config.lease_name,
            self.options.namespace,
            self.options.identity or f"{socket.gethostname()}-{os.getpid()}",
            on_started=self._leads.set,
            on_stopped=self._deposed,
            timing=LeaseTiming(
                times.lease_duration_seconds, times.renew_deadline_seconds, times.retry_period_seconds
            ),
        )

    def _deposed(self) -> None:
        """Another one leads: whatever this one thinks is of no use any more. It is started anew."""
        if not self._ended.is_set():
            _log.error("no longer the leader; ending")
            self.end(1)

    # -------------------------------------------------------------------------------------------- leading

    async def _lead(self, api: Api) -> None:
        inbox = Inbox()
        clerks = Clerks(api, inbox)
        listeners = Listeners(api, partial(_put, inbox))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clerks.run())
            tasks.create_task(listeners.run())
            await self._watching(api, inbox, tasks).start()
            leader = await asyncio.to_thread(_build, self.options, inbox, clerks, listeners)
            self.leader = leader
            loop = asyncio.get_running_loop()

            def died(error: BaseException) -> None:
                loop.call_soon_threadsafe(self._engine_died, error)

            leader.service.on_death = died
            leader.service.start()
            _log.info("leading with policy %s", leader.world.policy or self.options.config.policy)
            if self._ready is not None:
                self._ready(leader)

    def _watching(self, api: Api, inbox: Inbox, tasks: asyncio.TaskGroup) -> Watching:
        config = self.options.config
        files = None if config.admission is Admission.KUEUE else (self.options.namespace, config.queue_files)
        return Watching(api, inbox, config.namespaces, tasks, watched_kinds(config), files)

    def _engine_died(self, error: BaseException) -> None:
        _log.error("the engine has died", exc_info=error)
        self.end(1)

    # ------------------------------------------------------------------------------------------- plumbing

    async def _first(self, wanted: asyncio.Event, other: asyncio.Event) -> bool:
        """Waits for either; whether it was the first."""
        waits = [asyncio.create_task(one.wait()) for one in (wanted, other)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        return wanted.is_set() and not other.is_set()

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.end)


def _put(inbox: Inbox, heard: Heard) -> None:
    inbox.put(heard, urgent=heard.is_urgent)


def _build(options: OperatorOptions, inbox: Inbox, clerks: Clerks, listeners: Listeners) -> Leader:
    """The World from the journal, brought up to date with what the cluster shows."""
    config = options.config
    state = options.state_dir or Path(config.state_dir)
    store = open_store(os.environ.get(JOURNAL_URL_VARIABLE) or _journal_in(state))
    recovered = store.recover()
    world = recovered.world
    clock = SteadyClock(time.time, world.now_s)
    listening = Listening(listeners.post)
    experience = Experience(store.settings)
    experience.recall(world)
    backend, usher, desks = kube_backend(world, inbox, clerks, config, clock, listening, experience)
    outlook = experience.watching(desks.watch(OutlookWatch(backend.floor)))
    guard, journal, cycles = threading.RLock(), PatientJournal(store.journal), CycleWatch(outlook)
    requests = Requests(backend.wake)
    engine = Engine(
        world,
        backend,
        rules_for(world.policy or config.policy),
        journal,
        cycles,
        live_cadence(),
        live=Live(requests, rules_for, guard),
    )
    upkeep = Upkeep(store, recovered.snapshot_seq, tell=_log.warning)

    def after_step(world: World) -> None:
        upkeep.after_step(world)
        experience.after_step(world)

    service = Service(engine, requests, journal, guard, backend.wake, after_step)
    return Leader(service, backend, usher, upkeep, experience, store, world, cycles, listening)


def _journal_in(state: Path) -> Path:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return state / "journal.db"


def kube_backend(
    world: World,
    inbox: Inbox,
    clerks: Clerks,
    config: OperatorConfig,
    clock: Callable[[], float],
    listening: Listening | None = None,
    experience: Experience | None = None,
) -> tuple[KubeBackend, Usher, QuotaDesks]:
    """What carries decisions out on a cluster, once it has looked at all that is there.

    `listening`: by whom the logs of jobs are read; without it they are not. `experience`: what is known of
    new jobs; without it nothing is.
    """
    said = Said()
    observed = Observed()
    writes = Writes(clerks.post)
    binder = Binder(Cluster(), binder_profile(config))
    timing = Timing(
        gang_timeout_s=config.gang_timeout_seconds, restart_backoff_s=config.restart_backoff_seconds
    )
    usher = Usher(binder, writes, timing)
    site = Site(
        binder.cluster,
        writes,
        observed.owners(),
        said.append if experience is None else experience.advising(said.append),
        usher.seat,
        has_node=observed.nodes.__contains__,
        timing=timing,
        past=set(world.past),
        listening=listening or Listening(),
    )
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
    teller = NodeTeller(_known_nodes(world))
    nodes = NodeDesk(site, observed, teller, config.gpu_resources, _told_of_others(world))
    floor = Floor(site, usher, observed, nodes, known, config.namespaces)
    desks = set_up_quota(floor, site, observed, config, world)
    backend = KubeBackend(floor, said, inbox, clock)
    backend.look_first()
    return backend, usher, desks


def binder_profile(config: OperatorConfig) -> Profile:
    """Batuta's plugins with the weights that the configuration gives them, or an InputError."""
    try:
        return profile_of({**DEFAULT_WEIGHTS, **config.placement.weights})
    except BadProfile as error:
        raise InputError.of(f"placement.weights: {error}") from None


def _known_nodes(world: World) -> dict[NodeName, tuple[Any, bool, bool]]:
    return {
        node.name: (node, not world.cordoned >> i & 1, not world.lost >> i & 1)
        for i, node in enumerate(world.nodes.nodes)
    }


def _told_of_others(world: World) -> dict[NodeName, Used]:
    """What the journal says of others: what they have left since must not count as theirs for ever."""
    return {
        world.nodes.nodes[i].name: Used(tuple(bits(others.gpus)), others.cpus_milli, others.memory_mib)
        for i, others in world.others.items()
    }
