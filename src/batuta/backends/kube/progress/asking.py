"""Asks the pods of a job for a checkpoint before they end: by an annotation, which the SDK sees as a file.

The kubelet shows it in the pod (see `control_volume`) within a second or two.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.progress.reports import Reports
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.spec.task_elastic import Checkpoint

DEFAULT_GRACE_S: Final = 30.0
"""That of Kubernetes."""
WRITE: Final = "checkpoint/"
ECHO_S: Final = 10.0
"""So long the informers may take to show what was written."""


class Asking:
    """One job. For a checkpoint it has as long as for its end."""

    def __init__(self, site: Site, reports: Reports) -> None:
        self._site = site
        self._reports = reports
        self._number = 0
        self._deadline_s = math.inf
        self._is_answered = False
        self._is_deaf = False
        """It was asked, and did not answer in time."""
        self._written: dict[str, float] = {}
        """By uid: pods that were told and do not show it yet; they are not told again before this time."""
        self.due_s = math.inf
        """When the time is up."""

    @property
    def is_open(self) -> bool:
        """Whether a checkpoint was asked for that is waited for."""
        return self._number > 0 and not self._is_answered

    def drop(self) -> None:
        """The pods stay, or are gone: nothing is waited for any more."""
        self._number, self._deadline_s, self.due_s, self._is_answered = 0, math.inf, math.inf, False
        self._written.clear()

    def failed(self, write: str) -> None:
        """What was thought to be written is not."""
        if write.startswith(WRITE):
            self._written.clear()

    def is_settled(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> bool:
        """Whether these pods may be ended now: they have saved, cannot, or have had their time."""
        if not self._number:
            if not self._saves_when_asked(uj):
                return True
            if not pods or any(pod.status.phase != "Running" or _is_leaving(pod) for pod in pods):
                return True
            self._begin(uj, pods, now_s)
        if self._reports.has_answered(self._number) and not self._is_answered:
            self._is_answered = True
            self._reports.checkpointed(now_s)
        if self._is_answered or now_s >= self._deadline_s:
            self._is_deaf = not self._is_answered
            self.due_s = math.inf
            return True
        self._write(uj, pods, now_s)
        self.due_s = self._deadline_s
        return False

    def _saves_when_asked(self, uj: UnifiedJob) -> bool:
        """By its annotation. Without one, an elastic job does whose script is known to use the SDK."""
        word, replicas = uj.metadata.annotations.get(names.CHECKPOINT, ""), uj.spec.replica_spec
        if word:
            return word == Checkpoint.ON_SIGNAL.value
        is_elastic = replicas.largest > replicas.min_replicas
        return is_elastic and self._reports.has_spoken and not self._is_deaf

    def _begin(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> None:
        """An operator before this one may have asked: an answer to that is one to this, too."""
        asked = max(map(_number_on, pods))
        is_new = not asked or self._reports.has_answered(asked)
        self._number = asked + 1 if is_new else asked
        self._deadline_s = now_s + _grace_s(uj)
        self._reports.asked(now_s)

    def _write(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> None:
        for pod in pods:
            meta = pod.metadata
            if _number_on(pod) < self._number and now_s >= self._written.get(meta.uid, 0.0):
                do = partial(_ask, meta.name, meta.namespace, meta.uid, self._number)
                if self._site.writes.ask(f"{uj.id}//{WRITE}{meta.uid}", do, now_s):
                    self._written[meta.uid] = now_s + ECHO_S


async def _ask(pod: str, namespace: str, uid: str, number: int, api: Api) -> None:
    body = {"metadata": {"uid": uid, "annotations": {names.CHECKPOINT_REQUEST: str(number)}}}
    try:
        await api.patch(POD, pod, body, namespace)
    except NotFound:
        return


def _number_on(pod: objects.Pod) -> int:
    text = pod.metadata.annotations.get(names.CHECKPOINT_REQUEST, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _is_leaving(pod: objects.Pod) -> bool:
    return bool(pod.metadata.deletion_timestamp)


def _grace_s(uj: UnifiedJob) -> float:
    spec = uj.spec.replica_spec.template.get("spec")
    said = spec.get("terminationGracePeriodSeconds") if isinstance(spec, dict) else None
    return float(said) if isinstance(said, int) and said >= 0 else DEFAULT_GRACE_S
