"""Owners on a Kubernetes node: control groups tell the pod of a process, the kubelet who has which GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.attribution.cgroup import containers_of
from batuta.gpu.attribution.owner import Owner
from batuta.gpu.attribution.process_memo import ProcessMemo
from batuta.gpu.attribution.processes import PROC, read_control_groups


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of this node, as the API server has it."""

    uids: frozenset[str]
    """Its uid, and for a static pod the hash by which its kubelet calls it."""
    owner: Owner


class PodOwners:
    """Knows the pods of one node. They are told from another thread than that which asks."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._pods: dict[str, Owner] = {}
        self._named: dict[tuple[str, str], Owner] = {}
        self._given: dict[str, tuple[str, str]] = {}
        self._memo = ProcessMemo(self._uids, proc)

    def tell_pods(self, pods: Iterable[KnownPod]) -> None:
        """All pods of the node."""
        told = list(pods)
        with self._lock:
            self._pods = {uid: pod.owner for pod in told for uid in pod.uids}
            self._named = {(pod.owner.namespace, pod.owner.pod): pod.owner for pod in told}

    def tell_given(self, given: Mapping[str, tuple[str, str]]) -> None:
        """Namespace and name of the pod that was given a GPU, by UUID, as the kubelet says."""
        with self._lock:
            self._given = dict(given)

    def of(self, pid: int) -> Owner | None:
        uids = self._memo.of(pid) or ()
        with self._lock:
            # Of several clusters one inside the other, ours is the one whose pods the API server knows.
            return next((self._pods[uid] for uid in uids if uid in self._pods), None)

    def by_gpu(self) -> Mapping[str, Owner]:
        with self._lock:
            return {uuid: self._named[pod] for uuid, pod in self._given.items() if pod in self._named}

    def _uids(self, pid: int) -> tuple[str, ...]:
        """The pods that a process is in, the outermost first."""
        return tuple(ref.pod_uid for ref in containers_of(read_control_groups(pid, self._proc)))
