"""`batuta operator`: elects a leader, which watches the cluster, decides, and carries decisions out."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import AsyncExitStack
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from batuta.api.http_server import HttpServer
from batuta.api.responses import HttpProblem
from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.leader_election import LeaderElector, LeaseTiming
from batuta.backends.kube.kueue.setup import watched_kinds
from batuta.backends.kube.operator.informers import InformerSet
from batuta.backends.kube.operator.workqueue import Inbox, WriteWorkers
from batuta.backends.kube.operator_config import Admission, OperatorConfig
from batuta.backends.kube.progress.log_reader import LogReaders
from batuta.bootstrap.kube import OperatorOptions
from batuta.bootstrap.leader_proxy import LeaderProxy
from batuta.bootstrap.operator_api import OperatorApi, OperatorApp, operator_metrics
from batuta.bootstrap.operator_leader import Leader, current_config, health_options, recall_health
from batuta.bootstrap.operator_tls import server_tls
from batuta.bootstrap.serving import call_at_signals, listen, raise_descriptor_limit
from batuta.bootstrap.token_review import TokenReviewAuthenticator

_log = logging.getLogger("batuta.operator")


def run_operator(options: OperatorOptions, config: OperatorConfig, file: OperatorConfig) -> int:
    """Runs until it is told to end, or until another one leads; returns the exit code."""
    return asyncio.run(Operator(options, config, file).run())


class Operator:
    """One process of possibly several."""

    def __init__(self, options: OperatorOptions, config: OperatorConfig, file: OperatorConfig) -> None:
        """`file` is what the configuration file says; options of the command line may say otherwise."""
        self.options, self.config, self._file = options, config, file
        self._health = health_options(config, options.namespace)
        self._tls = server_tls(config.api.tls)
        self.leader: Leader | None = None
        self._answers: OperatorApi | None = None
        self._bearers: TokenReviewAuthenticator | None = None
        self._relay: LeaderProxy | None = None
        self._ended = asyncio.Event()
        self._leads = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        options = self.options
        call_at_signals(self.end)
        raise_descriptor_limit()
        access = await find_access(options.kubeconfig, options.context)
        front, listener = self._front()
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(Api(access))
            self._bearers = TokenReviewAuthenticator(api, self.config.api.audiences)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            own = [tasks.create_task(front.serve([listener]))]
            if self._tls is not None:
                own.append(tasks.create_task(self._tls.run(api, options.namespace)))
            if options.elect:
                elector = self._elector(api)
                port = self.config.api.port
                self._relay = LeaderProxy(api, options.namespace, port, lambda: elector.leader, self._tls)
                stack.push_async_callback(self._relay.close)
                own.append(tasks.create_task(elector.run()))
            else:
                self._leads.set()
            if await self._first(self._leads, self._ended):
                own.append(tasks.create_task(self._lead(api)))
            await self._ended.wait()
            if self._answers is not None:
                await self._answers.close()
            if self.leader is not None:
                await asyncio.to_thread(self.leader.end)
            front.should_exit = True
            for task in reversed(own[1:]):
                task.cancel()
        return self._exit_code

    def _front(self) -> tuple[HttpServer, socket.socket]:
        where = self.config.api
        app = OperatorApp(self._trouble, self._metrics, self._app, self._unready)
        front = HttpServer(app, tls=None if self._tls is None else self._tls.context)
        return front, listen(where.listen, where.port, "choose another --port")

    def _trouble(self) -> str:
        """What is wrong; empty while this process does its part, leading or waiting."""
        if self.leader is None or self._ended.is_set():
            return ""
        return "" if self.leader.service.running else "the engine does not run"

    def _unready(self) -> str:
        """Why clients could not believe this process to be an operator; empty when they can."""
        return "" if self._tls is None else self._tls.trouble

    async def _metrics(self, scope: Scope) -> str:
        """What Prometheus reads; without a token only where the configuration says so."""
        if not self.config.api.open_metrics and not await self._is_known(scope):
            raise HttpProblem(401, "metrics need the token of a user who may list UnifiedJobs")
        now = self.config if self.leader is None else self.leader.config
        return await asyncio.to_thread(operator_metrics, self.leader, now.api.metrics_per_job)

    async def _is_known(self, scope: Scope) -> bool:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or self._bearers is None:
            return False
        return await self._bearers.bearing(token.strip()) is not None

    async def _app(self) -> ASGIApp:
        """The API: only a leader has it, and others pass questions on."""
        if self._ended.is_set():
            raise HttpProblem(503, "this operator is ending")
        if self._answers is not None:
            return await self._answers.app()
        if self._relay is None or self._leads.is_set():
            raise HttpProblem(503, "this operator is starting", headers={"Retry-After": "2"})
        return self._relay

    def end(self, exit_code: int = 0) -> None:
        """Begins to end; safe to call from the event loop only."""
        self._exit_code = max(self._exit_code, exit_code)
        self._ended.set()

    def _elector(self, api: Api) -> LeaderElector:
        times = self.config.leader_election
        return LeaderElector(
            api,
            self.config.lease_name,
            self.options.namespace,
            self.options.identity or f"{socket.gethostname()}-{os.getpid()}",
            on_started=self._leads.set,
            on_stopped=self._deposed,
            timing=LeaseTiming(times.lease_duration_seconds, times.renew_deadline_seconds, times.retry_period_seconds),
        )

    def _deposed(self) -> None:
        """Another one leads: whatever this one thinks is of no use any more. It is started anew."""
        if not self._ended.is_set():
            _log.error("no longer the leader; ending")
            self.end(1)

    async def _lead(self, api: Api) -> None:
        inbox = Inbox()
        write_workers = WriteWorkers(api, inbox)
        listeners = LogReaders(api, lambda heard: inbox.put(heard, urgent=heard.is_urgent))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write_workers.run())
            tasks.create_task(listeners.run())
            await self._watching(api, inbox, tasks).start()
            config = self.config
            state = self.options.state_dir or Path(config.state_dir)
            health = None if self._health is None else await recall_health(api, self._health)
            led = await current_config(api, self.options.namespace, config, self._file)
            leader = await asyncio.to_thread(Leader, led, state, inbox, write_workers, listeners, health)
            self.leader = leader
            loop = asyncio.get_running_loop()

            def died(error: BaseException) -> None:
                loop.call_soon_threadsafe(self._engine_died, error)

            leader.service.on_death = died
            leader.service.start()
            assert self._bearers is not None
            self._answers = OperatorApi(leader, api, self.options.namespace, self._bearers)
            _log.info("leading with policy %s", leader.config.policy)

    def _watching(self, api: Api, inbox: Inbox, tasks: asyncio.TaskGroup) -> InformerSet:
        config = self.config
        files = None if config.admission is Admission.KUEUE else (self.options.namespace, config.queue_files)
        own = (self.options.namespace, config.config_map) if config.config_map else None
        return InformerSet(api, inbox, config.namespaces, tasks, watched_kinds(config), files, own)

    def _engine_died(self, error: BaseException) -> None:
        _log.error("the engine has died", exc_info=error)
        self.end(1)

    async def _first(self, wanted: asyncio.Event, other: asyncio.Event) -> bool:
        """Waits for either; whether it was the first."""
        waits = [asyncio.create_task(one.wait()) for one in (wanted, other)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        return wanted.is_set() and not other.is_set()
