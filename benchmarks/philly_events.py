"""All 82,247 jobs of the Philly trace on 2,500 GPUs: events per second against a plain SimPy model.

Batuta runs as `batuta simulate` does: engine, World, `decide` with the topology-aware placer and a reason
for every command, simulated machines, recorder. Why each job has what it has is worked out only when
somebody can see it; what that adds is measured apart. The reference (`simpy_queue.py`) knows GPU counts
only. Restarts cost nothing and nothing is weighed, so that both must give the same completion times.
Bars: 20 times the events per second, and less than 1 GiB of memory.

The trace as recorded wants 15 % of these GPUs, so nobody ever waits; with arrivals six times as dense it
wants 90 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from batuta.backends.sim.backend import SimBackend, SimOptions
from batuta.backends.sim.result import RunResult
from batuta.backends.sim.run import RunOptions as RunSetting
from batuta.backends.sim.run import simulate
from batuta.backends.sim.traces.reader import read_workload
from batuta.backends.sim.traces.trace_format import Elasticity, TraceOptions
from batuta.backends.sim.workload import SimJob
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.spec.cluster import read_cluster
from benchmarks.child import Outcome, in_child
from benchmarks.measure import no_collection, shared_data, show, times
from benchmarks.simpy_queue import SimpyJob, SimpyQueue

CLUSTER, GPUS = "312x8,1x4", 2_500
RATIO_BAR, MEMORY_BAR_MIB = 20.0, 1024
PREFIX = 3_000
"""Jobs that both models run from beginning to end, to compare completion times."""
SLICES, SLICE = 6, 250
"""At so many places of the trace both go on from the same state for so many arrivals."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    elastic: str
    """Smallest and largest size as factors of the recorded one."""
    speed: str
    denser: int
    """Arrivals come this many times as fast."""
    jobs: int | None = None
    """Only the first so many."""


SETTINGS = (
    Setting("6 × denser, ½–2 × size", "0.5:2", "amdahl:0.05", 6),
    Setting("6 × denser, rigid", "rigid", "linear", 6, 40_000),
    Setting("as recorded, ½–4 × size", "0.5:4", "amdahl:0.05", 1, 20_000),
    Setting("as recorded, rigid", "rigid", "linear", 1, 20_000),
)


def read_jobs(setting: Setting) -> tuple[SimJob, ...]:
    options = TraceOptions(Elasticity.parse(setting.elastic, setting.speed))
    jobs = read_workload(str(shared_data() / "philly" / "jobs.csv"), None, options).jobs[: setting.jobs]
    if setting.denser == 1:
        return jobs
    return tuple(replace(sim, job=replace(sim.job, submit_s=sim.job.submit_s / setting.denser)) for sim in jobs)


def same_job(sim: SimJob) -> SimpyJob:
    job = sim.job
    return SimpyJob(job.id, job.submit_s, job.min, job.max, sim.work_s, sim.curve.speeds)


def same_state(world: World, truth: dict[str, SimJob]) -> SimpyQueue:
    """The reference at the same moment: the same jobs with the same shares and the same work left."""
    jobs, now_s = world.jobs, world.now_s
    queue = SimpyQueue(GPUS, now_s)
    left_s = jobs.remaining_s - jobs.rate * (now_s - jobs.anchor_s)
    for row, job in enumerate(jobs.ids):
        twin = same_job(truth[job])
        twin.left_s, twin.share = max(float(left_s[row]), 0.0), int(jobs.held[row])
        queue.resume(twin)
    queue.env.run(until=now_s + 1e-9)  # every process reaches its first wait
    return queue


def run_ours(
    jobs: tuple[SimJob, ...], watch: Callable[[World, Plan], None] | None = None, reasons: bool = False
) -> RunResult:
    backend = SimBackend(jobs, read_cluster(CLUSTER), SimOptions(restart_s=0.0))
    setting = RunSetting("philly", CLUSTER, keep_segments=False)
    return simulate(backend, profile_for("elastic-fifo", weigh=False), setting, watch=watch, explains=reasons)


def mean_jct_s(jobs: tuple[SimJob, ...]) -> tuple[float, float]:
    """Mean completion time of some jobs in both models."""
    ours = run_ours(jobs).jobs
    queue = SimpyQueue(GPUS)
    for sim in jobs:
        queue.submit(same_job(sim))
    queue.env.run()
    theirs = [job.end_s - job.submit_s for job in queue.over]
    return sum(job.jct_s for job in ours) / len(ours), sum(theirs) / len(theirs)


class Slices:
    """Watches Batuta on the trace; at some places the reference runs the same stretch of it."""

    def __init__(self, jobs: tuple[SimJob, ...]) -> None:
        self._jobs = jobs
        self._truth = {sim.job.id: sim for sim in jobs}
        self._places = [len(jobs) * (2 * k + 1) // (2 * SLICES) for k in range(SLICES)]
        self._queue: SimpyQueue | None = None
        self._begun_s = 0.0
        self.commands = 0
        self.found: list[dict[str, float]] = []
        self.spent_s = 0.0
        """CPU time that was not Batuta's."""

    def watch(self, world: World, plan: Plan) -> None:
        """Called after every decision."""
        self.commands += len(plan.commands)
        arrived = len(world.past) + world.jobs.n
        if self._queue is None:
            if self._places and arrived >= self._places[0]:
                self._begin(world, arrived)
        elif arrived >= self._places[0] + SLICE:
            self._end(world)

    def _begin(self, world: World, arrived: int) -> None:
        begun = time.process_time()
        self._queue = same_state(world, self._truth)
        for sim in self._jobs[arrived : arrived + 2 * SLICE]:
            self._queue.submit(same_job(sim))
        self.found.append({"alive": world.jobs.n})
        self._begun_s = time.process_time()
        self.spent_s += self._begun_s - begun

    def _end(self, world: World) -> None:
        begun, queue = time.process_time(), self._queue
        assert queue is not None
        queue.env.run(until=world.now_s + 1e-9)
        ended = time.process_time()
        if [job.share for job in queue.jobs] != world.jobs.held.tolist():
            raise AssertionError(f"the two models went apart before {world.now_s} s")
        self.found[-1] |= {
            "our_s": begun - self._begun_s,
            "their_s": ended - begun,
            "their_events": queue.events,
        }
        self._queue = None
        del self._places[0]
        self.spent_s += time.process_time() - begun


def replay(values: dict) -> dict:
    """The whole trace, with slices in between that both models run, each timed."""
    jobs = read_jobs(Setting(**values))
    jct_s = mean_jct_s(jobs[:PREFIX])
    slices = Slices(jobs)
    with no_collection():
        bare_s, told_s = (run_ours(jobs[:PREFIX], reasons=told).cpu_s for told in (False, True))
        ours = run_ours(jobs, slices.watch)
    return {
        "jct_s": jct_s,
        "jobs": len(ours.jobs),
        "cpu_s": ours.cpu_s - slices.spent_s,
        "events": 2 * len(ours.jobs) + slices.commands,
        "cycles": len(ours.decide_ms),
        "reasons": told_s / bare_s,
        "waiting": float((ours.timeline.pending > 0).mean()),
        "slices": slices.found,
    }


def main() -> None:
    shared_data()
    found = [(setting, in_child("philly_events.replay", asdict(setting))) for setting in SETTINGS]
    show(
        "Batuta on the trace",
        ("setting", "jobs", "somebody waits", "CPU (s)", "events/s", "cycles/s", "with reasons", "peak MiB"),
        [_our_row(setting, done) for setting, done in found],
    )
    show(
        f"Both on {SLICES} slices of {SLICE} arrivals each; completion times on the first {PREFIX:,} jobs",
        ("setting", "jobs alive", "SimPy events/s", "ratio", "by slice", "mean JCT apart"),
        [_ratio_row(setting, done.answer) for setting, done in found],
    )


def _our_row(setting: Setting, done: Outcome) -> tuple[object, ...]:
    found = done.answer
    return (
        setting.name,
        f"{found['jobs']:,}",
        f"{found['waiting']:.0%} of cycles",
        f"{found['cpu_s']:.1f}",
        f"{found['events'] / found['cpu_s']:,.0f}",
        f"{found['cycles'] / found['cpu_s']:,.0f}",
        f"{found['reasons']:.2f}× CPU",
        f"{done.peak_mib:.0f}{'' if done.peak_mib < MEMORY_BAR_MIB else ' !'}",
    )


def _ratio_row(setting: Setting, found: dict) -> tuple[object, ...]:
    slices = found["slices"]
    ratios = [part["their_s"] / part["our_s"] for part in slices]
    our_s, their_s = sum(part["our_s"] for part in slices), sum(part["their_s"] for part in slices)
    alive = [part["alive"] for part in slices]
    jct_s = found["jct_s"]
    return (
        setting.name,
        f"{min(alive):,}–{max(alive):,}",
        f"{sum(part['their_events'] for part in slices) / their_s:,.0f}",
        times(their_s / our_s, RATIO_BAR, at_least=True),
        f"{min(ratios):.2f}–{max(ratios):.2f}×",
        f"{abs(jct_s[0] / jct_s[1] - 1):.0e}",
    )


if __name__ == "__main__":
    main()
