"""The exchange with the training script of one job: its reports, checkpoint requests, and its result.

A checkpoint is requested by an annotation on the pods, which the kubelet shows in the pod (see
`control_volume`) within a second or two and the SDK reads as a file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import has_begun, is_over
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.jobtypes.job_type import JobType
from batuta.backends.kube.jobtypes.pod_template import LAUNCHER
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.workqueue import patch_object
from batuta.backends.kube.progress.log_lines import LogReport, LogSource, ResultReport, TrainingReport
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import Span
from batuta.core.event import JobProgressed
from batuta.core.job import Job, JobId, Progress
from batuta.engine.jobs.progress import CheckpointWatch, JobProgress, TimedReport
from batuta.engine.stragglers.rank_watch import RankWatch
from batuta.spec.problem import InputError
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_resources import RankSettings, rank_settings


class JobReports:
    """Told when runs begin and end and what is heard of them. For the engine's thread."""

    def __init__(self, job: JobId, ranks: RankWatch) -> None:
        self._progress = JobProgress(job, ranks)
        self.result: str | None = None
        """What the script gave to `batuta.sdk.result`, as JSON."""
        self.has_spoken = False
        """Whether its script is one that reports."""
        self._start: int | None = None
        """Which start of the job goes on."""
        self._spent: set[str] = set()
        """Pods of which nothing more can be heard."""

    @property
    def is_running(self) -> bool:
        """Whether a run goes on."""
        return self._start is not None

    @property
    def checkpoints(self) -> CheckpointWatch:
        return self._progress.checkpoints

    def began(self, job: Job, start: int, places: Iterable[Span], begun_s: float) -> None:
        """All members of a start run, or run at another size: since then."""
        if start != self._start:
            self._start = start
            self._spent.clear()
        held = list(places)
        nodes = [place.node for place in held]
        gpus = sum(len(place.gpus) for place in held)
        self._progress.began(job, start, gpus, set(nodes), nodes, begun_s)

    def ended(self, now_s: float) -> None:
        """The run is over, or about to be."""
        if self._start is not None:
            self._progress.ended(now_s)
        self._start = None

    def changed(self, job: Job) -> None:
        """Its user asks for something else."""
        self._progress.changed(job)

    def asked(self, now_s: float) -> None:
        """A checkpoint was asked for; what is made from now on counts."""
        self._progress.asked(now_s)

    def checkpointed(self, now_s: float) -> None:
        """There it is."""
        self._progress.checkpointed(now_s)

    def hear(self, heard: LogReport, now_s: float) -> JobProgressed | None:
        """Takes in what was said in a log; an event when it is worth one."""
        if heard.is_all:
            self._spent.add(heard.uid)
        for one in heard.said:
            if isinstance(one, ResultReport):
                self.result = one.text
        # By the clock of the node: a script may say anything, but nothing is said before it happens.
        reported = [
            TimedReport(one.report, _made_s(one, now_s)) for one in heard.said if isinstance(one, TrainingReport)
        ]
        self._progress.note(reported)
        self.has_spoken |= bool(reported)
        if not (reported or heard.is_all) or self._start is None:
            return None
        self._progress.measure(reported, now_s)
        return self._progress.news(now_s, at_last=heard.is_all)

    def is_spent(self, log: LogSource) -> bool:
        """Whether all was heard that can be heard of a pod."""
        return log.uid in self._spent

    def log_of(self, job: JobId, kind: JobType, pods: Iterable[objects.Pod]) -> LogSource | None:
        """The log that tells of the run: that of the launcher where there is one, else of replica 0."""
        if self._start is None:
            return None
        start = str(self._start)
        own = [pod for pod in pods if pod.metadata.labels.get(names.START) == start and has_begun(pod)]
        launchers = [pod for pod in own if pod.metadata.labels.get(names.ROLE) == LAUNCHER]
        pod = next(iter(launchers or [pod for pod in own if kind.replica_of(pod) == 0]), None)
        if pod is None or not pod.spec.containers:
            return None
        meta, container = pod.metadata, pod.spec.containers[0].name
        return LogSource(job, meta.namespace, meta.name, meta.uid, container, is_over(pod))


def _made_s(reported: TrainingReport, now_s: float) -> float:
    return now_s if reported.time_s is None else min(reported.time_s, now_s)


DEFAULT_GRACE_S: Final = 30.0
"""That of Kubernetes."""
WRITE: Final = "checkpoint/"
ECHO_S: Final = 10.0
"""So long the informers may take to show what was written."""


class CheckpointRequester:
    """One job. For a checkpoint it has as long as for its end."""

    def __init__(self, context: ReconcileContext, reports: JobReports) -> None:
        self._context = context
        self._reports = reports
        self._number = 0
        self._is_answered = False
        self._is_deaf = False
        """It was asked, and did not answer in time."""
        self._written: dict[str, float] = {}
        """By uid: pods that were told and do not show it yet; they are not told again before this time."""

    @property
    def is_open(self) -> bool:
        """Whether a checkpoint was asked for that is waited for."""
        return self._number > 0 and not self._is_answered

    def drop(self) -> None:
        """The pods stay, or are gone: nothing is waited for any more."""
        self._number, self._is_answered = 0, False
        self._written.clear()

    def failed(self, write: str) -> None:
        """What was thought to be written is not."""
        if write.startswith(WRITE):
            self._written.clear()

    def can_ask(self, uj: UnifiedJob, pods: Collection[objects.Pod]) -> bool:
        """Whether these pods would hear it and save: all run, and none is leaving."""
        if not pods or any(pod.status.phase != "Running" or _is_leaving(pod) for pod in pods):
            return False
        return self._saves_when_asked(uj)

    @property
    def is_asked(self) -> bool:
        """Whether a checkpoint was asked for, answered or not."""
        return self._number > 0

    def is_answered(self, now_s: float) -> bool:
        """Whether the checkpoint that was asked for is complete."""
        if self.is_open and self._reports.checkpoints.has_answered(self._number):
            self._is_answered = True
            self._reports.checkpointed(now_s)
        return self._is_answered

    def give_up(self) -> None:
        """It did not answer in time: without an annotation that says otherwise it is not asked again."""
        if self.is_asked:
            self._is_deaf = not self._is_answered

    def _saves_when_asked(self, uj: UnifiedJob) -> bool:
        """By its annotation. Without one, an elastic job does whose script is known to use the SDK."""
        word, replicas = uj.metadata.annotations.get(names.CHECKPOINT, ""), uj.spec.replica_spec
        if word:
            return word == Checkpoint.ON_SIGNAL.value
        is_elastic = replicas.largest > replicas.min_replicas
        return is_elastic and self._reports.has_spoken and not self._is_deaf

    def ask(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> None:
        """Asks for a checkpoint. An answer to a request of an operator before this one is an answer, too."""
        asked = max(map(_number_on, pods))
        is_new = not asked or self._reports.checkpoints.has_answered(asked)
        self._number = asked + 1 if is_new else asked
        self._reports.asked(now_s)
        self.write(uj, pods, now_s)

    def write(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> None:
        """Writes the request on pods that do not show it."""
        for pod in pods:
            meta = pod.metadata
            if _number_on(pod) < self._number and now_s >= self._written.get(meta.uid, 0.0):
                body = {"metadata": {"uid": meta.uid, "annotations": {names.CHECKPOINT_REQUEST: str(self._number)}}}
                do = partial(patch_object, POD, meta, body)
                if self._context.writes.ask(f"{uj.id}//{WRITE}{meta.uid}", do, now_s):
                    self._written[meta.uid] = now_s + ECHO_S


def _number_on(pod: objects.Pod) -> int:
    text = pod.metadata.annotations.get(names.CHECKPOINT_REQUEST, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _is_leaving(pod: objects.Pod) -> bool:
    return bool(pod.metadata.deletion_timestamp)


def grace_s(uj: UnifiedJob) -> float:
    """How long its pods have to end, and before that to save."""
    spec = uj.spec.replica_spec.template.get("spec")
    said = spec.get("terminationGracePeriodSeconds") if isinstance(spec, dict) else None
    return float(said) if isinstance(said, int) and said >= 0 else DEFAULT_GRACE_S


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
        self._reports = JobReports(job, self._ranks)
        self._asking = CheckpointRequester(context, self._reports)
        self._begun_s = -math.inf
        self._until_s = math.inf
        """Until when its final reports are waited for."""
        self.progress: Progress | None = None
        """The last that the World was told."""
        self.due_s = math.inf
        """When to look again at what is waited for."""

    @property
    def result(self) -> str | None:
        return self._reports.result

    @property
    def is_asking(self) -> bool:
        """Whether its pods are about to go, and save before that."""
        return self._asking.is_open

    def began(self, job: Job, start: int, places: Iterable[Span], begun_s: float) -> None:
        """All members of a start run, or run at another size: since then."""
        self._begun_s = begun_s
        self._reports.began(job, start, places, begun_s)
        self._asking.drop()
        self.due_s = self._until_s = math.inf

    def ended(self, now_s: float) -> None:
        """The run is over, and nothing that it says counts any more."""
        self._reports.ended(now_s)
        self._asking.drop()
        self.due_s = math.inf

    def stays(self) -> None:
        """The members that run now go on: nothing is asked of them."""
        self._asking.drop()
        self.due_s = math.inf

    def changed(self, job: Job) -> None:
        self._reports.changed(job)

    def failed(self, write: str) -> None:
        self._asking.failed(write)

    def listen(self, kind: JobType | None, pods: Iterable[objects.Pod]) -> None:
        """Says which log is to be heard now."""
        log = None if kind is None else self._log(kind, pods)
        self._context.listening.to(self._job, log)

    def hear(self, heard: LogReport, now_s: float, *, is_alive: bool) -> bool:
        """Takes in what was said, and tells the World; whether the job shall be looked at for it."""
        self._context.listening.count(heard)
        event = self._reports.hear(heard, now_s)
        if event is not None and is_alive:
            self.progress = event.progress
            self._context.say(event)
        saved = self._reports.checkpoints.news(now_s, at_last=heard.is_all)
        if saved is not None and is_alive:
            self._context.say(saved)
        if is_alive:
            self._tell_of_ranks(now_s)
        has_result = any(isinstance(one, ResultReport) for one in heard.said)
        return heard.is_all or has_result or self._asking.is_open

    def watch(self, labels: Mapping[str, str], now_s: float) -> float:
        """Looks whether its ranks hold it up; when to look again, even if nothing is heard until then.

        `labels` may say what the job wants to be done about it; what means nothing there is passed over.
        """
        with suppress(InputError):
            if (wishes := rank_settings(labels)) != self._wishes:
                self._wishes = wishes
                self._ranks.judge_by(self._context.listening.ranks.for_job(wishes))
        if not self._reports.is_running or self._asking.is_open:
            return math.inf
        self._tell_of_ranks(now_s)
        return self._ranks.next_look_s(now_s)

    def _tell_of_ranks(self, now_s: float) -> None:
        for found in self._ranks.look(now_s):
            self._context.listening.on_held_up(found)

    def can_save(self, uj: UnifiedJob, pods: Collection[objects.Pod]) -> bool:
        """Whether these pods would save when they are asked to, and be heard."""
        return self._context.listening.is_on and self._asking.can_ask(uj, pods)

    @property
    def is_asked(self) -> bool:
        """Whether a checkpoint was asked for, answered or not."""
        return self._asking.is_asked

    def has_saved(self, now_s: float) -> bool:
        """Whether the checkpoint that was asked for is complete."""
        return self._asking.is_answered(now_s)

    def request_checkpoint(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> None:
        self._asking.ask(uj, pods, now_s)

    def repeat_request(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> None:
        """Writes it again on pods that do not show it."""
        self._asking.write(uj, pods, now_s)

    def stop_waiting(self) -> None:
        """The pods go, whether they have saved or not."""
        self._asking.give_up()

    def has_more_to_say(self, kind: JobType, pods: Iterable[objects.Pod], now_s: float) -> bool:
        """Whether the end of the log of a run that has succeeded is still to be heard, and worth the wait."""
        is_young = now_s - self._begun_s < YOUNG_S
        if self._log(kind, pods) is None or not (self._reports.has_spoken or is_young):
            return False
        self.due_s = self._until_s = min(self._until_s, now_s + FINAL_REPORT_WAIT_S)
        return now_s < self._until_s

    def _log(self, kind: JobType, pods: Iterable[objects.Pod]) -> LogSource | None:
        """The log of which more can be heard."""
        log = self._reports.log_of(self._job, kind, pods) if self._context.listening.is_on else None
        return None if log is None or self._reports.is_spent(log) else log
