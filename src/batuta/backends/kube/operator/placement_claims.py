"""Which GPUs of a node a pod holds: what the operator wrote when it bound the pod, and nothing that others wrote.

Any tenant can create a pod with a node and the annotation `batuta.dev/gpus`, and annotate it later. The chart's
admission policy refuses that, but a cluster may do without. So the annotation is a claim. The operator believes it of
a pod that it bound itself, or found bound at its start, as far as the pod requests so many GPUs, the node has them, and
no other pod holds them. All other pods count by their requests alone: so many GPUs, no matter which.

Every part of the operator reads the annotation of the pods that `PlacementClaims.checked` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import Cluster, is_over, pod_key
from batuta.backends.kube.bounded_text import read_gpus
from batuta.backends.kube.client.informer import Change, ChangeType


@dataclass(slots=True, eq=False)
class PlacementClaims:
    """For the engine's thread; pods are checked in the order in which they are taken in."""

    _cluster: Cluster
    is_first_look: bool = True
    """Whether pods are listed that another operator may have bound; from then on this one is the only one."""

    def checked(self, change: Change[objects.Pod]) -> Change[objects.Pod]:
        """The same change, with GPUs in its annotation only where the pod is believed to hold them."""
        pod = change.object
        if names.GPUS not in pod.metadata.annotations:
            return change
        believed = ",".join(map(str, self._gpus(change)))
        if believed == pod.metadata.annotations[names.GPUS]:
            return change
        return change._replace(object=_with_gpus(pod, believed))

    def _gpus(self, change: Change[objects.Pod]) -> tuple[int, ...]:
        pod, key = change.object, pod_key(change.object)
        node = pod.spec.node_name
        if not node:
            return ()
        known = self._cluster.gpus_held(key, pod.metadata.uid, node)
        if known is not None:
            return known  # as it was bound; what was written since counts for nothing
        # Tenants can create a pod with a node. They have no right to bind one that is there.
        was_bound = self.is_first_look or is_over(pod) or _had_no_node(change)
        is_own = was_bound and pod.spec.scheduler_name == names.SCHEDULER
        # A share counts nowhere without a card: it had better be the one that the device plugin is told, too.
        return self._possible(pod, node) if is_own or self._cluster.class_of(pod).share is not None else ()

    def _possible(self, pod: objects.Pod, node: str) -> tuple[int, ...]:
        """What a pod claims, if it can be; else nothing."""
        cls, claimed = self._cluster.class_of(pod), read_gpus(pod.metadata.annotations)
        wanted = cls.gpus or int(cls.share is not None)
        if len(claimed) != wanted or not self._cluster.has_gpus(node, claimed):
            return ()
        if is_over(pod):
            return claimed  # it holds nothing any more
        others = self._cluster.holdings(node, pod_key(pod))
        # Sharers may be on one card; what is held whole is held by one pod.
        taken = {gpu for one in others for gpu in one.gpus if cls.share is None or one.share is None}
        return () if taken.intersection(claimed) else claimed


def _had_no_node(change: Change[objects.Pod]) -> bool:
    return change.did is ChangeType.MODIFIED and change.old is not None and not change.old.spec.node_name


def _with_gpus(pod: objects.Pod, gpus: str) -> objects.Pod:
    stated: Mapping[str, str] = pod.metadata.annotations
    kept = {key: text for key, text in stated.items() if key != names.GPUS}
    annotations = kept | ({names.GPUS: gpus} if gpus else {})
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))
