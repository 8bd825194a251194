"""The simulated backend: what jobs really do on their GPUs, in closed form, so that time can jump."""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter

from batuta.backends.sim.failures import FailureRecord
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName, Placement
from batuta.core.job import NO_RESTART_S, JobId, JobState
from batuta.core.plan import Command, Preempt, Stop
from batuta.core.reason import Reason

_DONE = 1e-9  # work below this is rounding


@dataclass(slots=True)
class _Run:
    """The true state of one submitted job."""

    sim: SimJob
    left_s: float  # work left, in seconds on one GPU of the reference type
    rate: float = 0.0
    since_s: float = 0.0  # when `left_s` was true
    begun_s: float = 0.0  # when its processes were last started; checkpoints come at whole intervals after it
    saved_left_s: float = 0.0  # work left at the last checkpoint: a crash goes back to it
    saved_s: float = 0.0
    ran_s: float = 0.0  # how long it had run at `since_s`, over all its starts
    placement: Placement | None = None
    stamp: int = 0  # raised at every change; a timer with an older stamp is void


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The costs of starts and failures."""

    restart_s: float | None = None
    """Seconds without progress after a start, resize or migration; None takes each job's own."""
    checkpoint_s: float = 1800.0
    """When a node fails, a job without checkpoints of its own loses what came after a multiple of this."""


@dataclass(slots=True)
class SimBackend:
    """Discrete events: arrivals, starts, ends, failures. One instance simulates one run."""

    jobs: Sequence[SimJob]
    nodes: Sequence[Node]
    options: SimOptions = field(default_factory=SimOptions)
    failures: Sequence[FailureRecord] = ()
    script: Sequence[ev.Event] = ()
    """External events of users and the cluster, in the order of time; they change nothing that runs."""
    now_s: float = 0.0
    reporting: Set[JobId] = frozenset()  # jobs that report their work left as soon as they run, as real ones do
    lost_gpu_s: dict[JobId, float] = field(default_factory=dict)  # by job: GPU-seconds held without keeping progress
    _runs: dict[JobId, _Run] = field(default_factory=dict)
    _timers: list[tuple[float, int, bool, JobId]] = field(default_factory=list)
    """(time, stamp, whether it is an end, job): a job's start or end, unless its stamp has changed."""
    _agenda: Sequence[tuple[float, SimJob | FailureRecord | ev.Event]] = ()
    """What comes from outside, in the order of time: arrivals, then failures, then the script."""
    _passed: int = 0  # how much of the agenda is over
    _to_come: int = 0  # jobs that have not arrived
    _slow: dict[NodeName, float] = field(default_factory=dict)
    _by_name: dict[NodeName, Node] = field(default_factory=dict)
    _truth: dict[JobId, SimJob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._truth = {sim.job.id: sim for sim in self.jobs}
        self._by_name = {node.name: node for node in self.nodes}
        arrivals = [(sim.job.submit_s, sim) for sim in self.jobs]
        others = [(one.time_s, one) for one in (*self.failures, *self.script)]
        self._agenda = sorted([*arrivals, *others], key=itemgetter(0))
        self._to_come = len(self.jobs)

    def opening(self) -> list[ev.Event]:
        return [ev.NodeAdded(0.0, node) for node in self.nodes]

    def adopt(
        self,
        sim: SimJob,
        placement: Placement | None = None,
        *,
        begun_s: float,
        ready_s: float | None = None,
        ran_s: float = 0.0,
    ) -> None:
        """Takes over a job that lives already: it waits, runs on where it is, or begins at `ready_s`.

        `sim.work_s` is what it has left. With GPUs it was last started or resized at `begun_s`. `ran_s` is
        how long it has run so far.
        """
        now_s, job = self.now_s, sim.job
        run = _Run(sim, sim.work_s, 0.0, now_s, begun_s, sim.work_s, now_s, ran_s, placement)
        self._runs[job.id], self._truth[job.id] = run, sim
        if placement is None:
            return
        if ready_s is not None:
            heapq.heappush(self._timers, (max(ready_s, now_s), run.stamp, False, job.id))
            return
        run.rate = self._rate(run)
        interval_s = NO_RESTART_S if job.keeps_size_until_saved else job.checkpoint_interval_s
        if interval_s:
            written_s = begun_s + (now_s - begun_s) // interval_s * interval_s
            run.saved_s = min(max(written_s, begun_s + job.restart_s), now_s)
            run.saved_left_s = run.left_s + run.rate * (now_s - run.saved_s)
        self._set_end(run)

    def next_events(self, until_s: float | None) -> list[ev.Event]:
        self._drop_void_timers()
        if not self.waiting():
            return []
        at_s = self._next_time_s()
        if at_s is None and until_s is None:
            return []
        if until_s is not None and (at_s is None or until_s < at_s):
            self.now_s = max(until_s, self.now_s)
            return [ev.TimePassed(self.now_s)]
        assert at_s is not None
        at_s = self.now_s = max(at_s, self.now_s)
        found: list[ev.Event] = []
        timers = self._timers
        while timers and timers[0][0] <= at_s:
            _, stamp, is_end, job = heapq.heappop(timers)
            run = self._runs.get(job)
            if run is not None and run.stamp == stamp:
                found.append(self._end(run) if is_end else self._begin(run))
        while self._passed < len(self._agenda) and self._agenda[self._passed][0] <= at_s:
            one = self._agenda[self._passed][1]
            self._passed += 1
            if isinstance(one, SimJob):
                self._to_come -= 1
                self._runs[one.job.id] = _Run(one, one.work_s, since_s=at_s)
                found.append(ev.JobSubmitted(at_s, one.job))
            elif isinstance(one, FailureRecord):
                found.extend(self._fail(one))
            else:
                found.append(one)
        return found + self._reports(found) if self.reporting else found

    def execute(self, commands: Sequence[Command], now_s: float) -> list[ev.Event]:
        done: list[ev.Event] = []
        self.now_s = max(now_s, self.now_s)
        for command in commands:
            run = self._runs[command.job]
            self._settle(run)
            job = run.sim.job
            saves = job.checkpoint_interval_s is None and not job.keeps_size_until_saved
            if not saves and run.rate > 0 and run.saved_s < self.now_s:
                # It writes no checkpoint when asked, so what came after its last one is lost.
                done.append(self._crash(run))
            self._stop(run)
            if isinstance(command, Stop):
                del self._runs[command.job]
                done.append(ev.JobEnded(self.now_s, command.job, JobState.CANCELLED))
                continue
            if isinstance(command, Preempt):
                continue
            run.placement, run.begun_s = command.placement, self.now_s
            restart_s = job.restart_s if self.options.restart_s is None else self.options.restart_s
            if restart_s <= 0:
                done.append(self._begin(run))
            else:
                heapq.heappush(self._timers, (self.now_s + restart_s, run.stamp, False, command.job))
        return done + self._reports(done) if self.reporting else done

    def _reports(self, events: Sequence[ev.Event]) -> list[ev.Event]:
        """What jobs that have just started, and still run, report of their work left."""
        return [
            ev.JobProgressed(event.time_s, event.job, max(run.left_s - run.rate * (self.now_s - run.since_s), 0.0))
            for event in events
            if isinstance(event, ev.JobStarted)
            and event.job in self.reporting
            and (run := self._runs.get(event.job)) is not None
        ]

    def quiet(self) -> bool:
        self._drop_void_timers()
        return self._next_time_s() is None

    def close(self) -> None:
        pass

    def alone_s(self, job: JobId, gpus: float) -> float:
        return alone_s(self._truth[job], gpus, self.options.restart_s)

    def waiting(self) -> int:
        """Jobs that are to be submitted or have not ended."""
        return len(self._runs) + self._to_come

    def _next_time_s(self) -> float | None:
        at_s = self._timers[0][0] if self._timers else None
        if self._passed < len(self._agenda):
            outside_s = self._agenda[self._passed][0]
            if at_s is None or outside_s < at_s:
                return outside_s
        return at_s

    def _drop_void_timers(self) -> None:
        timers = self._timers
        while timers:
            _, stamp, _, job = timers[0]
            run = self._runs.get(job)
            if run is not None and run.stamp == stamp:
                return
            heapq.heappop(timers)

    def _begin(self, run: _Run) -> ev.Event:
        """The processes are up: progress from now on."""
        self._settle(run)
        run.saved_left_s, run.saved_s = run.left_s, self.now_s
        run.rate = self._rate(run)
        self._set_end(run)
        return ev.JobStarted(self.now_s, run.sim.job.id)

    def _set_end(self, run: _Run) -> None:
        if run.rate > 0:
            end_s = run.since_s + run.left_s / run.rate
            if run.sim.job.time_limit_s is not None:
                end_s = min(end_s, run.since_s + max(0.0, run.sim.job.time_limit_s - run.ran_s))
            heapq.heappush(self._timers, (end_s, run.stamp, True, run.sim.job.id))

    def _end(self, run: _Run) -> ev.Event:
        job = run.sim.job
        del self._runs[job.id]
        if job.time_limit_s is None or run.since_s + run.left_s / run.rate <= self.now_s + _DONE:
            return ev.JobEnded(self.now_s, job.id, JobState.SUCCEEDED)
        limit = (("limit_s", job.time_limit_s),)
        return ev.JobEnded(self.now_s, job.id, JobState.FAILED, reason=Reason.TIME_LIMIT, evidence=limit)

    def _settle(self, run: _Run) -> None:
        """Accounts for what a job did until now: progress, or GPUs held without any."""
        now_s, since_s = self.now_s, run.since_s
        if now_s == since_s and run.left_s >= _DONE:
            return
        if run.rate > 0:
            self._save(run)
            run.ran_s += now_s - since_s
            run.left_s -= run.rate * (now_s - since_s)
            if run.left_s < _DONE:
                run.left_s = 0.0
        elif run.placement is not None:
            self._lose(run, now_s - since_s)
        run.since_s = now_s

    def _save(self, run: _Run) -> None:
        """Records the last checkpoint before now, if the job wrote one since `since_s`."""
        own_s = NO_RESTART_S if run.sim.job.keeps_size_until_saved else run.sim.job.checkpoint_interval_s
        interval_s = self.options.checkpoint_s if own_s is None else own_s
        elapsed_s = self.now_s - run.begun_s
        saved_s = run.begun_s + elapsed_s // interval_s * interval_s if interval_s > 0 else self.now_s
        if saved_s > run.since_s:
            run.saved_left_s = run.left_s - run.rate * (saved_s - run.since_s)
            run.saved_s = saved_s

    def _lose(self, run: _Run, seconds: float) -> None:
        """Accounts for time in which a job held GPUs without keeping progress."""
        if run.placement is not None and seconds > 0:
            job = run.sim.job.id
            self.lost_gpu_s[job] = self.lost_gpu_s.get(job, 0.0) + seconds * run.placement.size

    def _stop(self, run: _Run) -> None:
        """The job's processes end; what they did so far is kept."""
        self._settle(run)
        run.stamp += 1
        run.rate = 0.0
        run.placement = None

    def _rate(self, run: _Run) -> float:
        placement, job, curve = run.placement, run.sim.job, run.sim.curve
        if placement is None:
            return 0.0
        # A CPU-only job has one size, and its work is its run time.
        rate = 1.0 if job.cpu_only else curve.at(placement.size)
        if len(placement.spans) > 1 and curve.minds_spread:
            nodes = placement.nodes
            rate *= curve.spread(len(nodes), len({self._by_name[name].rack for name in nodes}))
        if job.gpu_types:
            rate *= dict(job.gpu_types).get(self._by_name[placement.spans[0].node].gpu_type, 1.0)
        if self._slow:
            rate *= min(self._slow.get(name, 1.0) for name in placement.nodes)
        return rate

    def _fail(self, record: FailureRecord) -> list[ev.Event]:
        """What a failure, repair or slow-down does to the jobs there."""
        now_s, node = self.now_s, record.node
        match record.kind:
            case "node-returned":
                return [ev.NodeReturned(now_s, node)]
            case "gpu-repaired":
                return [ev.GpuRepaired(now_s, node, record.gpu)]
            case "slow" | "normal":
                return self._change_speed(node, record.factor if record.kind == "slow" else 1.0)
        lost = record.kind == "node-lost"
        hit = [
            run
            for run in self._runs.values()
            if run.placement is not None
            and any(span.node == node and (lost or record.gpu in span.gpus) for span in run.placement.spans)
        ]
        event = ev.NodeLost(now_s, node) if lost else ev.GpuFailed(now_s, node, record.gpu)
        return [event, *(self._crash(run) for run in hit)]

    def _crash(self, run: _Run) -> ev.Event:
        """The job's processes end without warning: it falls back to its last checkpoint."""
        if run.rate > 0:
            self._settle(run)
            self._lose(run, self.now_s - run.saved_s)
            run.left_s = run.saved_left_s
            run.rate = 0.0
        self._stop(run)
        # In the scheduler's terms: the share that is left of its own estimate of the whole.
        share = run.left_s / run.sim.work_s if run.sim.work_s > 0 else 0.0
        return ev.JobProgressed(self.now_s, run.sim.job.id, share * run.sim.job.work_s)

    def _change_speed(self, node: NodeName, factor: float) -> list[ev.Event]:
        if factor == 1.0:
            self._slow.pop(node, None)
        else:
            self._slow[node] = factor
        for run in self._runs.values():
            if run.rate > 0 and run.placement is not None and node in run.placement.nodes:
                self._settle(run)
                run.stamp += 1
                run.rate = self._rate(run)
                self._set_end(run)
        return [ev.TimePassed(self.now_s, cause="pace of a node")]


def alone_s(sim: SimJob, gpus: float, restart_s: float | None) -> float:
    """Run time alone on a share of the GPUs: the best legal size within it, or slices of the smallest."""
    job = sim.job
    start_s = job.restart_s if restart_s is None else restart_s
    if job.cpu_only:  # it needs no share of them
        return sim.work_s + start_s
    sizes = job.sizes or range(job.min, job.max + 1, job.gpus_per_replica or 1)
    within = [n for n in sizes if n <= gpus]
    speed = max((sim.curve.at(n) for n in within), default=0.0)
    if speed == 0.0:
        speed = sim.curve.at(job.min) * gpus / job.min
    return sim.work_s / speed + start_s if speed > 0 else float("inf")
