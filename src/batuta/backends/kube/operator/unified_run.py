"""One UnifiedJob: from what its user wrote and what the World wants to its children, and back to events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from batuta.backends.kube import names, objects
from batuta.backends.kube.jobtypes.job_type import JobStatus, JobType, Outcome, Run
from batuta.backends.kube.operator.blame import Blame
from batuta.backends.kube.operator.children import Children, Unmakeable
from batuta.backends.kube.operator.crew import Crew
from batuta.backends.kube.operator.ending import Ending, deadline_s
from batuta.backends.kube.operator.ensemble import Astray, Ensemble, Started
from batuta.backends.kube.operator.hearing import Hearing
from batuta.backends.kube.operator.job_news import Herald, News, counted
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.places import placement_from
from batuta.backends.kube.operator.run import Known, Site
from batuta.backends.kube.operator.stand import Places, Stand
from batuta.backends.kube.operator.unified_status import Outlook, StatusWriter, ending_of, is_finished
from batuta.backends.kube.progress.heard import Heard
from batuta.backends.kube.progress.talk import Talk
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement
from batuta.core.expected import SizeChoice
from batuta.core.job import Job, JobId, JobState


class UnifiedRun:
    """Level-triggered: whatever is there when it is driven, it does the next step towards what is wanted."""

    def __init__(self, site: Site, observed: Observed, job: UnifiedJob, known: Known | None = None) -> None:
        self.id: JobId = job.id
        self.wanted: Placement | None = None if known is None else known.placement
        self.is_ending = known is not None and known.is_ending
        self.is_over = False
        self.uj = job
        self.outlook = Outlook()
        """What the World thinks of it, for the status."""
        self.failures = job.status.failures
        self._site = site
        self._observed = observed
        self._crew = Crew(job.metadata.uid)
        self._stand = Stand(self._crew)
        self._children = Children(site, observed)
        self._talk = Talk(site, job.id)
        self._ensemble = Ensemble(site, self._crew, self._stand, self._children, self._talk)
        self._status = StatusWriter(site)
        self._herald = Herald(site)
        self._hearing = Hearing(site, observed, self.outlook, self._herald, known)
        self._blame = Blame(site, job.id)
        self._ending = Ending(site, self.outlook, self._herald, self._children, self._ensemble)
        self._has_looked = False
        """It was looked for a run that an operator before this one had begun."""
        self._refusals = 0
        self.due_s = math.inf
        """When it wants to be driven even if nothing happens."""

    # --------------------------------------------------------------------------------------- what is told

    def pods(self) -> Mapping[str, objects.Pod]:
        return self._crew.pods

    def see(self, pod: objects.Pod) -> None:
        self._crew.see(pod)

    def lose(self, key: str) -> None:
        self._crew.lose(key)

    def look(self, job: UnifiedJob) -> None:
        """The object has changed."""
        if job.metadata.uid != self.uj.metadata.uid:
            self._ending.has_vanished = True
        else:
            self.uj = job

    def vanish(self) -> None:
        """The object is gone."""
        self._ending.has_vanished = True

    def failed(self, write: str, why: str) -> None:
        """A write did not work, and is tried again when it may be."""
        self._children.failed(write, why)
        self._status.failed(write)
        self._talk.failed(write)

    def hear(self, heard: Heard, now_s: float) -> bool:
        """Its script has said something in the log; whether it shall be driven for that."""
        return self._talk.hear(heard, now_s, is_alive=self.is_booked)

    @property
    def result(self) -> str | None:
        """What its script has given as its result, as JSON."""
        return self._talk.result or self.uj.status.result

    @property
    def size_choice(self) -> SizeChoice | None:
        """Why it asks for the size that it does, where its user left that open."""
        return self._hearing.size_choice

    @property
    def run(self) -> Run | None:
        return self._stand.run

    @property
    def has_started(self) -> bool:
        return self._stand.has_started

    @property
    def replicas(self) -> int:
        """How many members it shall have."""
        return 0 if self.run is None or self.wanted is None else self.run.target

    def leaves(self, pod: objects.Pod) -> bool:
        """Whether a pod of it gives its place back soon."""
        if self.wanted is None or pod.metadata.deletion_timestamp or self._talk.is_asking:
            return True
        return self._stand.leaves(pod, self._kind)

    @property
    def is_booked(self) -> bool:
        """Whether the World knows it: it was understood, and is not over."""
        return self._hearing.job is not None and not self._ending.is_told

    @property
    def is_urgent(self) -> bool:
        return False

    def holds(self, key: str) -> bool:
        """The World knows of its workers; launchers have no GPUs and are placed by the binder alone."""
        pod, kind = self.pods().get(key), self._kind
        return self.is_booked and pod is not None and kind is not None and kind.replica_of(pod) is not None

    def want(self, placement: Placement | None) -> None:
        """The World has decided where it shall be; None for nowhere. It waits to hear of a start again."""
        self.wanted = placement
        self._stand.has_started = False

    def refused(self, why: str, nodes: Iterable[NodeName], now_s: float) -> None:
        """New members of a running job go, and it stays as it was; a job that was starting waits again."""
        if self._hearing.job is None or self.run is None:
            return
        self._refusals += 1
        timing = self._site.timing
        pause_s = min(timing.backoff_s * 2 ** min(self._refusals - 1, 16), timing.longest_backoff_s)
        avoid, not_before_s = tuple(sorted(set(nodes))), now_s + pause_s
        self.outlook.cause = why
        self._herald.tell(self.uj, News.NOT_PLACED, why, now_s)
        if self._stand.can_go_back(self._kind):
            self.wanted = self._stand.go_back()
            self._site.say(
                ev.JobFound(
                    now_s, self.id, self.wanted, True, not_before_s, avoid, cause="binder", detail=why
                )
            )
        else:
            self.wanted = None
            self._site.say(ev.JobInterrupted(now_s, self.id, "binder", not_before_s, detail=why, avoid=avoid))

    # ------------------------------------------------------------------------------------------- its turn

    def drive(self, now_s: float) -> None:
        self.due_s = math.inf
        ending = self._ending
        if self.uj.spec.managed_by not in ("", names.MANAGED_BY):
            self.is_over = ending.has_vanished
            return
        meta = self.uj.metadata
        if ending.has_vanished or meta.deletion_timestamp or self._observed.is_going(meta.namespace):
            self._go(now_s)
        elif ending.is_told or is_finished(self.uj):
            self._rest(now_s)
        elif self._hear(now_s):
            self._work(now_s)
        self._talk.listen(self._kind, self._crew.pods.values())
        self.due_s = min(self.due_s, self._talk.watch(meta.labels, now_s))
        if not ending.has_vanished and not ending.is_silent:
            self._status.write(self, now_s)
            self.due_s = min(self.due_s, self._status.due_s)

    def _hear(self, now_s: float) -> bool:
        """Listens to the user; whether there is something to be done."""
        before = self._hearing.job
        if not self._hearing.hear(self.uj, bool(self._crew.pods), now_s):
            return before is not None
        job = self._hearing.job
        assert job is not None
        if job != before:
            self._talk.changed(job)
        if not self._has_looked:
            self._has_looked = True
            self._be_found(job, now_s)
        return True

    def _be_found(self, job: Job, now_s: float) -> None:
        """Takes up the run that an operator before this one had begun."""
        kind = self._kind
        if kind is None or self.is_ending:
            return
        found = self._ensemble.take_up(self.uj, kind, job, self.wanted, now_s)
        if found is None:
            return
        self._herald.found(len(found.stood))
        placement = placement_from(found.places)
        if self.has_started or self.wanted != placement:
            self._site.say(ev.JobFound(now_s, self.id, placement, self.has_started, cause="kubernetes"))
        self.wanted = placement

    def _work(self, now_s: float) -> None:
        """Brings it on towards what the World wants."""
        job, kind, latest_s = self._hearing.job, self._kind, deadline_s(self.uj)
        if now_s >= latest_s:
            self._end(JobState.FAILED, "it ran longer than activeDeadlineSeconds", now_s)
            return
        self.due_s = latest_s
        if job is None or kind is None:
            return
        workers = () if self.wanted is None else self.wanted.workers(job.gpus_per_replica)
        busy = self._ensemble.detain(self.uj, kind, workers, self.is_ending, now_s)
        if busy is not None:
            self._judge(busy, job, kind, now_s)
        elif self.wanted is None:
            self._stop(kind, now_s)
        else:
            self._bring(job, kind, workers, now_s)
        self.due_s = min(self.due_s, self._ensemble.due_s)

    def _bring(self, job: Job, kind: JobType, workers: Places, now_s: float) -> None:
        try:
            became = self._ensemble.bring(self.uj, kind, job, workers, self._hearing.dressed(self.uj), now_s)
        except Unmakeable as error:
            self._end(JobState.FAILED_SETUP, str(error), now_s)
            return
        self.outlook.trouble = self._ensemble.trouble
        if self.run is not None:
            self._blame.begins(self.run.start, now_s)
        match became:
            case Started():
                self._refusals, self.outlook.cause = 0, ""
                self._site.say(ev.JobStarted(now_s, self.id, cause="kubernetes"))
                self._herald.started(self.uj, became.run, became.places, now_s)
            case Astray(replica, node):
                self.refused(f"somebody else has bound replica {replica} to node {node}", (), now_s)
                self.due_s = now_s  # what was decided on now is done at once
            case JobStatus():
                self._judge(became, job, kind, now_s)

    def _judge(self, status: JobStatus, job: Job, kind: JobType, now_s: float) -> None:
        """A run that is over is the end of the job, or it waits for another start."""
        if status.outcome is Outcome.RUNNING:
            return
        if status.outcome is Outcome.SUCCEEDED:
            if not self._ensemble.has_last_words(kind, job, now_s):
                self._end(JobState.SUCCEEDED, status.message, now_s, status.exit_code)
            return
        if status.outcome is Outcome.FAILED:
            excuse = self._blame.excuse(now_s)
            if excuse is None:
                self.due_s = min(self.due_s, self._blame.due_s)
                return
            if excuse:
                status = replace(status, outcome=Outcome.DISRUPTED, message=f"{status.message} ({excuse})")
        self.wanted = None
        self.outlook.cause = status.message
        pause_s = 0.0
        if status.outcome is Outcome.FAILED:
            self.failures += 1
            if self.failures > self.uj.spec.backoff_limit:
                detail = f"{status.message}; it failed {counted(self.failures, 'time')}"
                self._end(JobState.FAILED, detail, now_s, status.exit_code)
                return
            pause_s = self._site.timing.pause_s(self.failures)
        self._herald.tell(self.uj, News.INTERRUPTED, status.message, now_s)
        self._site.say(
            ev.JobInterrupted(
                now_s, self.id, "kubernetes", now_s + pause_s, status.exit_code, detail=status.message
            )
        )
        self._stand.leave()
        self._stop(kind, now_s)

    def _stop(self, kind: JobType, now_s: float) -> None:
        """Gives its places back. A job that is being ended is over when its pods are gone."""
        self._herald.stopped(self.uj, 0 if self.is_ending else len(self._stand.stood), now_s)
        keep_waiting = self._refusals > 0 and not self.is_ending
        is_clear = self._ensemble.stop(self.uj, kind, keep_waiting, now_s)
        if is_clear and self.is_ending:
            self._end(JobState.CANCELLED, "it was cancelled", now_s)

    # ---------------------------------------------------------------------------------------------- its end

    def _end(self, state: JobState, detail: str, now_s: float, exit_code: int | None = None) -> None:
        self.wanted = None
        self.outlook.progresses(self._talk.progress, None, now_s)  # the World forgets it with the job
        self._ending.tell(self.uj, state, detail, exit_code, self.result, now_s)
        self._ending.tidy(self.uj, self._kind, now_s)

    def _rest(self, now_s: float) -> None:
        """It is finished."""
        if self.outlook.end is None:
            self._ending.find(self.uj, now_s)
            if self._hearing.job is not None:
                # The World still has it: another operator finished it and was killed before anybody heard.
                self._end(ending_of(self.uj), self.uj.status.message, now_s)
        self.due_s = self._ending.rest(self.uj, self._kind, now_s)

    def _go(self, now_s: float) -> None:
        """The object is gone or going: so are its pods, and then the job is over."""
        has_vanished = self._ending.has_vanished
        if self.is_booked:
            self._ending.announce(self.uj, now_s)
        self.wanted = None
        if self._ensemble.clear(self.uj, None if has_vanished else self._kind, now_s):
            if self.is_booked:
                self._end(JobState.CANCELLED, "its UnifiedJob was deleted", now_s)
            self.is_over = has_vanished

    # ------------------------------------------------------------------------------------------------ parts

    @property
    def _kind(self) -> JobType | None:
        """Its type; None, and a fault that people see, when the operator has no such type."""
        name = self.uj.spec.job_type
        found = self._site.job_types.get(name)
        if found is None:
            self.outlook.faults = (f"spec.jobType: {self._site.job_types.why_not(name)}",)
        return found

    def live_pods(self) -> list[objects.Pod]:
        """Its workers that are not over, once the World knows it."""
        return list(self._crew.workers(self._kind).values()) if self._hearing.job is not None else []
