"""The exchange with the training script of one job: its reports, checkpoint requests, and its result.

A checkpoint is requested by an annotation on the pods, which the kubelet shows in the pod (see
`control_volume`) within a second or two and the SDK reads as a file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import has_begun, is_over
from batuta.backends.kube.bounded_text import read_whole
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.jobtypes.job_type import JobType
from batuta.backends.kube.jobtypes.pod_template import LAUNCHER
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.workqueue import patch_object
from batuta.backends.kube.progress.log_lines import LogReport, LogSource, ResultReport, TrainingReport
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import Span
from batuta.core.job import Job, JobId, Progress
from batuta.engine.jobs.progress import JobProgress, TimedReport
from batuta.engine.stragglers.rank_watch import RankWatch
from batuta.spec.problem import InputError
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_resources import RankSettings, rank_settings

DEFAULT_GRACE_S: Final = 30.0  # that of Kubernetes
_LONGEST_GRACE_S: Final = 2**31  # no longer than the API server lets a pod have
WRITE: Final = "checkpoint/"
ECHO_S: Final = 10.0  # so long the informers may take to show what was written
FINAL_REPORT_WAIT_S: Final = 2.0
"""A job that has succeeded is over so much later at most, if the end of its log is slow to come."""
YOUNG_S: Final = 5.0
"""In so long a script may have said nothing yet; after that it is known whether it is one that reports."""


class TrainerSession:
    """One job, through all its starts. For the engine's thread."""

    def __init__(self, context: ReconcileContext, job: JobId) -> None:
        self._context = context
        self._job = job
        self._ranks = RankWatch(job, context.listening.ranks)
        self._wishes = RankSettings()
        self._reports = JobProgress(job, self._ranks)
        self.progress: Progress | None = None  # the last that the World was told
        self.result: str | None = None  # what the script gave to `batuta.sdk.result`, as JSON
        self._has_spoken = False  # whether its script is one that reports
        self._start: int | None = None  # which start of the job goes on; None without a run
        self._begun_s = -math.inf
        self._spent: set[str] = set()  # pods of this start of which nothing more can be heard, by uid
        self._until_s = math.inf  # until when its final reports are waited for
        self.due_s = math.inf  # when to look again at what is waited for
        self._request = 0  # the number of the checkpoint that was asked for; 0 for none
        self._is_answered = False
        self._is_deaf = False  # it was asked, and did not answer in time
        self._written: dict[str, float] = {}
        """By uid: pods that were told and do not show it yet; they are not told again before this time."""

    def began(self, job: Job, start: int, places: Sequence[Span], begun_s: float) -> None:
        """All members of a start run, or run at another size: since then."""
        if start != self._start:
            self._start = start
            self._spent.clear()
        self._begun_s = begun_s
        nodes = [place.node for place in places]
        gpus = sum(len(place.gpus) for place in places)
        self._reports.began(job, start, gpus, set(nodes), nodes, begun_s)
        self.stays()
        self._until_s = math.inf

    def ended(self, now_s: float) -> None:
        """The run is over, and nothing that it says counts any more."""
        if self._start is not None:
            self._reports.ended(now_s)
        self._start = None
        self.stays()

    def stays(self) -> None:
        """The members that run now go on, or are gone: nothing is asked of them."""
        self._request, self._is_answered = 0, False
        self._written.clear()
        self.due_s = math.inf

    def changed(self, job: Job) -> None:
        """Its user asks for something else."""
        self._reports.changed(job)

    def failed(self, write: str) -> None:
        """What was thought to be written is not."""
        if write.startswith(WRITE):
            self._written.clear()

    def listen(self, kind: JobType | None, pods: Iterable[objects.Pod]) -> None:
        """Says which log is to be heard now."""
        self._context.listening.to(self._job, None if kind is None else self._log(kind, pods))

    def hear(self, heard: LogReport, now_s: float, *, is_alive: bool) -> bool:
        """Takes in what was said, and tells the World; whether the job shall be looked at for it."""
        self._context.listening.count(heard)
        if heard.is_all:
            self._spent.add(heard.uid)
        results = [one.text for one in heard.said if isinstance(one, ResultReport)]
        self.result = results[-1] if results else self.result
        # By the clock of the node: a script may say anything, but nothing is said before it happens.
        reported = [
            TimedReport(one.report, now_s if one.time_s is None else min(one.time_s, now_s))
            for one in heard.said
            if isinstance(one, TrainingReport)
        ]
        self._reports.note(reported)
        self._has_spoken |= bool(reported)
        event = None
        if (reported or heard.is_all) and self._start is not None:
            self._reports.measure(reported, now_s)
            event = self._reports.news(now_s, at_last=heard.is_all)
        saved = self._reports.checkpoints.news(now_s, at_last=heard.is_all)
        if is_alive:
            if event is not None:
                self.progress = event.progress
                self._context.say(event)
            if saved is not None:
                self._context.say(saved)
            self._tell_of_ranks(now_s)
        return heard.is_all or bool(results) or self.is_asking

    def watch(self, labels: Mapping[str, str], now_s: float) -> float:
        """Looks whether its ranks hold it up; when to look again, even if nothing is heard until then.

        `labels` may say what the job wants to be done about it; what means nothing there is passed over.
        """
        with suppress(InputError):
            if (wishes := rank_settings(labels)) != self._wishes:
                self._wishes = wishes
                self._ranks.judge_by(self._context.listening.ranks.for_job(wishes))
        if self._start is None or self.is_asking:
            return math.inf
        self._tell_of_ranks(now_s)
        return self._ranks.next_look_s(now_s)

    def _tell_of_ranks(self, now_s: float) -> None:
        for found in self._ranks.look(now_s):
            self._context.listening.on_held_up(found)

    def has_more_to_say(self, kind: JobType, pods: Iterable[objects.Pod], now_s: float) -> bool:
        """Whether the end of the log of a run that has succeeded is still to be heard, and worth the wait."""
        is_young = now_s - self._begun_s < YOUNG_S
        if self._log(kind, pods) is None or not (self._has_spoken or is_young):
            return False
        self.due_s = self._until_s = min(self._until_s, now_s + FINAL_REPORT_WAIT_S)
        return now_s < self._until_s

    def _log(self, kind: JobType, pods: Iterable[objects.Pod]) -> LogSource | None:
        """The log of the run of which more can be heard: of the launcher where there is one, else of replica 0."""
        if self._start is None or not self._context.listening.is_on:
            return None
        start = str(self._start)
        own = [pod for pod in pods if pod.metadata.labels.get(names.START) == start and has_begun(pod)]
        launchers = [pod for pod in own if pod.metadata.labels.get(names.ROLE) == LAUNCHER]
        pod = next(iter(launchers or [pod for pod in own if kind.replica_of(pod) == 0]), None)
        if pod is None or not pod.spec.containers or pod.metadata.uid in self._spent:
            return None
        meta, container = pod.metadata, pod.spec.containers[0].name
        return LogSource(self._job, meta.namespace, meta.name, meta.uid, container, is_over(pod))

    @property
    def is_asked(self) -> bool:
        """Whether a checkpoint was asked for, answered or not."""
        return self._request > 0

    @property
    def is_asking(self) -> bool:
        """Whether its pods are about to go, and save before that."""
        return self.is_asked and not self._is_answered

    def can_save(self, uj: UnifiedJob, pods: Collection[objects.Pod]) -> bool:
        """Whether these pods would hear a request, save, and be heard: all run, and none is leaving.

        By the job's annotation. Without one, an elastic job does whose script is known to use the SDK.
        """
        are_running = all(pod.status.phase == "Running" and not pod.metadata.deletion_timestamp for pod in pods)
        if not pods or not are_running or not self._context.listening.is_on:
            return False
        word, replicas = uj.metadata.annotations.get(names.CHECKPOINT, ""), uj.spec.replica_spec
        if word:
            return word == Checkpoint.ON_SIGNAL.value
        return replicas.largest > replicas.min_replicas and self._has_spoken and not self._is_deaf

    def has_saved(self, now_s: float) -> bool:
        if self.is_asking and self._reports.checkpoints.has_answered(self._request):
            self._is_answered = True
        return self._is_answered

    def request_checkpoint(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> None:
        """Asks all pods to save. An answer to a request of an operator before this one is an answer, too."""
        asked = max(map(_number_on, pods))
        is_new = not asked or self._reports.checkpoints.has_answered(asked)
        self._request = asked + 1 if is_new else asked
        self._reports.asked(now_s)
        self.repeat_request(uj, pods, now_s)

    def repeat_request(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> None:
        """Writes the request on pods that do not show it."""
        for pod in pods:
            meta = pod.metadata
            if _number_on(pod) < self._request and now_s >= self._written.get(meta.uid, 0.0):
                body = {"metadata": {"uid": meta.uid, "annotations": {names.CHECKPOINT_REQUEST: str(self._request)}}}
                do = partial(patch_object, POD, meta, body)
                if self._context.writes.ask(f"{uj.id}//{WRITE}{meta.uid}", do, now_s):
                    self._written[meta.uid] = now_s + ECHO_S

    def stop_waiting(self) -> None:
        """The pods go, whether they have saved or not. One that did not answer in time is not asked again, unless
        an annotation says otherwise.
        """
        if self.is_asked:
            self._is_deaf = not self._is_answered


def _number_on(pod: objects.Pod) -> int:
    return read_whole(pod.metadata.annotations.get(names.CHECKPOINT_REQUEST)) or 0


def grace_s(uj: UnifiedJob) -> float:
    """How long its pods have to end, and before that to save."""
    said = uj.spec.replica_spec.pod.get("terminationGracePeriodSeconds")
    return float(said) if isinstance(said, int) and 0 <= said <= _LONGEST_GRACE_S else DEFAULT_GRACE_S
