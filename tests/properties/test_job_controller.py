"""Whatever happens, and whenever the controller dies: one run at a time, saved before it stops, one end."""

import math
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batuta.core.cluster import Placement
from batuta.core.job import JobState
from batuta.engine.jobs.backoff import Backoff
from batuta.engine.jobs.outcome import Outcome, RunEnd
from batuta.engine.jobs.reconcile import (
    Action,
    Adopt,
    Announce,
    BackOff,
    Conclude,
    Desired,
    Detach,
    Fit,
    GiveUp,
    Grace,
    Kill,
    Maintain,
    Observed,
    ObservedRun,
    RequestCheckpoint,
    Resize,
    RestartPolicy,
    RunPhase,
    Start,
    Stay,
    Stop,
    StopProgress,
    StopReason,
    Vacate,
    reconcile,
)
from tests.support.worlds import at

PLACES = (at("n0:0"), at("n0:01"), at("n1:01"))
LONGEST_S = 40.0
LIMIT = 1
GRACE = Grace(checkpoint_s=10.0, stop_s=8.0, cancel_s=4.0, peer_s=2.0, overdue_s=5.0)


@dataclass
class Replicas:
    """What really runs. It outlives its controller."""

    placement: Placement
    phase: RunPhase = RunPhase.STARTING
    can_resize: bool = False
    saved: bool = False
    told: bool = False
    """It was told to leave; written down, so a next controller knows."""
    is_deaf: bool = False
    """It does not end when it is told to, only when it is killed."""
    end: RunEnd | None = None


class Job:
    """One job with its replicas, its controller, and a scheduler that heeds the back-off."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.desired = Desired(
            saves_on_request=True, grace=GRACE, restart=RestartPolicy(LIMIT, Backoff(1.0, LONGEST_S))
        )
        self.replicas: Replicas | None = None
        self.not_before_s = 0.0
        self.failures = self.streak = self.conclusions = 0
        self.state: JobState | None = None
        self.forget()

    def forget(self) -> None:
        """The controller dies: what only it knew is lost."""
        self.is_adopted = self.is_announced = self.is_detached = False
        self.stop = StopProgress.NO
        self.deadline_s = math.inf
        self.asked_s: float | None = None

    # -------------------------------------------------------------------------------------------- the backend

    def observe(self) -> Observed:
        real = self.replicas
        is_over = self.state is not None
        if real is None or self.is_detached:
            return Observed(is_concluded=is_over, failures=self.failures)
        if not self.is_adopted:
            return Observed(ObservedRun(is_adopted=False), is_concluded=is_over)
        wanted = self.desired.placement
        fit = Fit.SAME if real.placement == wanted else Fit.RESTART
        if fit is Fit.RESTART and wanted is not None and real.can_resize and real.phase is RunPhase.RUNNING:
            fit = Fit.IN_PLACE
        run = ObservedRun(
            real.phase,
            fit,
            self.stop,
            is_announced=self.is_announced,
            can_save=real.phase is RunPhase.RUNNING,
            has_saved=self.stop is StopProgress.ASKED and real.saved,
            deadline_s=self.deadline_s,
            outcome=None if real.end is None else Outcome(real.end),
            was_told_to_stop=real.told,
            streak=self.streak,
        )
        return Observed(run, is_concluded=is_over, failures=self.failures)

    def drive(self) -> int:
        """Does all that can be done now; how many rounds that took."""
        for rounds in range(12):
            decision = reconcile(self.desired, self.observe(), self.now_s)
            self.deadline_s = decision.deadline_s
            for action in decision.actions:
                self.carry_out(action)
            if not decision.actions or decision.actions == (Maintain(),):
                return rounds
        raise AssertionError("it never comes to rest")

    def carry_out(self, action: Action) -> None:
        real = self.replicas
        assert self.state is None, f"{action} after the end"
        match action:
            case Start(placement):
                assert real is None, "two runs of a job at once"
                assert placement == self.desired.placement
                assert self.now_s >= self.not_before_s
                self.replicas, self.is_adopted = Replicas(placement), True
                self.is_announced, self.stop = False, StopProgress.NO
            case Adopt():
                assert real is not None
                self.is_adopted = True
                if real.told:
                    self.stop = StopProgress.STOPPING
            case Conclude(state):
                self.conclude(state)
            case GiveUp(_, failures):
                assert failures > LIMIT
                self.conclude(JobState.FAILED)
            case BackOff(outcome, not_before_s):
                assert 0.0 <= not_before_s - self.now_s <= LONGEST_S
                assert outcome.end in (RunEnd.FAILED, RunEnd.LOST)
                self.not_before_s = not_before_s
                self.desired = replace(self.desired, placement=None)
                self.gone()
            case Vacate(moves):
                assert moves == (self.desired.placement is not None)
                self.gone()
            case Detach():
                assert self.desired.is_closing
                self.is_detached = True  # how it ended is on disk, for the next controller
            case _:
                assert real is not None
                assert real.end is None, f"{action} on a run that is over"
                self.carry_out_on(real, action)

    def carry_out_on(self, real: Replicas, action: Action) -> None:
        match action:
            case Announce():
                assert real.phase is RunPhase.RUNNING
                assert real.placement == self.desired.placement
                assert not self.is_announced
                self.is_announced = True
            case Resize():
                assert self.desired.placement is not None
                real.placement, self.is_announced = self.desired.placement, False
            case RequestCheckpoint():
                assert not self.desired.is_ending
                self.stop, self.asked_s, real.saved = StopProgress.ASKED, self.now_s, False
            case Stay():
                self.stop, self.is_announced, self.asked_s = StopProgress.NO, False, None
            case Stop(reason):
                self.check_saved(real, reason)
                self.stop = StopProgress.STOPPING
                real.told |= reason is StopReason.LEAVE
            case Kill():
                self.stop = StopProgress.KILLED
                self.ends(RunEnd.LOST if not real.told else RunEnd.STOPPED)

    def check_saved(self, real: Replicas, reason: StopReason) -> None:
        """Never a stop without the checkpoint asked for, where it can save and there is a next run."""
        if reason is not StopReason.LEAVE or self.desired.is_ending or real.phase is not RunPhase.RUNNING:
            return
        assert self.asked_s is not None, "stopped without being asked to save"
        assert real.saved or self.now_s >= self.asked_s + GRACE.checkpoint_s, "stopped before its time to save"

    def conclude(self, state: JobState) -> None:
        self.conclusions += 1
        self.state = state
        self.replicas = None

    def gone(self) -> None:
        self.replicas, self.asked_s = None, None
        self.stop, self.is_announced = StopProgress.NO, False

    def ends(self, end: RunEnd) -> None:
        assert self.replicas is not None
        self.replicas.phase, self.replicas.end = RunPhase.OVER, end
        self.failures += end is RunEnd.FAILED
        self.streak = self.streak + 1 if end in (RunEnd.FAILED, RunEnd.LOST) else 0

    # --------------------------------------------------------------------------------------------- the future

    def converges(self) -> None:
        """From here on nothing unforeseen happens: it gets to where it shall be, and stays there."""
        if self.desired.placement is not None and self.replicas is None:
            self.desired = replace(self.desired, placement=None)  # the scheduler decides anew
        for _ in range(60):
            self.drive()
            self.obey()
            self.now_s += 1.0
        rounds = self.drive()
        assert rounds == 0, "it does not come to rest"
        if self.desired.is_ending:
            assert self.state is not None
        elif self.state is None and self.desired.placement is not None and not self.desired.is_closing:
            assert self.replicas is not None
            assert self.replicas.placement == self.desired.placement
            assert self.is_announced
            assert self.stop is StopProgress.NO
        elif self.state is None:
            assert self.replicas is None

    def obey(self) -> None:
        real = self.replicas
        if real is None or real.end is not None:
            return
        if real.phase is RunPhase.STARTING:
            real.phase = RunPhase.RUNNING
        if self.stop is StopProgress.STOPPING and not real.is_deaf:
            self.ends(RunEnd.STOPPED if real.told else RunEnd.FAILED)


class JobController(RuleBasedStateMachine):
    """The scheduler, the user, the machine and the controller's end, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Job()

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 9.0, 50.0]))
    def time_passes(self, seconds: float) -> None:
        self.job.now_s += seconds
        self.job.drive()

    @precondition(lambda self: self.job.now_s >= self.job.not_before_s and not self.job.desired.is_ending)
    @rule(place=st.sampled_from(PLACES))
    def the_scheduler_places_it(self, place: Placement) -> None:
        self.job.desired = replace(self.job.desired, placement=place)
        self.job.drive()

    @rule()
    def the_scheduler_preempts_it(self) -> None:
        self.job.desired = replace(self.job.desired, placement=None)
        self.job.drive()

    @rule()
    def the_user_cancels_it(self) -> None:
        self.job.desired = replace(self.job.desired, placement=None, is_ending=True)
        self.job.drive()

    @rule()
    def the_controller_shuts_down_and_another_one_starts(self) -> None:
        self.job.desired = replace(self.job.desired, is_closing=True)
        for _ in range(40):
            self.job.drive()
            self.job.obey()
            self.job.now_s += 1.0
        assert self.job.replicas is None or self.job.replicas.end is not None
        self.job.desired = replace(self.job.desired, is_closing=False)
        self.job.forget()
        self.job.drive()

    @rule()
    def the_controller_is_killed_and_another_one_starts(self) -> None:
        self.job.forget()
        self.job.drive()

    @precondition(lambda self: self.job.replicas is not None and self.job.replicas.end is None)
    @rule(
        what=st.sampled_from([RunPhase.RUNNING, RunPhase.FAILING, RunPhase.INCOMPLETE]),
        resizes=st.booleans(),
        deaf=st.booleans(),
    )
    def the_replicas_change(self, what: RunPhase, resizes: bool, deaf: bool) -> None:
        real = self.job.replicas
        assert real is not None
        if real.phase is RunPhase.STARTING or what is RunPhase.FAILING:
            real.phase = what
        real.can_resize, real.is_deaf = resizes, deaf
        self.job.drive()

    @precondition(lambda self: self.job.stop is StopProgress.ASKED and self.job.replicas is not None)
    @rule()
    def the_run_saves(self) -> None:
        assert self.job.replicas is not None
        self.job.replicas.saved = True
        self.job.drive()

    @precondition(lambda self: self.job.replicas is not None and self.job.replicas.end is None)
    @rule(end=st.sampled_from([RunEnd.SUCCEEDED, RunEnd.FAILED, RunEnd.LOST, RunEnd.FAILED_SETUP]))
    def the_run_ends(self, end: RunEnd) -> None:
        real = self.job.replicas
        assert real is not None
        is_told = real.told and end is not RunEnd.SUCCEEDED
        self.job.ends(RunEnd.STOPPED if is_told else end)
        self.job.drive()

    @invariant()
    def it_ends_once(self) -> None:
        assert self.job.conclusions == (self.job.state is not None)

    @invariant()
    def failures_are_limited(self) -> None:
        assert self.job.state is not None or self.job.failures <= LIMIT or self.job.replicas is not None

    def teardown(self) -> None:
        self.job.converges()


TestJobController = JobController.TestCase
TestJobController.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
