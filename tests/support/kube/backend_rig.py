"""The operator's backend on a real control plane, without an engine: a test gives the commands.

Its jobs are two UnifiedJobs of plain pods. KWOK runs them: a pod begins as soon as it is bound, ends by
itself after a while, and knows nothing of checkpoints.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.operator.informers import InformerSet
from batuta.backends.kube.operator.workqueue import Inbox, WriteWorkers
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.bootstrap import operator_leader
from batuta.core.cluster import NodeName, Placement
from batuta.core.event import Event
from batuta.core.job import Job
from batuta.core.plan import Command, Preempt, Stop
from batuta.core.world import World
from batuta.engine.ports import Backend
from tests.contract.backend_rig import Rig
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.unified import Jobs

RUN_S = 1.0
PATIENCE_S = 60.0


@contextmanager
def kube_rig(
    cluster: ControlPlane,
    namespace: str,
    node: NodeName,
    replicas: int | tuple[int, int] = (1, 2),
    gpus: int = 1,
) -> Iterator[Rig]:
    """Jobs `a` and `b` of a namespace, and a backend that sees no others; `node` is n0.

    `gpus`: of each replica.
    """
    jobs = Jobs(cluster, namespace)
    for name in ("a", "b"):
        jobs.submit(name, "Pods", replicas=replicas, gpus=gpus, pod={"runs_for": f"{RUN_S:g}s"})
    with _connected(cluster.kubeconfig_path, namespace) as (inbox, write_workers):
        clock = _Clock()
        # The wiring of `batuta operator` itself, for a World that has seen nothing yet.
        config = OperatorConfig(namespaces=[namespace])
        backend, *_ = operator_leader.kube_backend(World(), inbox, write_workers, config, clock)
        yield Rig(
            _InNamespace(backend, namespace, node),
            step_s=0.1,
            run_s=RUN_S,
            tolerance_s=RUN_S + 4.0,  # a start begins from zero, and a busy machine is late
            falls_quiet=False,
            patience_s=30.0,
            now_s=clock(),
        )


class _Clock:
    """Unix seconds, of which none is ever set back."""

    def __init__(self) -> None:
        self._began_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._began_s + time.monotonic()


class _Ended(Exception):
    """Raised among tasks to end them all."""


@contextmanager
def _connected(kubeconfig: Path, namespace: str) -> Iterator[tuple[Inbox, WriteWorkers]]:
    """Informers that have listed everything, and write_workers, on an event loop of their own."""
    inbox, up = Inbox(), Future[tuple[WriteWorkers, Callable[[], object]]]()

    async def work() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            async with Api(await find_access(kubeconfig)) as api, asyncio.TaskGroup() as tasks:
                write_workers = WriteWorkers(api, inbox)
                tasks.create_task(write_workers.run())
                async with asyncio.timeout(PATIENCE_S):
                    await InformerSet(api, inbox, [namespace], tasks).start()
                up.set_result((write_workers, lambda: loop.call_soon_threadsafe(ended.set)))
                await ended.wait()
                raise _Ended
        except* _Ended:
            pass

    with ThreadPoolExecutor(1, "kube") as thread:
        working = thread.submit(lambda: asyncio.run(work()))
        either: list[Future[Any]] = [up, working]
        wait(either, return_when=FIRST_COMPLETED)
        if not up.done():
            working.result()
        write_workers, end = up.result()
        try:
            yield inbox, write_workers
        finally:
            end()
            working.result(PATIENCE_S)


class _InNamespace:
    """A backend as the suite speaks to it: job `a` is `namespace/a`, and n0 the one node that there is."""

    def __init__(self, backend: Backend, namespace: str, node: NodeName) -> None:
        self._backend = backend
        self._prefix = f"{namespace}/"
        self._node = node

    def next_events(self, until_s: float | None) -> Sequence[Event]:
        return [self._heard(event) for event in self._backend.next_events(until_s)]

    def quiet(self) -> bool:
        return self._backend.quiet()

    def execute(self, commands: Sequence[Command], now_s: float) -> Sequence[Event]:
        done = self._backend.execute([self._told(command) for command in commands], now_s)
        return [self._heard(event) for event in done]

    def _told(self, command: Command) -> Command:
        command = replace(command, job=self._prefix + command.job)
        if isinstance(command, Preempt | Stop):
            return command
        spans = (span._replace(node=self._node) for span in command.placement.spans)
        return replace(command, placement=Placement(tuple(spans)))

    def _heard(self, event: Any) -> Event:
        """With the suite's name of the job, if it is about one."""
        match getattr(event, "job", None):
            case str(name):
                return replace(event, job=name.removeprefix(self._prefix))
            case Job() as job:
                return replace(event, job=replace(job, id=job.id.removeprefix(self._prefix)))
        return event
