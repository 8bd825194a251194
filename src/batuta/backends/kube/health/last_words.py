"""What pods of jobs said before they failed, as their kubelets kept it, for the rules of the table `log`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from batuta.backends.kube import objects
from batuta.backends.kube.binder.cards import gpu_indices
from batuta.backends.kube.health.memory import Memory
from batuta.backends.kube.health.tenants import Tenants
from batuta.backends.kube.jobtypes.pod_status import last_words
from batuta.core.cluster import Span
from batuta.core.health_record import Order
from batuta.core.health_rules import Finding
from batuta.core.health_words import findings_in

_MOST_HEEDED: Final = 1_000
_LONGEST: Final = 1_000


class LastWords:
    """Told of pods, it listens once to each that has failed. For the engine's thread."""

    def __init__(self, tenants: Tenants, counted: Callable[[Finding], None]) -> None:
        """`counted` is told of each finding that goes to the book."""
        self._tenants = tenants
        self._counted = counted
        self._failed: list[objects.Pod] = []

    def see(self, pod: objects.Pod) -> bool:
        """A pod has come or changed; whether it has something to say."""
        speaks = pod.status.phase == "Failed" and bool(pod.spec.node_name) and bool(last_words(pod))
        if speaks:
            self._failed.append(pod)
        return speaks

    def hear(self, memory: Memory, now_s: float) -> list[Order]:
        """What the book orders because of what was said."""
        orders: list[Order] = []
        failed, self._failed = self._failed, []
        for pod in failed:
            job, uid = self._tenants.owner(pod), pod.metadata.uid
            if job is None or uid in memory.heeded:
                continue
            worker = Span(pod.spec.node_name, gpu_indices(pod.metadata.annotations))
            lines = [line[:_LONGEST] for line in last_words(pod).splitlines()]
            for finding in findings_in(memory.book.rules, lines, worker, job, now_s):
                memory.heeded[uid] = now_s
                self._counted(finding)
                orders += memory.book.found(finding)
        memory.heeded = dict(list(memory.heeded.items())[-_MOST_HEEDED:])
        return orders
