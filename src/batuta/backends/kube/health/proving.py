"""Burn-ins as pods: begun when nobody else has the GPUs, watched, and cleared away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.card_facts import cards_of
from batuta.backends.kube.binder.cards import gpu_indices
from batuta.backends.kube.binder.requests import pod_requests
from batuta.backends.kube.binder.tenant import is_over
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.health.burn_in import Attempt, BurnInOptions, Outcome, burn_in_pod, outcome_of
from batuta.backends.kube.operator.nodes import count
from batuta.backends.kube.operator.pod_writes import delete_pod
from batuta.backends.kube.operator.writes import Doing
from batuta.core.cluster import NodeName
from batuta.core.health import HealthBook
from batuta.core.health_record import WHOLE_NODE, Order, State, Target

_log = logging.getLogger(__name__)
_SHARES: Final = (names.SHARE_MEMORY, names.SHARE_COMPUTE)


class Proving:
    """Level-triggered: a target that is to be burnt in has one pod, and nothing else has."""

    def __init__(
        self,
        options: BurnInOptions,
        gpu_resources: Sequence[str],
        nodes: Mapping[str, objects.Node],
        guests: Callable[[NodeName], Iterable[objects.Pod]],
        ask: Callable[[str, Doing, float], bool],
    ) -> None:
        """`guests`: the pods that are on a node."""
        self._options = options
        self._gpu_resources = tuple(gpu_resources)
        self._nodes = nodes
        self._guests = guests
        self._ask = ask
        self._pods: dict[str, objects.Pod] = {}
        """Burn-ins, by mark."""
        self._warned = False

    def see(self, pod: objects.Pod, is_gone: bool) -> bool:
        """A pod has come, changed or gone; whether it is a burn-in."""
        mark = pod.metadata.labels.get(names.BURN_IN)
        if mark is None or pod.metadata.namespace != self._options.namespace:
            return False
        if is_gone:
            self._pods.pop(mark, None)
        else:
            self._pods[mark] = pod
        return True

    def conclude(self, book: HealthBook, now_s: float) -> list[Order]:
        """Tells the book of burn-ins that are over."""
        orders: list[Order] = []
        for attempt in _attempts(book):
            pod = self._pods.get(attempt.mark)
            outcome, detail = (Outcome.UNDER_WAY, "") if pod is None else outcome_of(pod)
            if outcome in {Outcome.PASSED, Outcome.FAILED}:
                orders += book.burnt_in(attempt.target, outcome is Outcome.PASSED, detail, now_s)
        return orders

    def drive(self, book: HealthBook, now_s: float) -> None:
        """Begins what is to begin, and clears away what has said all it had to say."""
        wanted = {attempt.mark: attempt for attempt in _attempts(book)}
        for mark, pod in list(self._pods.items()):
            again = outcome_of(pod)[0] is Outcome.AGAIN
            if (mark not in wanted or again) and not pod.metadata.deletion_timestamp:
                meta = pod.metadata
                do = partial(delete_pod, name=meta.name, namespace=meta.namespace, uid=meta.uid)
                self._ask(f"health//delete/{meta.uid}", do, now_s)
        for mark, attempt in wanted.items():
            if mark not in self._pods:
                self._begin(attempt, now_s)

    def _begin(self, attempt: Attempt, now_s: float) -> None:
        node = self._nodes.get(attempt.target.node)
        if node is None or not _is_ready(node) or self._in_use(attempt.target):
            return
        if not self._options.image:
            if not self._warned:
                _log.warning("%s cannot be burnt in: health.burnIn.image is not set", attempt.target)
            self._warned = True
            return
        allocatable = node.status.allocatable
        resource = next((name for name in self._gpu_resources if count(allocatable, name)), "")
        gpus = count(allocatable, resource) if resource else len(cards_of(node))
        body = burn_in_pod(self._options, attempt, resource, gpus)
        self._ask(f"health//burn-in/{attempt.mark}", partial(_create, body), now_s)

    def _in_use(self, target: Target) -> bool:
        """Whether somebody has the GPUs that would be tested: pods of others stay where they are."""
        for pod in self._guests(target.node):
            if is_over(pod) or names.BURN_IN in pod.metadata.labels:
                continue
            asked = pod_requests(pod)
            if not any(asked.get(name) for name in (*self._gpu_resources, *_SHARES)):
                continue
            given = gpu_indices(pod.metadata.annotations)
            if target.gpu == WHOLE_NODE or not given or target.gpu in given:
                return True
        return False


def _attempts(book: HealthBook) -> Iterator[Attempt]:
    for target, record in sorted(book.records.items()):
        if record.state is State.BURN_IN and not record.held:
            yield Attempt(target, record.since_s)


def _is_ready(node: objects.Node) -> bool:
    return next((one.status for one in node.status.conditions if one.type == "Ready"), "True") == "True"


async def _create(body: dict[str, Any], api: Api) -> None:
    try:
        await api.create(POD, body, body["metadata"]["namespace"])
    except AlreadyExists:
        return
