"""What one job says in its logs, through all its starts: how far it is, its checkpoints, its result."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.tenant import has_begun, is_over
from batuta.backends.kube.jobtypes.job_type import JobType
from batuta.backends.kube.jobtypes.pod_parts import LAUNCHER
from batuta.backends.kube.progress.heard import Heard, LogOf
from batuta.backends.kube.progress.said import Reported, ResultGiven
from batuta.core.cluster import Span
from batuta.core.event import JobProgressed
from batuta.core.job import Job, JobId
from batuta.engine.report_meter import ReportMeter, sample_of
from batuta.engine.stragglers.rank_watch import RankWatch
from batuta.spec.progress import ProgressReport


class Reports:
    """Told when runs begin and end and what is heard of them. For the engine's thread."""

    def __init__(self, ranks: RankWatch) -> None:
        self._ranks = ranks
        self.result: str | None = None
        """What the script gave to `batuta.sdk.result`, as JSON."""
        self.has_spoken = False
        """Whether its script is one that reports."""
        self._reports: ReportMeter | None = None
        self._start: int | None = None
        """Which start of the job goes on."""
        self._spent: set[str] = set()
        """Pods of which nothing more can be heard."""
        self._answered = self._unasked = 0
        """The last request of this start that was answered; checkpoints without a number since then."""

    @property
    def is_running(self) -> bool:
        """Whether a run goes on."""
        return self._start is not None

    def began(self, job: Job, start: int, places: Iterable[Span], begun_s: float) -> None:
        """All members of a start run, or run at another size: since then."""
        if self._reports is None:
            self._reports = ReportMeter(job)
        if start != self._start:
            self._start, self._answered, self._unasked = start, 0, 0
            self._spent.clear()
        held = list(places)
        gpus, nodes = sum(len(place.gpus) for place in held), len({place.node for place in held})
        self._reports.began(begun_s, gpus, nodes)
        self._ranks.began([place.node for place in held], {place.node for place in held}, start)

    def ended(self, now_s: float) -> None:
        """The run is over, or about to be."""
        if self._start is not None and self._reports is not None:
            self._reports.ended(now_s)
        self._start = None

    def changed(self, job: Job) -> None:
        """Its user asks for something else."""
        if self._reports is not None:
            self._reports.meter.changed(job)

    def asked(self, now_s: float) -> None:
        """A checkpoint was asked for; what is made from now on counts."""
        self._unasked = 0
        if self._reports is not None:
            self._reports.meter.transitions.asked(now_s)

    def checkpointed(self, now_s: float) -> None:
        """There it is."""
        if self._reports is not None:
            self._reports.meter.transitions.checkpointed(now_s)

    def has_answered(self, request: int) -> bool:
        """Whether a request was answered: by its number, or by a checkpoint without one made since."""
        return self._answered >= request or self._unasked > 0

    def hear(self, heard: Heard, now_s: float) -> JobProgressed | None:
        """Takes in what was said in a log; an event when it is worth one."""
        if heard.is_all:
            self._spent.add(heard.uid)
        for one in heard.said:
            if isinstance(one, ResultGiven):
                self.result = one.text
            else:
                self._note_answer(one.report)
        reported = [one for one in heard.said if isinstance(one, Reported)]
        self.has_spoken |= bool(reported)
        if not (reported or heard.is_all) or self._reports is None or self._start is None:
            return None
        # By the clock of the node: a script may say anything, but nothing is said before it happens.
        for one in reported:
            self._ranks.hear(one.report, now_s)
        times = ((one.report, now_s if one.time_s is None else min(one.time_s, now_s)) for one in reported)
        self._reports.add([sample_of(report, time_s) for report, time_s in times])
        return self._reports.news(now_s, at_last=heard.is_all)

    def is_spent(self, log: LogOf) -> bool:
        """Whether all was heard that can be heard of a pod."""
        return log.uid in self._spent

    def log_of(self, job: JobId, kind: JobType, pods: Iterable[objects.Pod]) -> LogOf | None:
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
        return LogOf(job, meta.namespace, meta.name, meta.uid, container, is_over(pod))

    def _note_answer(self, report: ProgressReport) -> None:
        if not report.is_checkpoint or report.restart not in (None, self._start):
            return
        if report.request is None:
            self._unasked += 1
        else:
            self._answered = max(self._answered, report.request)
