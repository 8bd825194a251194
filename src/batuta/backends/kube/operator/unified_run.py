"""One UnifiedJob: from what its user wrote and what the World wants to its children, and back to events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from batuta.backends.kube import names, objects
from batuta.backends.kube.jobtypes.job_type import Change, JobStatus, JobType, Outcome, Run
from batuta.backends.kube.jobtypes.job_type import Observed as Seen
from batuta.backends.kube.operator.adoption import go_on
from batuta.backends.kube.operator.children import Children, Unmakeable
from batuta.backends.kube.operator.crew import Crew
from batuta.backends.kube.operator.job_news import Herald, News
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.open_size import OpenSize
from batuta.backends.kube.operator.places import placement_from
from batuta.backends.kube.operator.pod_job import seconds
from batuta.backends.kube.operator.request import Asked, read_request
from batuta.backends.kube.operator.run import Known, Party, Seat, Site
from batuta.backends.kube.operator.unified_status import Outlook, StatusWriter, ending_of, is_finished
from batuta.backends.kube.progress.heard import Heard
from batuta.backends.kube.progress.talk import Talk
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.tolerating import tolerating
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement, Span
from batuta.core.expected import SizeChoice
from batuta.core.job import JobId, JobState
from batuta.core.wish import Wish

_BEGUN = ("Running", "Succeeded", "Failed")
_ENDS = {
    JobState.SUCCEEDED: News.COMPLETED,
    JobState.FAILED: News.FAILED,
    JobState.FAILED_SETUP: News.FAILED,
    JobState.CANCELLED: News.CANCELLED,
}


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
        self.run: Run | None = None
        self.failures = job.status.failures
        self.has_started = False
        self._site = site
        self._observed = observed
        self._asked: Asked | None = None if known is None else _asked_before(known)
        self._is_unsure = known is not None
        self._crew = Crew(job.metadata.uid)
        self._places: tuple[Span, ...] = ()
        self._stood: tuple[Span, ...] = ()
        """The places of this run when all its members had one last: it can go back there."""
        self._ran: tuple[Span, ...] = ()
        """Its places when all its members had begun last. Who came since can go without being missed."""
        self._is_gone = self._is_going = False
        self._has_vanished = False
        self._is_spent = False
        """Members of the run have been told to end: the next one is another start."""
        self._is_silent = False
        """It was finished when it was first seen: there is nothing to be said of it."""
        self._tolerations: tuple[dict[str, Any], ...] = ()
        self._refusals = 0
        self._last_size = 0
        """Replicas when it last ran, for people; 0 when it has waited since."""
        self._due_s = math.inf
        self._children = Children(site, observed)
        self._status = StatusWriter(site)
        self._herald = Herald(site)
        self._talk = Talk(site, job.id)
        self._open_size = OpenSize(site, None if known is None else known.job)

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
            self._has_vanished = True
        else:
            self.uj = job

    def vanish(self) -> None:
        """The object is gone."""
        self._has_vanished = True

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
        return self._open_size.choice

    @property
    def due_s(self) -> float:
        return self._due_s

    @property
    def replicas(self) -> int:
        """How many members it shall have."""
        return 0 if self.run is None or self.wanted is None else self.run.target

    def leaves(self, pod: objects.Pod) -> bool:
        """Whether a pod of it gives its place back soon."""
        if self.wanted is None or self.run is None or pod.metadata.deletion_timestamp or self._talk.is_asking:
            return True
        kind = self._kind
        index = None if kind is None else kind.replica_of(pod)
        is_old = pod.metadata.labels.get(names.START) != str(self.run.start)
        return is_old or (index is not None and index >= self.run.target)

    @property
    def is_booked(self) -> bool:
        """Whether the World knows it: it was understood, and is not over."""
        return self._asked is not None and not self._is_gone

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
        self.has_started = False

    def refused(self, why: str, nodes: Iterable[NodeName], now_s: float) -> None:
        """New members of a running job go, and it stays as it was; a job that was starting waits again."""
        if self._asked is None or self.run is None:
            return
        self._refusals += 1
        timing = self._site.timing
        pause_s = min(timing.backoff_s * 2 ** min(self._refusals - 1, 16), timing.longest_backoff_s)
        avoid, not_before_s = tuple(sorted(set(nodes))), now_s + pause_s
        self.outlook.cause = why
        self._herald.tell(self.uj, News.NOT_PLACED, why, now_s)
        if self._stood:
            self.run = replace(self.run, target=len(self._stood))
            self._places, self.has_started = self._stood, True
            self.wanted = placement_from(self._stood)
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
        self._due_s = math.inf
        if self.uj.spec.managed_by not in ("", names.MANAGED_BY):
            self.is_over = self._has_vanished
            return
        if self._has_vanished or self.uj.metadata.deletion_timestamp or self._is_namespace_going():
            self._go(now_s)
        elif self._is_gone or is_finished(self.uj):
            self._rest(now_s)
        elif self._hear(now_s):
            self._work(now_s)
        self._talk.listen(self._kind, self._crew.pods.values())
        if not self._has_vanished and not self._is_silent:
            self._status.write(self, now_s)
            self._due_s = min(self._due_s, self._status.due_s)

    def _hear(self, now_s: float) -> bool:
        """Tells the World what the user wants. False when that cannot be understood."""
        asked = self._pass_gate()
        self.outlook.faults = asked.faults
        if asked.job is None:
            if asked.faults:
                self._herald.tell(self.uj, News.INVALID, "; ".join(asked.faults), now_s)
            return self._asked is not None
        if self._asked is None:
            self._come(asked, now_s)
        elif asked != self._asked:
            self._tell_changes(self._asked, asked, now_s)
        self._asked = asked
        if self._is_unsure:
            self._is_unsure = False
            self._be_found(now_s)
        return True

    def _pass_gate(self) -> Asked:
        """What the World shall know of it, if somebody else has a say in that."""
        asked = read_request(self.uj, self._observed.priorities, self._observed.workload_priorities)
        if asked.job is not None:
            asked = replace(asked, job=self._open_size.settle(self.uj, asked.job))
        is_inside = self._asked is not None or bool(self._crew.pods)
        passed = self._site.gate(self.uj, asked, is_inside)
        self.outlook.waiting, self._tolerations = passed.waiting, passed.tolerations
        if passed.waiting is not None and self._asked is not None:
            return replace(passed.asked, job=self._asked.job)  # it is parked as the World knows it
        return passed.asked

    def _come(self, asked: Asked, now_s: float) -> None:
        assert asked.job is not None
        if self.id in self._site.past:
            self._site.past.discard(self.id)
            self._site.keep_result(self.id, "null")  # what another job of this name gave is not its own
            self._site.say(ev.JobForgotten(now_s, self.id))
        self._site.say(ev.JobSubmitted(now_s, asked.job, cause="kubernetes"))
        if self.size_choice is not None:
            self._herald.tell(self.uj, News.SIZE_CHOSEN, self.size_choice.sentence, now_s)
        if asked.wish is not Wish.RUN:
            self._site.say(ev.JobWished(now_s, self.id, asked.wish, cause="kubernetes"))
        self._asked = asked
        self._be_found(now_s)

    def _tell_changes(self, before: Asked, asked: Asked, now_s: float) -> None:
        assert asked.job is not None
        if asked.job != before.job:
            self._site.say(ev.JobChanged(now_s, asked.job, cause="kubernetes"))
            self._talk.changed(asked.job)
        if asked.wish is not before.wish:
            self._site.say(ev.JobWished(now_s, self.id, asked.wish, cause="kubernetes"))

    def _be_found(self, now_s: float) -> None:
        """Takes up the run that an operator before this one had begun."""
        kind = self._kind
        found = None if kind is None or self.is_ending else go_on(self.uj, kind, self._crew, self.wanted)
        if found is None:
            return
        self.run, self._places, self._stood = found.run, found.places, found.stood
        placement = placement_from(found.places)
        members = self._crew.members(kind, found.run.start).values()
        self.has_started = found.stood == found.places and all(one.status.phase in _BEGUN for one in members)
        self._ran = self._places if self.has_started else ()
        self._last_size = len(found.stood)
        if self.has_started:
            self._tell_of_start(now_s)
        if self.has_started or self.wanted != placement:
            self._site.say(ev.JobFound(now_s, self.id, placement, self.has_started, cause="kubernetes"))
        self.wanted = placement

    def _work(self, now_s: float) -> None:
        assert self._asked is not None
        assert self._asked.job is not None
        deadline_s = self._deadline_s()
        if now_s >= deadline_s:
            self._end(JobState.FAILED, "it ran longer than activeDeadlineSeconds", now_s)
            return
        self._due_s = deadline_s
        kind = self._kind
        if kind is None:
            return
        workers = () if self.wanted is None else self.wanted.workers(self._asked.job.gpus_per_replica)
        if self._keeps_members(workers, kind):
            self._talk.stays()
        elif not self._may_leave(kind, now_s):
            return
        if self.wanted is None:
            self._stop(now_s)
            return
        self._aim(workers, kind, now_s)
        assert self.run is not None
        seen = self._seen()
        status = kind.status(self.uj, self.run, seen)
        if status.outcome is not Outcome.RUNNING:
            self._judge(status, now_s)
            return
        try:
            self._children.bring(kind, self._dressed(), self.run, seen, now_s)
        except Unmakeable as error:
            self._end(JobState.FAILED_SETUP, str(error), now_s)
            return
        self.outlook.trouble = self._children.trouble
        self._due_s = min(self._due_s, self._children.due_s)
        self._take_seats(kind, workers, now_s)

    def _keeps_members(self, workers: tuple[Span, ...], kind: JobType) -> bool:
        """Whether those that run now go on when the job has these places."""
        if self.run is None or self._is_spent or not workers:
            return False
        places, common = self._places, min(len(self._places), len(workers))
        if places == workers or self._can_go_back_to(workers, kind):
            return True
        return places[:common] == workers[:common] and self._changes_in_place(kind, len(workers))

    def _may_leave(self, kind: JobType, now_s: float) -> bool:
        """Whether its members may be ended. Those that save when asked are asked first, and waited for."""
        if self.run is None or not self._ran or self._is_spent or self.is_ending:
            return True
        start = str(self.run.start)
        pods = [pod for pod in self._crew.pods.values() if pod.metadata.labels.get(names.START) == start]
        status = kind.status(self.uj, self.run, self._seen())
        if status.outcome is Outcome.SUCCEEDED and self._talk.is_asking:
            self._judge(status, now_s)  # it came to its end instead
            return False
        if status.outcome is not Outcome.RUNNING:
            return True
        settled = self._talk.may_go(self.uj, pods, now_s)
        self._due_s = min(self._due_s, self._talk.due_s)
        return settled

    def _aim(self, workers: tuple[Span, ...], kind: JobType, now_s: float) -> None:
        """Makes the run the one that is wanted: resized in place if its type can, else started anew."""
        run, places = self.run, self._places
        target = len(workers)
        if self._is_spent:
            run, self._is_spent = None, False
        if run is not None and places == workers:
            return
        common = min(len(places), target)
        if run is not None and places[:common] == workers[:common] and self._changes_in_place(kind, target):
            self.run, self._stood = replace(run, target=target), self._stood[:target]
        elif run is not None and self._can_go_back_to(workers, kind):
            self.run, self._stood = replace(run, target=target), workers
        elif run is not None and run.target == target and not self._crew.has_places(kind):
            pass  # its pods have no place yet, so another one costs nothing
        else:
            last = -1 if self.run is None else self.run.start
            start = max(self._crew.last_start(), last, self._known_start()) + 1
            self.run = Run(target, start, target, self.uj.spec.replica_spec.largest)
            self._stood = self._ran = ()
            self._talk.ended(now_s)
        self._places, self.has_started = workers, False

    def _changes_in_place(self, kind: JobType, target: int) -> bool:
        assert self.run is not None
        return bool(self._stood) and kind.change(self.uj, self.run, target) is Change.IN_PLACE

    def _can_go_back_to(self, workers: tuple[Span, ...], kind: JobType) -> bool:
        """Whether it has these places and was about to grow, and nobody who came for that has begun."""
        assert self.run is not None
        members = self._crew.members(kind, self.run.start)
        newcomers = (pod for index, pod in members.items() if index >= len(workers))
        return workers == self._ran and not any(pod.status.phase in _BEGUN for pod in newcomers)

    def _take_seats(self, kind: JobType, workers: tuple[Span, ...], now_s: float) -> None:
        """All members are there: those without a place get theirs together."""
        assert self.run is not None
        target = self.run.target
        there = self._crew.members(kind, self.run.start)
        members = {index: pod for index, pod in there.items() if index < target}
        lost = [index for index in range(len(self._stood)) if index not in members]
        if lost:
            gone = f"replica {', '.join(map(str, lost))} is gone"
            self._judge(JobStatus(outcome=Outcome.DISRUPTED, message=gone), now_s)
            return
        if self._is_led_astray(members, workers, now_s) or len(members) < target:
            return
        waiting = [Seat(pod, workers[k]) for k, pod in members.items() if not pod.spec.node_name]
        waiting += [Seat(pod, None) for pod in self._crew.helpers(kind) if not pod.spec.node_name]
        if waiting:
            key = f"{self.id}#{self.run.start}"
            priority = self._asked.job.priority if self._asked and self._asked.job else 0
            since_s = seconds(self.uj.metadata.creation_timestamp)
            self._site.seat(Party(key, self.id, tuple(waiting), priority, since_s))
        if all(pod.spec.node_name for pod in members.values()):
            self._settle(members, len(there) == target, now_s)

    def _is_led_astray(
        self, members: Mapping[int, objects.Pod], workers: tuple[Span, ...], now_s: float
    ) -> bool:
        """Whether somebody else has bound a member elsewhere; those that came with it go then."""
        astray = [
            (index, pod.spec.node_name)
            for index, pod in members.items()
            if pod.spec.node_name not in ("", workers[index].node)
        ]
        if astray:
            index, node = astray[0]
            self.refused(f"somebody else has bound replica {index} to node {node}", (), now_s)
            self._due_s = now_s  # what was decided on now is done at once
        return bool(astray)

    def _settle(self, members: Mapping[int, objects.Pod], is_exact: bool, now_s: float) -> None:
        """All have a place. It has started, or has its new size, when they run and nobody is too many."""
        assert self.run is not None
        self._stood = self._places
        if self.has_started or not is_exact or not all(p.status.phase in _BEGUN for p in members.values()):
            return
        self.has_started, self._refusals = True, 0
        self._ran, self.outlook.cause = self._places, ""
        self._tell_of_start(now_s)
        self._site.say(ev.JobStarted(now_s, self.id, cause="kubernetes"))
        self._herald.tell(self.uj, *self._news_of_start(), now_s)
        self._last_size = self.run.target

    def _tell_of_start(self, now_s: float) -> None:
        """From now on it is listened to what the run reports, which began when its last pod was started."""
        assert self.run is not None
        members = self._crew.members(self._kind, self.run.start).values()
        begun_s = max((seconds(pod.status.start_time) for pod in members), default=0.0) or now_s
        if self._asked is not None and self._asked.job is not None:
            self._talk.began(self._asked.job, self.run.start, self._places, min(begun_s, now_s))

    def _news_of_start(self) -> tuple[News, str]:
        assert self.run is not None
        target, before = self.run.target, self._last_size
        gpus = _count(target * self.uj.spec.replica_spec.gpus_per_replica, "GPU")
        nodes = ", ".join(dict.fromkeys(place.node for place in self._places))
        if before and before != target:
            return News.RESIZED, f"from {before} to {_count(target, 'replica')}, {gpus} on {nodes}"
        return News.STARTED, f"start {self.run.start} with {_count(target, 'replica')}, {gpus} on {nodes}"

    # ------------------------------------------------------------------------------------------- ends

    def _judge(self, status: JobStatus, now_s: float) -> None:
        if status.outcome is Outcome.SUCCEEDED:
            if self._has_last_words(now_s):
                return
            self._end(JobState.SUCCEEDED, status.message, now_s, status.exit_code)
            return
        self.wanted = None
        self.outlook.cause = status.message
        pause_s = 0.0
        if status.outcome is Outcome.FAILED:
            self.failures += 1
            if self.failures > self.uj.spec.backoff_limit:
                detail = f"{status.message}; it failed {_count(self.failures, 'time')}"
                self._end(JobState.FAILED, detail, now_s, status.exit_code)
                return
            pause_s = self._site.timing.pause_s(self.failures)
        self._herald.tell(self.uj, News.INTERRUPTED, status.message, now_s)
        self._site.say(
            ev.JobInterrupted(
                now_s, self.id, "kubernetes", now_s + pause_s, status.exit_code, detail=status.message
            )
        )
        self._stood = ()
        self._stop(now_s)

    def _has_last_words(self, now_s: float) -> bool:
        """Whether it is over, and the end of what it has said is still to be heard: its result, say."""
        kind = self._kind
        if kind is None or self.run is None:
            return False
        if not self._ran:
            self._ran = self._places
            self._tell_of_start(now_s)  # it was done before anybody saw it run
        has_more = self._talk.has_more_to_say(kind, self._crew.pods.values(), now_s)
        self._due_s = min(self._due_s, self._talk.due_s)
        return has_more

    def _stop(self, now_s: float) -> None:
        """Gives its places back. A job that is being ended is over when its pods are gone."""
        if self._stood and not self.is_ending:
            news = News.SUSPENDED if self.uj.spec.suspend else News.PREEMPTED
            gpus = len(self._stood) * self.uj.spec.replica_spec.gpus_per_replica
            self._herald.tell(self.uj, news, f"gave {_count(gpus, 'GPU')} back, and waits", now_s)
        self.has_started, self._last_size = False, 0
        self._stood = self._ran = ()
        self._talk.ended(now_s)
        has_places = self._crew.has_places(self._kind)
        if self.run is not None and not has_places and not self.is_ending and self._refusals:
            return  # its pods wait without a place; they serve for the next try
        self._is_spent = True
        if self._clear(now_s):
            self.run, self._places = None, ()
            if self.is_ending:
                self._end(JobState.CANCELLED, "it was cancelled", now_s)

    def _clear(self, now_s: float, keep_over: bool = False) -> bool:
        """Asks for the end of everything that holds a place; whether nothing does."""
        seen, kind = self._seen(), self._kind
        last = max(self._crew.last_start(), self._known_start(), 0)
        nobody = Run(0, last if self.run is None else self.run.start)
        try:
            if kind is None or self._has_vanished:
                self._children.delete_pods(self.uj, seen.pods, now_s)
            else:
                self._children.bring(kind, self.uj, nobody, seen, now_s, keep_over)
        except Unmakeable:
            self._children.delete_pods(self.uj, seen.pods, now_s)
        return self._children.is_clear(seen)

    def _end(self, state: JobState, detail: str, now_s: float, exit_code: int | None = None) -> None:
        self.outlook.ended(state, detail, now_s)
        self.outlook.progresses(self._talk.progress, None, now_s)  # the World forgets it with the job
        if self.result is not None:
            self._site.keep_result(self.id, self.result)
        self._site.say(ev.JobEnded(now_s, self.id, state, "kubernetes", exit_code, detail))
        self._site.past.add(self.id)
        self.wanted = None
        self._is_gone = True
        if not self._is_silent and not self._has_vanished:
            self._herald.tell(self.uj, _ENDS[state], detail or self._how_long(now_s), now_s)
        self._tidy(now_s)

    def _how_long(self, now_s: float) -> str:
        began_s = seconds(self.uj.status.start_time or "")
        return f"done {now_s - began_s:.0f} s after its first start" if began_s else "done"

    def _tidy(self, now_s: float) -> None:
        """Nobody holds a GPU for a job that is over; pods that are over too stay for those who read logs."""
        seen = self._seen()
        if self.outlook.end is not None and self.outlook.end[0] is JobState.SUCCEEDED:
            self._children.delete_pods(self.uj, seen.pods, now_s)
        else:
            self._clear(now_s, keep_over=True)

    def _rest(self, now_s: float) -> None:
        """It is finished: it is deleted in time, and what it left behind ends."""
        if self.outlook.end is None:
            self._is_silent = self._is_gone = True
            state, detail = ending_of(self.uj), self.uj.status.message
            self.outlook.ended(state, detail, now_s)
            if self._asked is not None:
                # The World still has it: another operator finished it and was killed before anybody heard.
                self._end(state, detail, now_s)
        self._tidy(now_s)
        ttl_s = self.uj.spec.ttl_seconds_after_finished
        ended_s = seconds(self.uj.status.completion_time or "")
        if ttl_s is not None and ended_s:
            self._due_s = ended_s + ttl_s
            if now_s >= self._due_s:
                self._due_s = math.inf
                self._children.delete_job(self.uj, now_s)

    def _go(self, now_s: float) -> None:
        """The object is gone or going: so are its pods, and then the job is over."""
        if self._asked is not None and not self._is_gone and not self._is_going:
            # Its pods may take long to go. Meanwhile nothing is planned for it.
            self._is_going = True
            self._site.say(ev.JobWished(now_s, self.id, Wish.CANCEL, cause="kubernetes"))
        self.wanted = None
        if not self._clear(now_s):
            return
        if self._asked is not None and not self._is_gone:
            self._end(JobState.CANCELLED, "its UnifiedJob was deleted", now_s)
        self.is_over = self._has_vanished

    # ------------------------------------------------------------------------------------------ parts

    @property
    def _kind(self) -> JobType | None:
        """Its type; None, and a fault that people see, when the operator has no such type."""
        name = self.uj.spec.job_type
        found = self._site.job_types.get(name)
        if found is None:
            self.outlook.faults = (f"spec.jobType: {self._site.job_types.why_not(name)}",)
        return found

    def _seen(self) -> Seen:
        return self._children.seen(self.uj, self._crew.pods.values())

    def _dressed(self) -> UnifiedJob:
        """The job, with a template that tolerates what the quota it uses lets it tolerate."""
        more = (*self._tolerations, *self._site.tolerations(self.id))
        return tolerating(self.uj, more) if more else self.uj

    def _is_namespace_going(self) -> bool:
        """Whether its namespace is being deleted, and everything in it sooner or later."""
        namespace = self._observed.namespaces.get(self.uj.metadata.namespace)
        return namespace is not None and bool(namespace.metadata.deletion_timestamp)

    def _known_start(self) -> int:
        return -1 if self.uj.status.run is None else self.uj.status.run.start

    def _deadline_s(self) -> float:
        limit_s = self.uj.spec.active_deadline_seconds
        began_s = seconds(self.uj.status.start_time or "")
        return began_s + limit_s if limit_s is not None and began_s else math.inf

    def live_pods(self) -> list[objects.Pod]:
        return list(self._crew.workers(self._kind).values()) if self._asked is not None else []


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _asked_before(known: Known) -> Asked:
    return Asked(known.job, Wish.PARK if known.is_parked else Wish.RUN)
