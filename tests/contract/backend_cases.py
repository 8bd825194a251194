"""What every backend promises to the engine, whatever it runs jobs on."""

import pytest

from batuta.core import event as ev
from batuta.core.job import JobId, JobState
from batuta.core.plan import Command, Preempt, Resize, Start, Stop
from batuta.core.reason import Reason
from tests.contract.backend_rig import Rig
from tests.support.worlds import at


def start(job: JobId, where: str) -> Command:
    return Start(job, at(where), Reason.ADMITTED)


def preempt(job: JobId) -> Command:
    return Preempt(job, Reason.PREEMPTED)


def stop(job: JobId) -> Command:
    return Stop(job, Reason.CANCELLING)


def how_it_ended(rig: Rig, job: JobId) -> list[JobState]:
    return [event.state for event in rig.said if isinstance(event, ev.JobEnded) and event.job == job]


class BackendCases:
    """A backend joins by a test class of this kind, whose fixture `rig` has both jobs submitted to it."""

    # --------------------------------------------------------------------------------------------------- time

    def test_times_never_go_backwards(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"), start("b", "n0:1"))
        rig.wait_for_start("a")
        rig.idle(2 * rig.step_s)
        rig.do(preempt("a"))
        rig.wait_for_end("b")
        rig.do(start("a", "n0:1"))
        rig.wait_for_end("a")
        times = [event.time_s for event in rig.said]
        assert times == sorted(times)

    def test_nothing_comes_from_after_the_time_that_was_asked_for(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        for _ in rig.until(lambda: bool(rig.ends("a")), 10 * rig.run_s):
            until_s = rig.now_s + rig.step_s / 3
            assert all(event.time_s <= until_s for event in rig.look(until_s))

    def test_when_nothing_happens_time_passes_until_the_time_that_was_asked_for(self, rig: Rig) -> None:
        until_s = rig.now_s + rig.step_s
        assert rig.look(until_s)[-1] == ev.TimePassed(until_s)

    def test_asking_for_a_time_that_is_past_does_not_turn_the_clock_back(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_start("a")
        rig.idle(rig.step_s)
        before_s = rig.now_s
        assert all(event.time_s >= before_s for event in rig.look(before_s - rig.step_s))
        rig.wait_for_end("a")
        assert rig.ends("a")[0] - rig.starts("a")[0] == pytest.approx(rig.run_s, abs=rig.tolerance_s)

    # ------------------------------------------------------------------------------------------- start to end

    def test_a_start_leads_to_a_started_job_and_that_to_an_end(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_end("a")
        assert len(rig.starts("a")) == 1
        assert rig.ends("a")[0] - rig.starts("a")[0] == pytest.approx(rig.run_s, abs=rig.tolerance_s)

    def test_without_a_start_a_job_neither_starts_nor_ends(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_end("a")
        rig.idle(2 * rig.run_s)
        assert rig.starts("b") == rig.ends("b") == []

    def test_two_jobs_beside_each_other_both_run(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"), start("b", "n0:1"))
        rig.wait_for_end("a")
        rig.wait_for_end("b")
        assert rig.starts("a")[0] == pytest.approx(rig.starts("b")[0], abs=rig.tolerance_s)
        assert rig.ends("a")[0] == pytest.approx(rig.ends("b")[0], abs=rig.tolerance_s)

    def test_a_job_never_ends_twice_and_nothing_is_heard_of_it_afterwards(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"), start("b", "n0:1"))
        rig.wait_for_end("a")
        rig.wait_for_end("b")
        for _ in range(2):
            rig.look(rig.now_s + rig.run_s)  # simulators have nothing more to say, not even that time passes
        for job in ("a", "b"):
            about = [type(event) for event in rig.said if getattr(event, "job", None) == job]
            assert about.count(ev.JobEnded) == 1
            assert about[-1] is ev.JobEnded

    def test_a_resize_leads_to_a_started_job_again(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_start("a")
        rig.idle(rig.step_s)
        rig.do(Resize("a", at("n0:01"), Reason.GREW))
        rig.wait_for_start("a", times=2)
        rig.wait_for_end("a")
        assert len(rig.ends("a")) == 1

    # --------------------------------------------------------------------------------------------- preemption

    def test_preemption_stops_progress_and_a_later_start_goes_on_from_there(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_start("a")
        rig.idle(rig.run_s / 3)
        ran_s = rig.now_s - rig.starts("a")[0]
        rig.do(preempt("a"))
        rig.idle(2 * rig.run_s)
        assert not rig.ends("a")
        assert len(rig.starts("a")) == 1
        rig.do(start("a", "n0:1"))
        rig.wait_for_end("a")
        assert len(rig.starts("a")) == 2
        ran_s += rig.ends("a")[0] - rig.starts("a")[1]
        assert ran_s == pytest.approx(rig.run_s, abs=rig.tolerance_s)

    def test_a_start_that_is_taken_back_leads_to_nothing(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.do(preempt("a"))
        already = len(rig.starts("a"))
        rig.idle(2 * rig.run_s)
        assert len(rig.starts("a")) == already
        assert not rig.ends("a")

    def test_a_start_that_is_taken_back_while_it_is_under_way_leads_to_nothing(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.look(rig.now_s + rig.step_s / 5)
        rig.do(preempt("a"))
        already = len(rig.starts("a"))
        rig.idle(2 * rig.run_s)
        assert len(rig.starts("a")) == already
        assert not rig.ends("a")

    def test_gpus_of_a_preempted_job_can_be_given_away_in_the_same_breath(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_start("a")
        rig.do(preempt("a"), start("b", "n0:0"))
        rig.wait_for_end("b")
        assert not rig.ends("a")

    # --------------------------------------------------------------------------------------------------- stop

    def test_a_stop_ends_a_running_job_for_good(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_start("a")
        rig.do(stop("a"))
        rig.wait_for_end("a")
        rig.idle(2 * rig.run_s)
        assert how_it_ended(rig, "a") == [JobState.CANCELLED]
        about = [type(event) for event in rig.said if getattr(event, "job", None) == "a"]
        assert about[-1] is ev.JobEnded

    def test_a_stop_ends_a_job_that_waits(self, rig: Rig) -> None:
        rig.do(stop("a"))
        rig.wait_for_end("a")
        assert how_it_ended(rig, "a") == [JobState.CANCELLED]
        assert not rig.starts("a")

    def test_a_stop_ends_a_job_that_was_preempted(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_start("a")
        rig.do(preempt("a"))
        rig.do(stop("a"))
        rig.wait_for_end("a")
        assert how_it_ended(rig, "a") == [JobState.CANCELLED]

    def test_gpus_of_a_stopped_job_can_be_given_away_in_the_same_breath(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        rig.wait_for_start("a")
        rig.do(stop("a"), start("b", "n0:0"))
        rig.wait_for_end("b")
        assert how_it_ended(rig, "a") == [JobState.CANCELLED]
        assert how_it_ended(rig, "b") == [JobState.SUCCEEDED]

    # -------------------------------------------------------------------------------------------------- quiet

    def test_while_a_job_runs_it_is_not_quiet(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        assert not rig.backend.quiet()
        rig.wait_for_start("a")
        assert not rig.backend.quiet()

    def test_when_only_a_command_could_change_anything_it_is_quiet_and_says_nothing(self, rig: Rig) -> None:
        """Jobs that wait, also after a preemption, do nothing by themselves."""
        assert rig.backend.quiet() == rig.falls_quiet
        if rig.falls_quiet:
            assert list(rig.backend.next_events(None)) == []
        rig.do(start("a", "n0:0"))
        rig.idle(2 * rig.step_s)
        rig.do(preempt("a"))
        assert rig.backend.quiet() == rig.falls_quiet
        if rig.falls_quiet:
            assert list(rig.backend.next_events(None)) == []

    def test_to_be_asked_whether_it_is_quiet_changes_nothing(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"))
        for _ in rig.until(lambda: bool(rig.ends("a")), 10 * rig.run_s):
            assert rig.backend.quiet() == rig.backend.quiet()
            rig.look(rig.now_s + rig.step_s)
        assert rig.ends("a")[0] - rig.starts("a")[0] == pytest.approx(rig.run_s, abs=rig.tolerance_s)

    def test_after_the_last_end_nothing_happens_any_more(self, rig: Rig) -> None:
        rig.do(start("a", "n0:0"), start("b", "n0:1"))
        rig.wait_for_end("a")
        rig.wait_for_end("b")
        if rig.falls_quiet:
            assert rig.backend.quiet()
            assert list(rig.backend.next_events(None)) == []
        else:
            assert rig.look(rig.now_s + rig.step_s)


class CpuOnlyCases:
    """What every backend promises about jobs that hold no GPU; the fixture `cpu_rig` has two of them."""

    def test_a_start_without_gpus_leads_to_a_started_job_and_that_to_an_end(self, cpu_rig: Rig) -> None:
        cpu_rig.do(start("a", "n0:"), start("b", "n0:"))
        for job in ("a", "b"):
            cpu_rig.wait_for_end(job)
            ran_s = cpu_rig.ends(job)[0] - cpu_rig.starts(job)[0]
            assert ran_s == pytest.approx(cpu_rig.run_s, abs=cpu_rig.tolerance_s)

    def test_who_is_preempted_goes_on_where_it_was(self, cpu_rig: Rig) -> None:
        cpu_rig.do(start("a", "n0:"))
        cpu_rig.wait_for_start("a")
        cpu_rig.idle(cpu_rig.run_s / 3)
        ran_s = cpu_rig.now_s - cpu_rig.starts("a")[0]
        cpu_rig.do(preempt("a"))
        cpu_rig.idle(cpu_rig.run_s)
        assert not cpu_rig.ends("a")
        cpu_rig.do(start("a", "n0:"))
        cpu_rig.wait_for_end("a")
        ran_s += cpu_rig.ends("a")[0] - cpu_rig.starts("a")[1]
        assert ran_s == pytest.approx(cpu_rig.run_s, abs=cpu_rig.tolerance_s)
