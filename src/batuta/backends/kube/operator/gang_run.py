"""Pods without a UnifiedJob: a rigid job of the World, bound together when the World says where."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from batuta.backends.kube import objects
from batuta.backends.kube.binder.tenant import pod_key
from batuta.backends.kube.operator.gang_notice import GangNotice
from batuta.backends.kube.operator.gang_pods import GangPods
from batuta.backends.kube.operator.gangs import GangId
from batuta.backends.kube.operator.open_seats import OpenSeats
from batuta.backends.kube.operator.places import placement_from, seat
from batuta.backends.kube.operator.pod_job import job_of
from batuta.backends.kube.operator.pod_writes import delete_pod
from batuta.backends.kube.operator.run import Known, Party, Seat, Site
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement, Span
from batuta.core.job import Job, JobId, JobState
from batuta.core.wish import Wish


class GangRun:
    """A gang, or one pod. Unlike pods, and pods without GPUs, get seats from the binder alone.

    So do those that are missing in a gang of which a part is bound, though nobody knows of a plan for it. A
    pod that is bound cannot be taken back without killing it: the World has such a gang parked, and counts
    what it holds as used by others, until it is whole.
    """

    __slots__ = (
        "_extra",
        "_has_started",
        "_is_unsure",
        "_job",
        "_notice",
        "_open_seats",
        "_parked_s",
        "_pods",
        "_site",
        "due_s",
        "id",
        "is_ending",
        "is_over",
        "wanted",
    )

    def __init__(self, site: Site, gang: GangId, known: Known | None = None) -> None:
        self.id: JobId = str(gang)
        self.wanted: Placement | None = None if known is None else known.placement
        self.is_ending = known is not None and known.is_ending
        self.is_over = False
        self._site = site
        self._pods = GangPods(gang, site.owners, site.has_node)
        self._notice = GangNotice(site, self.id)
        self._open_seats = OpenSeats(site, self.id)
        self._job = None if known is None else known.job
        self._is_unsure = known is not None
        self._parked_s: float | None = None
        """Since when the World has it parked; None while it plans for it."""
        self._extra: set[str] = set()
        """Pods that came on top of the members that the World knows, by key."""
        self._has_started = False
        self.due_s = math.inf

    # --------------------------------------------------------------------------------------- what is told

    def pods(self) -> Mapping[str, objects.Pod]:
        return self._pods.by_key

    def see(self, pod: objects.Pod) -> None:
        self._pods.by_key[pod_key(pod)] = pod

    def lose(self, key: str) -> None:
        self._pods.by_key.pop(key, None)
        self._extra.discard(key)

    def want(self, placement: Placement | None) -> None:
        """The World has decided where it shall be; None for nowhere."""
        self.wanted = placement
        self._has_started = False

    def refused(self, why: str, nodes: Iterable[NodeName], now_s: float) -> None:
        """The others wait again. If some have their seats by now, those are kept, and the gang made whole."""
        self._open_seats.back_off(now_s)
        self._notice.refusal = why
        if self._job is None or self._parked_s is not None or self._has_started:
            return
        self.wanted = None
        if self._pods.seated():
            self._park(why, now_s)
            return
        avoid, not_before_s = tuple(sorted(set(nodes))), self._open_seats.not_before_s
        self._site.say(ev.JobInterrupted(now_s, self.id, "binder", not_before_s, detail=why, avoid=avoid))

    def leaves(self, pod: objects.Pod) -> bool:
        """Whether a pod of it gives its place back soon."""
        return self.is_booked and self.wanted is None

    def waits(self, why: str) -> bool:
        """It waits, and this is why; whether that is news."""
        return self._notice.set(why)

    @property
    def is_booked(self) -> bool:
        """Whether what it holds is in the World's books under its name."""
        return self._job is not None and self._parked_s is None

    def holds(self, key: str) -> bool:
        """Whether that is so for one of its pods."""
        return self.is_booked and key not in self._extra

    @property
    def is_urgent(self) -> bool:
        """A part of it holds GPUs and waits for the others."""
        return self._open_seats.is_partly_bound

    # ------------------------------------------------------------------------------------------- its turn

    def drive(self, now_s: float) -> None:
        self.due_s = math.inf
        staying = self._pods.staying()
        if self._job is None:
            self._come(staying, now_s)
        elif end := self._pods.end(self.is_ending):
            self._leave(end, now_s)
        elif not staying:
            self._park("its pods are gone", now_s)
        else:
            self._give_up_lost(staying, now_s)
            if self._is_unsure:
                self._take_up(self._job, now_s)
            if self._parked_s is not None:
                self._become_whole(self._job, staying, now_s)
            elif self.wanted is None:
                self._clear(staying, now_s)
            else:
                self._take_seats(self._job, self.wanted, staying, now_s)

    def _come(self, staying: Sequence[objects.Pod], now_s: float) -> None:
        """Becomes a job of the World once all members are there."""
        if not staying:
            self.is_over = not self._pods.alive()
            return
        first, seated = staying[0], self._pods.seated()
        size = self._pods.size(first)
        if any(pod.spec.scheduling_gates for pod in staying):
            return
        if not seated and (size is None or len(staying) < size):
            self._look_again(self._notice.tell_missing(size, staying, now_s))
            return
        cls = self._site.cluster.class_of(first)
        alike = all(self._site.cluster.class_of(pod) is cls for pod in staying)
        unclear = size is None or len(staying) < size or any(not span.gpus for span in seated.values())
        if not alike or not (cls.gpus or cls.share) or (seated and unclear):
            # Unlike, without GPUs, partly over, or bound by somebody else: no job that the World can plan.
            self._open_seats.note_partly_bound(bool(seated) and len(seated) < len(staying), now_s)
            self._look_again(self._open_seats.ask(self.id, staying, now_s))
            self._look_again(self._notice.tell(staying, now_s))
            return
        assert size is not None
        self._job = job_of(self.id, first, cls, max(size, len(seated)))
        if self.id in self._site.past:
            self._site.past.discard(self.id)
            self._site.say(ev.JobForgotten(now_s, self.id))
        self._site.say(ev.JobSubmitted(now_s, self._job, cause="kubernetes"))
        self._notice.drop()
        self._take_up(self._job, now_s)
        if self._parked_s is not None:
            self._become_whole(self._job, staying, now_s)

    def _take_up(self, job: Job, now_s: float) -> None:
        """Tells the World of seats that were taken before it looked."""
        self._is_unsure = False
        seated = self._pods.seated()
        if not seated:
            return
        members = job.size // job.gpus_per_replica
        if self.wanted is not None:
            seating = seat(seated, self.wanted.workers(job.gpus_per_replica))
            if not seating.free or not seating.leave:
                # As planned, if not all of them yet; whoever sits elsewhere came on top.
                self._extra.update(seating.leave)
                if not seating.free:
                    self._be_found(self.wanted, seating.stay, now_s)
                return
        if len(seated) >= members:
            self._sit_down(members, seated, now_s)
        else:
            self._park("a part of its pods is bound", now_s)

    def _sit_down(self, members: int, seated: Mapping[str, Span], now_s: float) -> None:
        keys = list(seated)
        self._extra = set(keys[members:])
        self._be_found(placement_from([seated[key] for key in keys[:members]]), keys[:members], now_s)

    def _be_found(self, placement: Placement, pods: Iterable[str], now_s: float) -> None:
        self.wanted = placement
        by_key = self._pods.by_key
        self._has_started = all(by_key[key].status.phase == "Running" for key in pods)
        self._site.say(ev.JobFound(now_s, self.id, placement, self._has_started, cause="kubernetes"))

    # --------------------------------------------------------------------------------- apart from the World

    def _park(self, why: str, now_s: float) -> None:
        """There is nothing to plan: no member is left that could run, or those that run cannot be moved."""
        if self._parked_s is None:
            self._parked_s, self.wanted = now_s, None
            self._site.say(ev.JobInterrupted(now_s, self.id, "kubernetes", detail=why))
            self._site.say(ev.JobWished(now_s, self.id, Wish.PARK, cause="kubernetes"))

    def _become_whole(self, job: Job, staying: Sequence[objects.Pod], now_s: float) -> None:
        """Gets seats for those that are missing; the World plans again when all or none have one."""
        assert self._parked_s is not None
        members, seated = job.size // job.gpus_per_replica, self._pods.seated()
        lasting = self._pods.lasting(members) or members
        self._open_seats.note_partly_bound(0 < len(seated) < lasting, now_s)
        if len(seated) >= lasting or (not seated and len(staying) >= lasting):
            self._parked_s = None
            self._site.say(ev.JobWished(now_s, self.id, Wish.RUN, cause="kubernetes"))
            if seated:
                self._ask_for(lasting, job, now_s)
                self._sit_down(lasting, seated, now_s)
            return
        late_s = self._parked_s + self._site.timing.gang_timeout_s
        if seated and now_s >= late_s and self._pods.are_made_anew():
            for key in seated:
                self._delete(self._pods.by_key[key], now_s)
            return
        self.due_s = late_s if now_s < late_s else math.inf
        if seated and len(staying) >= lasting:
            self._look_again(self._open_seats.ask(self.id, staying, now_s))
        self._look_again(self._notice.tell(staying, now_s))

    # ------------------------------------------------------------------------------------- as the World says

    def _take_seats(self, job: Job, wanted: Placement, staying: Sequence[objects.Pod], now_s: float) -> None:
        workers = wanted.workers(job.gpus_per_replica)
        seated = {key: span for key, span in self._pods.seated().items() if key not in self._extra}
        seating = seat(seated, workers)
        for key in seating.leave:
            self._delete(self._pods.by_key[key], now_s)
        waiting = [pod for pod in staying if not pod.spec.node_name]
        if len(waiting) >= len(seating.free) > 0:
            if self._is_held_off(staying, now_s):
                return
            pairs = list(zip(waiting, seating.free, strict=False))
            self._extra.difference_update(pod_key(pod) for pod, _ in pairs)
            seats = tuple(Seat(pod, workers[k]) for pod, k in pairs)
            self._site.seat(Party(self.id, self.id, seats, job.priority, job.submit_s))
        elif seating.free:
            stay = [workers[k] for k in seating.stay.values()]
            self._shrink(job, [*stay, *(workers[k] for k in seating.free[: len(waiting)])], staying, now_s)
        else:
            if not self._has_started:
                self._start(seating.stay, now_s)
            elif not waiting:
                self._forget_refusals()
            if self._has_started and waiting:
                self._extra.update(map(pod_key, waiting))
                self._look_again(self._open_seats.ask(f"{self.id}+", waiting, now_s))
                self._look_again(self._notice.tell(staying, now_s))

    def _is_held_off(self, staying: Sequence[objects.Pod], now_s: float) -> bool:
        """Whether a member of a gang that runs was refused its place just now: the World knows nothing of it,
        and would never let it wait.
        """
        if not self._has_started or now_s >= self._open_seats.not_before_s:
            return False
        self._notice.set("its place is not free")
        self._look_again(self._notice.tell(staying, now_s))
        self._look_again(self._open_seats.not_before_s)
        return True

    def _shrink(self, job: Job, places: Sequence[Span], staying: Sequence[objects.Pod], now_s: float) -> None:
        """Members have ended while others go on: what they held is free. (Who is only lost comes again.)"""
        members = job.size // job.gpus_per_replica
        if places and len(places) == self._pods.lasting(members) < members:
            self._ask_for(len(places), job, now_s)
            self.wanted, self._has_started = placement_from(places), False
            self._site.say(ev.JobFound(now_s, self.id, self.wanted, cause="kubernetes"))
            assert self._job is not None
            self._take_seats(self._job, self.wanted, staying, now_s)

    def _give_up_lost(self, staying: Sequence[objects.Pod], now_s: float) -> None:
        """Pods on nodes that are gone run no more: with them gone, others are made at once."""
        lost = [pod for pod in staying if pod.spec.node_name and not self._site.has_node(pod.spec.node_name)]
        if lost and self._pods.are_made_anew():
            for pod in lost:
                self._delete(pod, now_s)

    def _ask_for(self, members: int, job: Job, now_s: float) -> None:
        gpus = members * job.gpus_per_replica
        if gpus != job.size:
            self._job = replace(job, size=gpus, min=gpus, max=gpus)
            self._site.say(ev.JobChanged(now_s, self._job, cause="kubernetes"))

    def _start(self, stay: Iterable[str], now_s: float) -> None:
        if all(self._pods.by_key[key].status.phase not in ("", "Pending") for key in stay):
            self._has_started = True
            self._forget_refusals()
            self._site.say(ev.JobStarted(now_s, self.id, cause="kubernetes"))

    def _forget_refusals(self) -> None:
        self._open_seats.forget_refusals()
        self._notice.refusal = ""

    def _clear(self, staying: Sequence[objects.Pod], now_s: float) -> None:
        """The World wants its GPUs: pods with a seat are deleted; who owns them makes others that wait."""
        self._has_started = False
        for pod in staying:
            if pod.spec.node_name or self.is_ending:
                self._delete(pod, now_s)
        self._look_again(self._notice.tell(staying, now_s))

    def _leave(self, end: tuple[JobState, str], now_s: float) -> None:
        state, detail = end
        self._site.say(ev.JobEnded(now_s, self.id, state, cause="kubernetes", detail=detail))
        self._site.past.add(self.id)
        self.wanted = None
        self._job = None
        self.is_over = True

    # --------------------------------------------------------------------------------------------- writes

    def tell_why(self, now_s: float) -> None:
        """Writes on the pods why they wait."""
        self._look_again(self._notice.tell(self._pods.staying(), now_s))

    def _look_again(self, due_s: float) -> None:
        self.due_s = min(self.due_s, due_s)

    def _delete(self, pod: objects.Pod, now_s: float) -> None:
        meta = pod.metadata
        do = partial(delete_pod, name=meta.name, namespace=meta.namespace, uid=meta.uid)
        self._site.writes.ask(f"{self.id}//delete/{meta.uid}", do, now_s)
