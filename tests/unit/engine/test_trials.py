"""A job is tried out at one size after the other, and queued with what that showed."""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Placement
from batuta.core.job import DesiredState, Job, JobId, JobState, Progress
from batuta.core.plan import Start
from batuta.core.reason import Reason
from batuta.core.trial import TrialMeasurement, TrialOutcome, TrialPlan
from batuta.engine.requests import RequestFn
from batuta.engine.trials.controller import TrialController, trial_task
from batuta.engine.trials.lifecycle import ladder, plan_trial
from batuta.engine.trials.measurement import Look, learn, speaks_of_memory
from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_elastic import TrialSpec
from batuta.spec.task_serialization import task_from_json, task_to_json
from tests.support.worlds import at, carry_out, make_job, make_nodes, make_world

TASK = """
name: resnet
run: train
resources: {accelerators: 1}
num_nodes: auto
elastic: {max_nodes: 4, grace: 90s}
trial: true
"""
STORED = task_to_json(parse_task(TASK))
PLAN = TrialPlan((1, 2, 4), budget_s=100.0, each_s=10.0, open_up_to=4)


class Lab:
    """A World whose job `j` is tried out, by a clock of its own, with GPUs that say what the test wants."""

    def __init__(self, plan: TrialPlan = PLAN, task: str = STORED) -> None:
        job = make_job("j", min=1, max=4, application="resnet", trial=plan)
        self.world = make_world(make_nodes(4), jobs=[job])
        self.now_s = 0.0
        self.printed = ""
        self.sees = Look(700, 0.5)
        self._task = task
        self.restart()

    def restart(self) -> None:
        """A server that begins to watch now."""
        self.conductor = TrialController(self.ask, lambda job: self._task, self, clock=lambda: self.now_s)

    def look(self, placement: Placement) -> Look:
        return self.sees

    def output(self, run: JobId) -> str:
        return self.printed

    def ask(self, make: RequestFn) -> Future[Sequence[ev.Event]]:
        done = Future[Sequence[ev.Event]]()
        events = make(self.world)
        for event in events:
            apply(self.world, event)
        done.set_result(events)
        return done

    def step(self, at_s: float) -> None:
        self.now_s = at_s
        apply(self.world, ev.TimePassed(at_s))
        self.conductor.after_step(self.world)

    def starts(self, run: str, where: str, samples_per_s: float | None = None) -> None:
        carry_out(self.world, [Start(run, at(where), Reason.ADMITTED)], self.now_s)
        apply(self.world, ev.JobStarted(self.now_s, run))
        if samples_per_s is not None:
            self.reports(run, samples_per_s)

    def reports(self, run: str, samples_per_s: float) -> None:
        said = Progress(samples_per_s=samples_per_s, step_s=64 / samples_per_s)
        apply(self.world, ev.JobProgressed(self.now_s, run, 5.0, progress=said))

    def ends(self, run: str, state: JobState = JobState.CANCELLED, detail: str = "") -> None:
        apply(self.world, ev.JobEnded(self.now_s, run, state, detail=detail))

    def tries(self, run: str, where: str, samples_per_s: float) -> None:
        """One size from its beginning until its processes are gone."""
        self.step(self.now_s + 0.5)
        self.starts(run, where, samples_per_s)
        self.step(self.now_s + 5.0)
        self.step(self.now_s + 6.0)
        self.ends(run)

    @property
    def job(self) -> Job:
        return self.world.jobs.jobs[self.world.jobs.row("j")]

    def wish(self, job: JobId = "j") -> DesiredState:
        return self.world.jobs.wish_of(self.world.jobs.row(job))


# -------------------------------------------------------------------------------------- which sizes, how long


@pytest.mark.parametrize(
    ("legal", "tried"),
    [
        (range(1, 9), (1, 2, 4, 8)),
        (range(1, 8), (1, 2, 4, 7)),
        (range(1, 6), (1, 2, 5)),
        ([3], (3,)),
        ([2, 4, 6, 12], (2, 4, 12)),
        (range(1, 1000), (1, 2, 4, 8, 16, 32)),
    ],
)
def test_sizes_double_as_far_as_they_are_legal(legal: Sequence[int], tried: tuple[int, ...]) -> None:
    assert ladder(list(legal)) == tried


def test_a_budget_is_divided_among_the_sizes() -> None:
    job = make_job("j", min=1, max=8, priority=7)
    plan = plan_trial(job, TrialSpec(budget_s=60.0), most=4)
    assert (plan.sizes, plan.each_s, plan.priority) == ((1, 2, 4), 20.0, 7)


def test_sizes_that_a_job_cannot_have_are_refused_all_at_once() -> None:
    job = make_job("j", 2, min=2, max=8, sizes=(2, 4, 8))
    with pytest.raises(InputError, match=r"trial: 3, 8 GPUs are no sizes .*some of 2, 4"):
        plan_trial(job, TrialSpec(sizes=(2, 3, 8)), most=4)


# ------------------------------------------------------------------------------------------------- the course


def test_a_job_waits_while_it_is_tried_out_and_asks_for_what_was_learned() -> None:
    lab = Lab()
    assert lab.wish() is DesiredState.TRY
    for run, where, speed in (("j-t1", "n0:0", 100.0), ("j-t2", "n0:01", 190.0), ("j-t4", "n0:0123", 200.0)):
        lab.tries(run, where, speed)
    lab.step(lab.now_s + 1)
    assert lab.wish() is DesiredState.RUN
    assert [one.units_per_s for one in lab.world.trials["j"]] == [100.0, 190.0, 200.0]
    assert lab.job.size == 2
    assert lab.job.size_choice is not None
    assert "2 GPUs give 9" in lab.job.size_choice.sentence
    assert "measured in 3 trial runs" in lab.job.size_choice.sentence
    assert lab.job.curve.at(2) / lab.job.curve.at(1) == pytest.approx(1.9, rel=0.1)


def test_a_run_is_an_ordinary_job_of_one_size_that_never_starts_over() -> None:
    lab = Lab(replace(PLAN, priority=500))
    lab.step(1.0)
    run = lab.world.jobs.jobs[lab.world.jobs.row("j-t1")]
    assert (run.min, run.size, run.max, run.trial_of, run.trial) == (1, 1, 1, "j", None)
    assert (run.priority, run.application, run.submit_s) == (500, "resnet", lab.job.submit_s)


def test_a_run_knows_that_it_is_a_trial() -> None:
    task = task_from_json(trial_task(STORED, make_job("j", max=4), 2))
    assert ("BATUTA_TRIAL", "1") in task.envs
    assert (task.num_nodes, task.elastic.max_nodes, task.trial.wanted) == (2, 2, None)


def test_memory_and_load_are_those_of_the_whole_run() -> None:
    lab = Lab()
    lab.step(0.5)
    lab.starts("j-t1", "n0:0", 100.0)
    for at_s, look in ((2.0, Look(900, 1.0)), (4.0, Look(500, 0.5))):
        lab.sees = look
        lab.step(at_s)
    lab.ends("j-t1", JobState.SUCCEEDED)
    lab.step(4.1)
    (found,) = lab.world.trials["j"]
    assert (found.outcome, found.memory_mib, found.utilisation) == (TrialOutcome.MEASURED, 900, 0.75)
    assert (found.gpu_type, found.batch, found.nodes) == (lab.world.nodes.nodes[0].gpu_type, 64, 1)


def test_the_next_size_waits_until_the_last_run_is_gone() -> None:
    lab = Lab()
    lab.step(0.5)
    lab.starts("j-t1", "n0:0", 100.0)
    lab.step(11.0)
    lab.step(12.0)
    assert lab.wish("j-t1") is DesiredState.CANCEL
    assert "j-t2" not in lab.world.jobs
    lab.ends("j-t1")
    lab.step(13.0)
    assert "j-t2" in lab.world.jobs


def test_the_engine_is_woken_when_a_run_has_had_its_time() -> None:
    lab = Lab()
    lab.step(0.5)
    assert lab.conductor.next_due_s(lab.world) == 100.0  # it may wait for GPUs as long as the budget lasts
    lab.now_s = 3.0
    lab.starts("j-t1", "n0:0", 100.0)
    assert lab.conductor.next_due_s(lab.world) == 13.0
    assert lab.conductor.next_due_s(make_world(make_nodes(4))) == math.inf


def test_a_run_that_went_on_while_no_server_watched_has_its_time_from_when_one_does() -> None:
    """Given a run whose window ended while the server was down, then the next server still measures it."""
    lab = Lab()
    lab.step(0.5)
    lab.starts("j-t1", "n0:0")
    lab.now_s = 15.0
    lab.restart()
    lab.step(15.5)
    assert list(lab.world.trials["j"]) == []
    assert lab.conductor.next_due_s(lab.world) == 25.0
    lab.reports("j-t1", 100.0)
    lab.step(25.0)
    (found,) = lab.world.trials["j"]
    assert (found.outcome, found.units_per_s, found.utilisation) == (TrialOutcome.MEASURED, 100.0, 0.5)


def test_a_restart_does_not_make_the_budget_longer() -> None:
    lab = Lab()
    lab.step(0.5)
    lab.starts("j-t1", "n0:0")
    lab.now_s = 95.0
    lab.restart()
    assert lab.conductor.next_due_s(lab.world) == 100.0
    lab.step(100.0)
    assert [one.outcome for one in lab.world.trials["j"]] == [TrialOutcome.SILENT]


def test_no_job_is_held_back_longer_than_its_budget() -> None:
    lab = Lab()
    lab.step(0.5)
    lab.step(100.0)  # it never got GPUs
    lab.step(100.1)
    assert lab.wish() is DesiredState.RUN
    assert [one.outcome for one in lab.world.trials["j"]] == [TrialOutcome.NOT_RUN]
    assert lab.wish("j-t1") is DesiredState.CANCEL


def test_a_run_that_reports_nothing_is_told_apart_from_one_that_fails() -> None:
    lab = Lab()
    lab.step(0.5)
    lab.starts("j-t1", "n0:0")
    lab.step(11.0)
    lab.ends("j-t1")
    lab.step(12.0)
    lab.ends("j-t2", JobState.FAILED, "the job exited with code 1")
    lab.step(13.0)
    first, second = lab.world.trials["j"]
    assert (first.outcome, second.outcome) == (TrialOutcome.SILENT, TrialOutcome.FAILED)
    assert second.sentence == "with 2 GPUs: failed (the job exited with code 1)"


def test_whoever_starts_a_job_does_not_wait_for_its_trial() -> None:
    lab = Lab()
    lab.step(0.5)
    apply(lab.world, ev.JobWished(1.0, "j", DesiredState.RUN))
    assert lab.wish("j-t1") is DesiredState.CANCEL
    lab.step(50.0)
    assert lab.wish() is DesiredState.RUN
    assert lab.world.trials["j"] == ()


def test_runs_end_with_the_job_that_they_are_for() -> None:
    lab = Lab()
    lab.step(0.5)
    lab.ends("j")
    assert lab.wish("j-t1") is DesiredState.CANCEL
    assert lab.world.trials == {}
    assert lab.conductor.next_due_s(lab.world) == math.inf


def test_who_only_wants_to_know_gets_an_end_with_the_answer() -> None:
    lab = Lab(replace(PLAN, sizes=(1, 2), only=True, open_up_to=None))
    lab.tries("j-t1", "n0:0", 100.0)
    lab.tries("j-t2", "n0:01", 105.0)
    lab.step(lab.now_s + 1)
    past = lab.world.past["j"]
    assert (past.state, len(past.trials)) == (JobState.SUCCEEDED, 2)
    assert past.detail.startswith("1 GPU")


# ----------------------------------------------------------------------------------------------------- memory


def test_a_job_that_never_fits_is_held_with_a_reason() -> None:
    lab = Lab(replace(PLAN, sizes=(1, 2)))
    lab.printed = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    for run in ("j-t1", "j-t2"):
        lab.step(lab.now_s + 1)
        lab.starts(run, "n0:01" if run == "j-t2" else "n0:0")
        lab.ends(run, JobState.FAILED)
        lab.step(lab.now_s + 1)
    for _ in range(4):
        lab.step(lab.now_s + 60)
    assert lab.wish() is DesiredState.TRY
    assert learn(lab.job, lab.world.trials["j"]).sentence.startswith("it ran out of GPU memory")
    apply(lab.world, ev.JobWished(lab.now_s, "j", DesiredState.RUN))  # its user knows better
    assert lab.wish() is DesiredState.RUN


def test_a_job_that_fits_on_more_gpus_is_not_started_on_fewer() -> None:
    lab = Lab(replace(PLAN, open_up_to=None))
    lab.printed = "CUDA_ERROR_OUT_OF_MEMORY"
    lab.step(0.5)
    lab.starts("j-t1", "n0:0")
    lab.ends("j-t1", JobState.FAILED)
    lab.step(1.0)
    lab.printed = ""
    lab.tries("j-t2", "n0:01", 100.0)
    lab.tries("j-t4", "n0:0123", 200.0)
    lab.step(lab.now_s + 1)
    assert lab.wish() is DesiredState.RUN
    assert (lab.job.min, lab.job.size, lab.job.max) == (2, 2, 4)


@pytest.mark.parametrize(
    ("printed", "is_memory"),
    [
        ("RuntimeError: CUDA error: out of memory", True),
        ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying", True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", True),
        ("FileNotFoundError: data.bin", False),
        ("", False),
    ],
)
def test_what_programs_print_when_memory_runs_out(printed: str, is_memory: bool) -> None:
    assert speaks_of_memory(printed) is is_memory


def measured(gpus: int, outcome: TrialOutcome, rate: float | None = None) -> TrialMeasurement:
    return TrialMeasurement(f"j-t{gpus}", gpus, outcome, unit="steps", units_per_s=rate)


def test_sizes_above_those_that_fit_are_cut_off() -> None:
    job = make_job("j", 4, min=1, max=4, trial=replace(PLAN, open_up_to=None))
    found = learn(
        job,
        [
            measured(1, TrialOutcome.MEASURED, 1.0),
            measured(2, TrialOutcome.MEASURED, 1.9),
            measured(4, TrialOutcome.OUT_OF_MEMORY),
        ],
    )
    assert (found.job.min, found.job.size, found.job.max) == (1, 2, 2)


def test_one_speed_alone_says_nothing_of_others() -> None:
    job = make_job("j", 1, min=1, max=4, trial=PLAN)
    found = learn(job, [measured(1, TrialOutcome.MEASURED, 1.0), measured(2, TrialOutcome.FAILED)])
    assert (found.curve, found.choice, found.job) == (None, None, job)
    assert found.sentence == "too little was measured to say how it scales"


def test_a_range_that_was_changed_meanwhile_stays_as_its_user_wants_it() -> None:
    job = make_job("j", 8, min=8, max=8, trial=replace(PLAN, open_up_to=None))
    found = learn(job, [measured(1, TrialOutcome.MEASURED, 1.0), measured(4, TrialOutcome.OUT_OF_MEMORY)])
    assert found.job == job


@pytest.mark.parametrize("only", [False, True])
def test_a_job_whose_task_cannot_be_read_does_not_wait_for_ever(only: bool) -> None:
    lab = Lab(replace(PLAN, only=only), task="stored by nobody")
    lab.step(1.0)
    if only:
        assert lab.world.past["j"].detail.startswith("it cannot be tried out")
    else:
        assert lab.wish() is DesiredState.RUN
