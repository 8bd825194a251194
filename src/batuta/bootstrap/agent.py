"""`batuta agent`: measures the GPUs of a node, for the cluster, Prometheus, or the terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from batuta.bootstrap.serving import ProbesApp, call_at_signals, listen, log_plainly
from batuta.gpu.devices import NvmlUnavailable
from batuta.gpu.owners import PROC, LocalOwners, Owners, read_work
from batuta.gpu.pod_owners import POD_RESOURCES_SOCKET, PodOwners
from batuta.gpu.profiler.export import render_metrics
from batuta.gpu.profiler.profiler import Profiler, ProfilerThread, Timing
from batuta.gpu.profiler.sources import (
    DcgmReading,
    DcgmUnavailable,
    NodeSample,
    NvmlSource,
    SampleSource,
    add_dcgm,
    fetch_dcgm,
)
from batuta.gpu.profiler.usage import NodeUsage, ProgressFiles
from batuta.spec.problem import InputError, Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from batuta.bootstrap.agent_health import NodeClient

_log = logging.getLogger("batuta.agent")
_FIRST_REPORT_S = 5.0
_STUCK_S = 30.0  # a sampler that has not looked for so long is not healthy


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What `batuta agent` was told."""

    node: str = ""
    interval_s: float = 1.0
    report_every_s: float = 30.0
    listen: str = "0.0.0.0"
    metrics_port: int | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    dcgm_url: str = ""
    kubelet_socket: Path = POD_RESOURCES_SOCKET
    proc: Path = PROC
    kernel_log: Path | None = None  # where errors of GPUs are looked for; None: nowhere
    state: Path = Path("/var/lib/batuta/agent")  # keeps how far the kernel log was read

    def problems(self) -> list[Problem]:
        found = []
        if not 0.1 <= self.interval_s <= 60:
            found.append(Problem(f"--interval {self.interval_s:g} is out of range", fix="0.1 to 60 seconds"))
        if not self.interval_s <= self.report_every_s <= 3600:
            fix = "from the interval to 3600 seconds; the scheduler forgets reports after 90"
            found.append(Problem(f"--report-every {self.report_every_s:g} is out of range", fix=fix))
        if self.metrics_port is not None and not 0 < self.metrics_port < 65536:
            found.append(Problem(f"--metrics-port {self.metrics_port} is no port", fix="1 to 65535"))
        if self.kernel_log is not None:
            found += self._log_problems(self.kernel_log)
        return found

    def _log_problems(self, log: Path) -> list[Problem]:
        if not self.is_in_cluster:
            fix = "--kubeconfig FILE; on one machine: batuta up --health-log FILE"
            return [Problem("--kernel-log is read for an operator, and no cluster is named", fix=fix)]
        from batuta.bootstrap.agent_health import health_problems

        return health_problems(log, self.state)

    @property
    def name(self) -> str:
        return self.node or socket.gethostname()

    @property
    def is_in_cluster(self) -> bool:
        """Whether there is a cluster to report to."""
        named = self.kubeconfig is not None or self.context is not None
        return named or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def look_once(options: AgentOptions) -> NodeUsage:
    """Two looks, an interval apart: how much of a GPU a process uses is a difference."""
    _check(options)
    with opened_nvml() as source:
        profiler = _profiler(options, source, LocalOwners(options.proc), Timing(options.interval_s))
        profiler.sample()
        time.sleep(options.interval_s)
        profiler.sample()
        return profiler.usage()


def run_agent(options: AgentOptions) -> int:
    """Runs until it is told to end; returns the exit code."""
    _check(options)
    log_plainly()
    with opened_nvml() as source:
        return asyncio.run(Agent(options, source).run())


@contextmanager
def opened_nvml() -> Iterator[NvmlSource]:
    """NVML, or an error that says how to get along without."""
    try:
        with NvmlSource() as source:
            yield source
    except NvmlUnavailable as error:
        raise InputError.of(
            f"no NVML on this machine: {error}",
            fix="install NVIDIA's driver, or use virtual GPUs: batuta vgpu create node.vgpu, then "
            "batuta vgpu run node.vgpu -- batuta agent",
        ) from None


def _profiler(options: AgentOptions, source: SampleSource, owners: Owners, timing: Timing) -> Profiler:
    work = partial(read_work, proc=options.proc)
    return Profiler(source, owners, node=options.name, timing=timing, read_work=work)


def _check(options: AgentOptions) -> None:
    if problems := options.problems():
        raise InputError(problems)


@dataclass(slots=True)
class Agent:
    """One node's agent."""

    options: AgentOptions
    source: NvmlSource
    reports: int = 0
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _dcgm: DcgmReading | None = None
    _progress: ProgressFiles = field(default_factory=ProgressFiles)
    _local: LocalOwners = field(init=False)

    def __post_init__(self) -> None:
        self._local = LocalOwners(self.options.proc)

    async def run(self) -> int:
        options = self.options
        call_at_signals(self._ended.set)
        async with AsyncExitStack() as stack:
            client = await self._client(stack)
            owners: Owners = self._local if client is None else client.owners
            timing = Timing(options.interval_s, recent_s=max(options.report_every_s, 2 * options.interval_s))
            profiler = _profiler(options, self._look, owners, timing)
            sampling = stack.enter_context(ProfilerThread(profiler))
            if options.metrics_port is not None:
                await self._serve(stack, sampling, options.metrics_port)
            _log.info("looking at the GPUs of %s every %g s", options.name, options.interval_s)
            if client is not None and options.kernel_log is not None:
                from batuta.bootstrap.agent_health import report_health

                report_health(stack, options.kernel_log, options.state, client, sampling.usage)
            await self._report(sampling, client)
        _log.info("ended after %d reports", self.reports)
        return 0

    async def _client(self, stack: AsyncExitStack) -> NodeClient | None:
        if not self.options.is_in_cluster:
            return None
        from batuta.bootstrap.agent_health import open_node_client

        options, owners = self.options, PodOwners(self.options.proc)
        return await open_node_client(
            stack, options.kubeconfig, options.context, options.name, owners, options.kubelet_socket
        )

    def _look(self) -> NodeSample:
        return add_dcgm(self.source(), self._dcgm)

    async def _serve(self, stack: AsyncExitStack, sampling: ProfilerThread, port: int) -> None:
        """Serves metrics and probes until the stack is left."""

        async def metrics(_: object) -> str:
            usage = await asyncio.to_thread(sampling.usage)
            return render_metrics(usage, sampling.samples, sampling.failures)

        def trouble() -> str:
            late_s = time.monotonic() - sampling.sampled_s - self.options.interval_s
            return "NVML does not answer" if late_s > _STUCK_S else ""

        async def nothing() -> ASGIApp:
            from starlette.responses import PlainTextResponse

            return PlainTextResponse("not found\n", 404)

        from batuta.api.http_server import HttpServer  # only those that serve metrics need it

        listener = listen(self.options.listen, port, "choose another --metrics-port")
        server = HttpServer(ProbesApp(trouble, metrics, nothing, trouble))
        serving = asyncio.create_task(server.serve([listener]))

        async def end() -> None:
            server.should_exit = True
            await serving

        stack.push_async_callback(end)

    async def _report(self, sampling: ProfilerThread, client: NodeClient | None) -> None:
        pause_s = min(_FIRST_REPORT_S, self.options.report_every_s)
        while not await self._ends_within(pause_s):
            await self._ask_dcgm()
            usage = await asyncio.to_thread(sampling.usage)
            if client is not None:
                await client.report(usage)
            await asyncio.to_thread(self._hear_jobs, sampling, {job.job for job in usage.jobs})
            self.reports += 1
            pause_s = self.options.report_every_s

    def _hear_jobs(self, sampling: ProfilerThread, running: Collection[str]) -> None:
        """What jobs of this machine say of their progress; in a cluster the operator listens to them."""
        known = dict(self._local.progress_files)
        for job, report in self._progress.read_new({job: path for job, path in known.items() if job in running}):
            sampling.report_step(job, report)

    async def _ask_dcgm(self) -> None:
        if not self.options.dcgm_url:
            return
        try:
            self._dcgm = await asyncio.to_thread(fetch_dcgm, self.options.dcgm_url, time.time())
        except DcgmUnavailable as error:
            _log.warning("%s", error)

    async def _ends_within(self, time_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), time_s)
        return self._ended.is_set()
