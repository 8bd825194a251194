"""An agent's way to its cluster: the pods of its node come in, annotations go out."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from batuta.backends.kube import objects
from batuta.backends.kube.agent.pods import has_ended, identity_of
from batuta.backends.kube.agent.scribe import MANAGER, Scribe
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AccessError
from batuta.backends.kube.client.find import find_access
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import POD
from batuta.bootstrap.kube import check_extra
from batuta.gpu.agent.annotations import node_annotations, pod_annotations
from batuta.gpu.attribution.owner import Owner
from batuta.gpu.attribution.pod_owners import KnownPod, PodOwners
from batuta.gpu.attribution.podresources import NoKubelet, ask_kubelet
from batuta.gpu.profiler.usage import NodeUsage
from batuta.spec.problem import InputError

_log = logging.getLogger("batuta.agent")
_SYNC_WITHIN_S = 5.0


async def open_desk(
    stack: AsyncExitStack,
    kubeconfig: Path | None,
    context: str | None,
    node: str,
    owners: PodOwners,
    kubelet_socket: Path,
) -> ClusterDesk:
    """Reaches the cluster and learns which pods the node has, or says why not."""
    check_extra()
    try:
        access = await find_access(kubeconfig, context)
    except AccessError as error:
        raise InputError.of(str(error)) from None
    api = await stack.enter_async_context(Api(access, manager=MANAGER))
    desk = ClusterDesk(owners, Scribe(api, node), _informer(api, node, owners), kubelet_socket, api, node)
    watching = asyncio.create_task(desk.pods.run())
    stack.push_async_callback(cancelled, watching)
    try:
        await asyncio.wait_for(desk.pods.synced.wait(), _SYNC_WITHIN_S)
    except TimeoutError:
        _log.warning("the API server has not told the pods of %s yet: %s", node, desk.pods.failure)
    return desk


def _informer(api: Api, node: str, owners: PodOwners) -> Informer[objects.Pod]:
    def told(_: object) -> None:
        pods = [pod for pod in informer.objects.values() if not has_ended(pod)]
        owners.tell_pods(_known(pod) for pod in pods)

    informer = Informer(api, POD, told, fields=f"spec.nodeName={node}")
    return informer


def _known(pod: objects.Pod) -> KnownPod:
    found = identity_of(pod)
    return KnownPod(found.uids, Owner(found.job, found.name, found.namespace))


async def cancelled(task: asyncio.Task[None]) -> None:
    """Ends a task, and waits until it has."""
    task.cancel()
    await asyncio.wait([task])


@dataclass(slots=True)
class ClusterDesk:
    """What an agent and its cluster tell each other."""

    owners: PodOwners
    scribe: Scribe
    pods: Informer[objects.Pod]
    kubelet_socket: Path
    api: Api
    node: str
    _silent: bool = False

    async def report(self, usage: NodeUsage) -> None:
        """Writes the annotations of the node and of its pods."""
        await self._ask_kubelet()
        found = {(owner.namespace, owner.pod): texts for owner, texts in pod_annotations(usage).items()}
        await self.scribe.write(node_annotations(usage), found, list(self.pods.objects.values()))

    async def _ask_kubelet(self) -> None:
        """The second source: for GPUs whose processes cannot be seen."""
        if importlib.util.find_spec("grpc") is None or not self.kubelet_socket.exists():
            return
        try:
            self.owners.tell_given(await asyncio.to_thread(ask_kubelet, self.kubelet_socket))
            self._silent = False
        except NoKubelet as error:
            if not self._silent:
                _log.warning("%s", error)
            self._silent = True
