"""Given what is desired of a job and what is observed, then these actions come next."""

import math

import pytest

from batuta.core.job import JobState
from batuta.engine.jobs.backoff import Backoff
from batuta.engine.jobs.outcome import Outcome, RunEnd
from batuta.engine.jobs.reconcile import (
    Adopt,
    Announce,
    BackOff,
    Conclude,
    Decision,
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

HERE = at("n0:01")
GRACE = Grace(checkpoint_s=30.0, stop_s=20.0, cancel_s=10.0, peer_s=5.0, overdue_s=60.0)
RESTART = RestartPolicy(failure_limit=1, backoff=Backoff(2.0, 16.0))

NOWHERE = Desired(grace=GRACE, restart=RESTART)
PLACED = Desired(HERE, grace=GRACE, restart=RESTART)
SAVING = Desired(HERE, saves_on_request=True, grace=GRACE, restart=RESTART)
CANCELLED = Desired(is_ending=True, saves_on_request=True, grace=GRACE, restart=RESTART)
CLOSING = Desired(HERE, is_closing=True, saves_on_request=True, grace=GRACE, restart=RESTART)

NOW_S = 100.0
NO, ASKED, STOPPING, KILLED = StopProgress
SAME, IN_PLACE, ELSEWHERE = Fit


def after(desired: Desired, observed: Observed) -> Decision:
    return reconcile(desired, observed, NOW_S)


def over(end: RunEnd, **more: object) -> ObservedRun:
    return ObservedRun(RunPhase.OVER, outcome=Outcome(end), streak=1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("desired", "observed", "then"),
    [
        pytest.param(NOWHERE, Observed(), (), id="nothing wanted"),
        pytest.param(PLACED, Observed(), (Start(HERE),), id="placed and free"),
        pytest.param(PLACED, Observed(can_start=False), (), id="its GPUs are not free yet"),
        pytest.param(PLACED, Observed(is_concluded=True), (), id="it is over already"),
        pytest.param(CLOSING, Observed(), (), id="nothing is started while the controller shuts down"),
        pytest.param(
            CANCELLED,
            Observed(),
            (Conclude(JobState.CANCELLED, Outcome(RunEnd.STOPPED)),),
            id="cancelled while it waits",
        ),
        pytest.param(
            PLACED,
            Observed(time_limit="it had its hour"),
            (Conclude(JobState.FAILED, Outcome(RunEnd.TIME_LIMIT, detail="it had its hour")),),
            id="its time is used up",
        ),
    ],
)
def test_a_job_without_a_run(desired: Desired, observed: Observed, then: tuple[object, ...]) -> None:
    assert after(desired, observed).actions == then


@pytest.mark.parametrize(
    ("desired", "run", "then", "deadline_s"),
    [
        pytest.param(PLACED, ObservedRun(is_adopted=False), (Adopt(),), math.inf, id="found at a start"),
        pytest.param(CANCELLED, ObservedRun(is_adopted=False), (Adopt(),), math.inf, id="found and cancelled"),
        pytest.param(PLACED, ObservedRun(RunPhase.STARTING), (Maintain(),), math.inf, id="starting"),
        pytest.param(PLACED, ObservedRun(), (Announce(), Maintain()), math.inf, id="runs"),
        pytest.param(PLACED, ObservedRun(is_announced=True), (Maintain(),), math.inf, id="was announced"),
        pytest.param(PLACED, ObservedRun(fit=IN_PLACE), (Resize(),), math.inf, id="can be resized as it runs"),
        pytest.param(PLACED, ObservedRun(RunPhase.INCOMPLETE), (Kill(),), 160.0, id="could not start whole"),
        pytest.param(PLACED, ObservedRun(RunPhase.FAILING), (Stop(StopReason.PEER_FAILED),), 105.0, id="one failed"),
        pytest.param(
            PLACED,
            ObservedRun(is_announced=True, trails_until_s=NOW_S),
            (Stop(StopReason.TRAILING),),
            180.0,
            id="rank 0 is done and the others do not follow",
        ),
        pytest.param(NOWHERE, ObservedRun(fit=ELSEWHERE, can_save=True), (Stop(),), 180.0, id="does not save"),
        pytest.param(
            SAVING, ObservedRun(fit=ELSEWHERE, can_save=True), (RequestCheckpoint(),), 130.0, id="saves first"
        ),
        pytest.param(SAVING, ObservedRun(fit=ELSEWHERE), (Stop(),), 180.0, id="hangs, so it cannot save"),
        pytest.param(CANCELLED, ObservedRun(fit=ELSEWHERE, can_save=True), (Stop(),), 110.0, id="nothing to save for"),
        pytest.param(CLOSING, ObservedRun(can_save=True), (RequestCheckpoint(),), 130.0, id="closing saves"),
        pytest.param(CANCELLED, ObservedRun(fit=IN_PLACE), (Stop(),), 110.0, id="cancelled rather than resized"),
    ],
)
def test_a_job_that_runs(desired: Desired, run: ObservedRun, then: tuple[object, ...], deadline_s: float) -> None:
    found = after(desired, Observed(run))
    assert (found.actions, found.deadline_s) == (then, deadline_s)


@pytest.mark.parametrize(
    ("desired", "run", "then"),
    [
        pytest.param(SAVING, ObservedRun(fit=ELSEWHERE, stop=ASKED, deadline_s=130.0), (), id="waits"),
        pytest.param(
            SAVING,
            ObservedRun(fit=ELSEWHERE, stop=ASKED, has_saved=True),
            (Stop(has_saved=True),),
            id="saved",
        ),
        pytest.param(SAVING, ObservedRun(fit=ELSEWHERE, stop=ASKED, deadline_s=100.0), (Stop(),), id="time is up"),
        pytest.param(SAVING, ObservedRun(stop=ASKED, deadline_s=130.0), (Stay(),), id="may stay after all"),
        pytest.param(CLOSING, ObservedRun(stop=ASKED, deadline_s=130.0), (), id="closing waits too"),
        pytest.param(CANCELLED, ObservedRun(stop=ASKED, deadline_s=130.0), (Stop(),), id="cancelled meanwhile"),
        pytest.param(
            SAVING,
            ObservedRun(RunPhase.FAILING, ELSEWHERE, ASKED, deadline_s=130.0),
            (Stop(StopReason.PEER_FAILED),),
            id="one fails meanwhile",
        ),
        pytest.param(PLACED, ObservedRun(stop=STOPPING, deadline_s=101.0), (), id="has its grace"),
        pytest.param(PLACED, ObservedRun(stop=STOPPING, deadline_s=100.0), (Kill(),), id="has had it"),
        pytest.param(PLACED, ObservedRun(stop=KILLED, deadline_s=100.0), (Kill(force=True),), id="outlives it"),
    ],
)
def test_a_job_on_its_way_out(desired: Desired, run: ObservedRun, then: tuple[object, ...]) -> None:
    assert after(desired, Observed(run)).actions == then


def test_a_cancellation_shortens_the_grace_of_a_run_that_stops_already() -> None:
    slow = Observed(ObservedRun(stop=STOPPING, deadline_s=500.0))
    assert after(PLACED, slow).deadline_s == 180.0
    assert after(CANCELLED, slow).deadline_s == 110.0


@pytest.mark.parametrize(
    ("desired", "run", "failures", "then"),
    [
        pytest.param(
            PLACED,
            over(RunEnd.SUCCEEDED),
            0,
            Conclude(JobState.SUCCEEDED, Outcome(RunEnd.SUCCEEDED)),
            id="done",
        ),
        pytest.param(
            CANCELLED,
            over(RunEnd.SUCCEEDED, was_told_to_stop=True),
            0,
            Conclude(JobState.CANCELLED, Outcome(RunEnd.SUCCEEDED)),
            id="ends well because it was cancelled",
        ),
        pytest.param(
            CANCELLED,
            over(RunEnd.SUCCEEDED),
            0,
            Conclude(JobState.SUCCEEDED, Outcome(RunEnd.SUCCEEDED)),
            id="ended well before it heard of that",
        ),
        pytest.param(PLACED, over(RunEnd.STOPPED, fit=ELSEWHERE), 0, Vacate(moves=True), id="moves"),
        pytest.param(NOWHERE, over(RunEnd.STOPPED, fit=ELSEWHERE), 0, Vacate(moves=False), id="preempted"),
        pytest.param(NOWHERE, over(RunEnd.LOST, fit=ELSEWHERE), 0, Vacate(moves=False), id="lost as it left"),
        pytest.param(PLACED, over(RunEnd.LOST), 0, BackOff(Outcome(RunEnd.LOST), 102.0), id="lost, and starts again"),
        pytest.param(
            PLACED,
            over(RunEnd.FAILED),
            1,
            BackOff(Outcome(RunEnd.FAILED), 102.0),
            id="failed, and is forgiven",
        ),
        pytest.param(PLACED, over(RunEnd.FAILED), 2, GiveUp(Outcome(RunEnd.FAILED), 2), id="failed too often"),
        pytest.param(
            PLACED,
            over(RunEnd.FAILED_SETUP),
            0,
            Conclude(JobState.FAILED_SETUP, Outcome(RunEnd.FAILED_SETUP)),
            id="setup failed",
        ),
        pytest.param(
            PLACED,
            over(RunEnd.CANNOT_START),
            0,
            Conclude(JobState.FAILED, Outcome(RunEnd.CANNOT_START)),
            id="never starts",
        ),
        pytest.param(CLOSING, over(RunEnd.STOPPED), 0, Detach(), id="the controller shut down"),
    ],
)
def test_a_job_whose_run_is_over(desired: Desired, run: ObservedRun, failures: int, then: object) -> None:
    assert after(desired, Observed(run, failures=failures)).actions == (then,)


def test_the_pause_doubles_up_to_the_longest() -> None:
    backoff = Backoff(2.0, 16.0)
    assert [backoff.pause_s(streak) for streak in (0, 1, 2, 3, 4, 9, 10_000)] == [0, 2, 4, 8, 16, 16, 16]
    assert Backoff(20.0, 16.0).pause_s(3) == 20.0


def test_an_infinite_grace_sets_no_clock() -> None:
    """Where the backend's own machinery enforces the grace, as a kubelet does, the run is only waited for."""
    patient = Desired(grace=Grace())
    found = after(patient, Observed(ObservedRun(fit=ELSEWHERE)))
    assert (found.actions, found.due_s) == ((Stop(),), math.inf)
