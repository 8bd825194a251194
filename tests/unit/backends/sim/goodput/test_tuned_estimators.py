"""Jobs that tune their batch size, and what a scheduler believes of them."""

from pathlib import Path

import numpy as np
import pytest

from batuta.backends.sim.goodput.backend import GoodputBackend, JobLengths, Tuning
from batuta.backends.sim.run import RunOptions, simulate
from batuta.backends.sim.workload import GoodputRequest, SimJob
from batuta.core import event as ev
from batuta.core.plan import Start
from batuta.core.reason import Reason
from batuta.engine.loop import Cadence
from batuta.engine.profile import profile_for
from tests.support.sims import sim_job
from tests.support.worlds import at, make_nodes

NODES = make_nodes(4, 4)
KINDS = ["own", "history", "history+totals", "oracle"]


def toy_job(name: str, submit_s: float = 0.0) -> SimJob:
    sim = sim_job(name, submit_s=submit_s)
    return SimJob(sim.job, sim.work_s, sim.curve, GoodputRequest("toy", 1, 20))


def tuned(folder: Path, *sims: SimJob, knowledge: str, lengths: JobLengths = JobLengths()) -> GoodputBackend:  # noqa: B008
    return GoodputBackend.of(sims, NODES, folder, 60.0, 30.0, knowledge, Tuning(), lengths)


def told(backend: GoodputBackend, until_s: float) -> dict[str, ev.JobProgressed]:
    events = backend.next_events(until_s)
    return {event.job: event for event in events if isinstance(event, ev.JobProgressed)}


def test_nothing_is_known_of_an_application_that_never_ran(toy_folder: Path) -> None:
    backend = tuned(toy_folder, toy_job("a"), knowledge="history")
    first = told(backend, 60.0)["a"]
    assert first.remaining_s == 3600
    assert first.outlook is None


def test_what_one_job_measures_is_known_of_the_next_one_of_its_application(toy_folder: Path) -> None:
    for knowledge, is_known in (("history", True), ("own", False)):
        backend = tuned(toy_folder, toy_job("a"), toy_job("b"), knowledge=knowledge)
        backend.next_events(60.0)
        backend.execute([Start("a", at("n0:0"), Reason.ADMITTED)], 60.0)
        now = told(backend, 95.0)
        assert now["a"].outlook is not None
        assert (now["b"].outlook is not None) is is_known


def test_the_oracle_knows_how_long_it_will_take(toy_folder: Path) -> None:
    backend = tuned(toy_folder, toy_job("a"), knowledge="oracle")
    first = told(backend, 60.0)["a"]
    backend.execute([Start("a", at("n0:0"), Reason.ADMITTED)], 60.0)
    ended = [event for event in backend.next_events(1e4) if isinstance(event, ev.JobEnded)]
    assert ended[0].time_s - 90.0 == pytest.approx(first.remaining_s, abs=3)


def test_a_job_may_have_sizes_that_fill_nodes(toy_folder: Path) -> None:
    job = tuned(toy_folder, toy_job("a"), knowledge="history").jobs[0]
    assert job.sizes is not None
    assert set(job.sizes) <= {1, 2, 4, 8, 12, 16}
    assert job.min == 1


def test_shorter_jobs_end_sooner_and_only_totals_know_it(toy_folder: Path) -> None:
    short = JobLengths(0.34, 0.34)
    ends = []
    for lengths in (JobLengths(), short):
        backend = tuned(toy_folder, toy_job("a"), knowledge="history+totals", lengths=lengths)
        backend.next_events(60.0)
        backend.execute([Start("a", at("n0:0"), Reason.ADMITTED)], 60.0)
        ends += [event.time_s for event in backend.next_events(1e4) if isinstance(event, ev.JobEnded)]
    assert ends[1] - 90 < (ends[0] - 90) / 2


@pytest.mark.parametrize("knowledge", KINDS)
def test_rent_runs_a_workload_to_its_end_whatever_is_known(toy_folder: Path, knowledge: str) -> None:
    sims = [toy_job(f"j{k:02}", submit_s=25.0 * k) for k in range(12)]
    backend = tuned(toy_folder, *sims, knowledge=knowledge)
    run = simulate(backend, profile_for("rent", freeze=False), RunOptions("toys", "4x4"), Cadence(round_s=60))
    assert [job.state.name for job in run.jobs] == ["SUCCEEDED"] * 12
    assert np.isfinite([job.fairness for job in run.jobs]).all()
