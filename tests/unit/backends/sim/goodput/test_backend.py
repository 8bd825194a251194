"""The goodput replay as a backend: rounds, what it refuses, and what it tells the scheduler."""

from pathlib import Path

import pytest

from batuta.backends.sim.goodput.backend import GoodputBackend
from batuta.backends.sim.run import RunOptions, simulate
from batuta.backends.sim.workload import GoodputRequest, SimJob
from batuta.core import event as ev
from batuta.core.plan import Command, Migrate, Preempt, Resize, Start
from batuta.core.reason import Reason
from batuta.engine.loop import Cadence
from batuta.engine.profile import profile_for
from batuta.spec.problem import InputError
from tests.support.sims import sim_job
from tests.support.worlds import at, make_nodes

NODES = make_nodes(4, 4)


def toy_job(name: str, application: str = "toy", batch: int = 20, submit_s: float = 0.0) -> SimJob:
    sim = sim_job(name, submit_s=submit_s)
    return SimJob(sim.job, sim.work_s, sim.curve, GoodputRequest(application, 1, batch))


def backend_of(folder: Path, *sims: SimJob, knowledge: str = "oracle", restart_s: float = 30.0) -> GoodputBackend:
    return GoodputBackend.of(sims, NODES, folder, round_s=60.0, restart_s=restart_s, knowledge=knowledge)


def start(job: str, where: str) -> Command:
    return Start(job, at(where), Reason.ADMITTED)


def kinds(events: list[ev.Event]) -> list[tuple[str, float]]:
    return [(type(event).__name__, event.time_s) for event in events]


def progress(backend: GoodputBackend, *until_s: float) -> list[ev.JobProgressed]:
    """What is told of progress until these times."""
    events = [event for end_s in until_s for event in backend.next_events(end_s)]
    return [event for event in events if isinstance(event, ev.JobProgressed)]


# -------------------------------------------------------------------------------------------- what it refuses


def test_all_jobs_that_cannot_be_replayed_are_refused_at_once(toy_folder: Path) -> None:
    sims = [
        toy_job("fine"),
        toy_job("typo", application="toi"),
        toy_job("large", batch=1000),
        toy_job("small", batch=19),
        sim_job("rigid"),
    ]
    with pytest.raises(InputError) as caught:
        backend_of(toy_folder, *sims)
    assert [str(problem) for problem in caught.value.problems] == [
        "job typo: no profile of application toi (did you mean toy?)",
        "job large: batch size 1000 was never measured",
        "job small: batch size 19 was never measured",
        "job rigid has no application and batch size, others of this workload have",
    ]


@pytest.mark.parametrize("batch", [20, 33, 60])
def test_a_batch_size_between_measured_ones_is_taken(toy_folder: Path, batch: int) -> None:
    assert backend_of(toy_folder, toy_job("a", batch=batch)).waiting() == 1


# ------------------------------------------------------------------------------------ what the scheduler sees


def test_a_job_may_use_as_many_gpus_as_its_batch_can_be_split_over(toy_folder: Path) -> None:
    jobs = backend_of(toy_folder, toy_job("a", batch=20), toy_job("b", batch=60)).jobs
    assert [job.max for job in jobs] == [2, 6]
    assert [job.restart_s for job in jobs] == [30, 30]
    assert [job.sequence for job in jobs] == [0, 1]


def test_without_knowledge_the_scheduler_keeps_what_came_with_the_job(toy_folder: Path) -> None:
    backend = backend_of(toy_folder, toy_job("a"), knowledge="none")
    assert backend.jobs[0].work_s == 100
    assert kinds(backend.next_events(60.0)) == [("JobSubmitted", 0), ("TimePassed", 60)]


@pytest.mark.parametrize(("knowledge", "work_s"), [("oracle", 63), ("history", 3600), ("own", 3600)])
def test_the_first_belief_comes_with_the_job(toy_folder: Path, knowledge: str, work_s: float) -> None:
    job = backend_of(toy_folder, toy_job("a"), knowledge=knowledge).jobs[0]
    assert job.work_s == pytest.approx(work_s)


def test_a_curve_is_told_again_only_when_it_has_changed(toy_folder: Path) -> None:
    backend = backend_of(toy_folder, toy_job("a"), knowledge="history")
    told = progress(backend, 60.0)
    backend.execute([start("a", "n0:0")], 60.0)
    told += progress(backend, 95.0, 100.0)
    backend.execute([Resize("a", at("n0:01"), Reason.GREW)], 100.0)
    told += progress(backend, 135.0, 140.0)
    # With the job; not for one GPU alone, of which all else is guessed; when two were measured; not again.
    assert [event.curve is not None for event in told] == [True, False, False, True, False]


# ------------------------------------------------------------------------------------------- a life in rounds


def test_events_carry_their_second_and_are_told_at_the_end_of_the_round(toy_folder: Path) -> None:
    backend = backend_of(toy_folder, toy_job("a", submit_s=5), knowledge="none")
    assert kinds(backend.next_events(None)) == [("JobSubmitted", 5), ("TimePassed", 60)]
    backend.execute([start("a", "n0:0")], 60.0)
    assert kinds(backend.next_events(120.0)) == [("JobStarted", 90), ("TimePassed", 120)]
    # Epochs of 25.2, 25.2 and 12.6 s take 25, 25 and 13 whole seconds.
    assert kinds(backend.next_events(180.0)) == [("JobEnded", 90 + 63), ("TimePassed", 180)]
    assert backend.next_events(240.0) == []
    assert backend.lost_gpu_s == {"a": 30}


def test_time_without_jobs_is_jumped_over(toy_folder: Path) -> None:
    backend = backend_of(toy_folder, toy_job("late", submit_s=1000), knowledge="none")
    assert kinds(backend.next_events(None)) == [("JobSubmitted", 1000), ("TimePassed", 1020)]


def test_without_a_restart_time_a_job_is_up_at_once(toy_folder: Path) -> None:
    backend = backend_of(toy_folder, toy_job("a"), restart_s=0.0, knowledge="none")
    backend.next_events(60.0)
    assert backend.execute([start("a", "n0:0")], 60.0) == [ev.JobStarted(60.0, "a")]
    assert kinds(backend.next_events(180.0)) == [("JobEnded", 60 + 63), ("TimePassed", 180)]


def test_a_move_within_the_same_nodes_is_done_at_once(toy_folder: Path) -> None:
    """The model does not tell GPUs of a node apart, but the scheduler waits to hear that the job runs."""
    backend = backend_of(toy_folder, toy_job("a"), knowledge="none")
    backend.next_events(60.0)
    backend.execute([start("a", "n0:0")], 60.0)
    backend.next_events(120.0)
    move = Migrate("a", at("n0:3"), Reason.CONSOLIDATED)
    assert backend.execute([move], 120.0) == [ev.JobStarted(120.0, "a")]


def test_preemption_keeps_progress(toy_folder: Path) -> None:
    backend = backend_of(toy_folder, toy_job("a"), knowledge="none")
    backend.next_events(60.0)
    backend.execute([start("a", "n0:0")], 60.0)
    backend.next_events(120.0)
    backend.execute([Preempt("a", Reason.PREEMPTED)], 120.0)
    assert backend.quiet()
    assert kinds(backend.next_events(600.0)) == [("TimePassed", 600)]
    backend.execute([start("a", "n1:0")], 600.0)
    found = backend.next_events(700.0)
    assert kinds(found)[0] == ("JobStarted", 630)
    # 30 s were done before; epochs take whole seconds, so the end is right to within one.
    ended = [event.time_s for event in found if isinstance(event, ev.JobEnded)]
    assert ended == pytest.approx([630 + 33], abs=1)


def test_alone_on_a_share_is_worked_out_from_the_truth(toy_folder: Path) -> None:
    backend = backend_of(toy_folder, toy_job("a"), knowledge="own")
    assert backend.alone_s("a", 1.0) == pytest.approx(63 + 30)
    assert backend.alone_s("a", 0.5) == pytest.approx(2 * 63 + 30)
    assert backend.alone_s("a", 2.0) < backend.alone_s("a", 1.0)


@pytest.mark.parametrize("knowledge", ["own", "history", "history+totals", "oracle", "optimus", "none"])
@pytest.mark.parametrize("cadence", [Cadence(round_s=60), Cadence()])
def test_a_workload_runs_to_its_end_whatever_is_known(toy_folder: Path, knowledge: str, cadence: Cadence) -> None:
    sims = [toy_job(f"j{k}", batch=20 + 20 * (k % 3), submit_s=25.0 * k) for k in range(12)]
    backend = backend_of(toy_folder, *sims, knowledge=knowledge)
    run = simulate(backend, profile_for("elastic-srjf", freeze=False), RunOptions("toys", "2x4"), cadence)
    assert run.complete
    assert [job.state.name for job in run.jobs] == ["SUCCEEDED"] * 12
    assert not run.notes
