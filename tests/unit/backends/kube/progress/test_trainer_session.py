"""What a job says reaches the World, and it is asked for a checkpoint before its pods go."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.jobtypes.mpi import ELASTIC_HOROVOD
from batuta.backends.kube.jobtypes.pods import PODS
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.workqueue import WriteFn, WriteQueue, Written
from batuta.backends.kube.progress.log_lines import LogReport, LogSource, ReportLine, parse_report
from batuta.backends.kube.progress.log_reader import LogSubscriptions
from batuta.backends.kube.progress.trainer_session import FINAL_REPORT_WAIT_S, TrainerSession, grace_s
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import Span
from batuta.core.event import JobCheckpointed, JobProgressed
from batuta.core.job import Job
from batuta.engine.jobs.reconcile import (
    Desired,
    Fit,
    Grace,
    Observed,
    ObservedRun,
    RequestCheckpoint,
    Stop,
    StopProgress,
    reconcile,
)
from tests.support.unified_jobs import unified_job

ID = "team-a/resnet"
JOB = Job(ID, submit_s=0.0, size=2, min=1, max=4, work_s=3600.0)
PLACES = (Span("node-0", (0,)), Span("node-1", (0,)))
SAVES = unified_job(annotations={names.CHECKPOINT: "on-signal"})


def pod(index: int, phase: str = "Running", **changes: Any) -> objects.Pod:
    labels = {names.JOB_NAME: "resnet", names.START: "0", names.ROLE: "worker"}
    labels |= {names.REPLICA_INDEX: str(index)} | changes.pop("labels", {})
    meta = {"name": f"resnet-{index}", "namespace": "team-a", "uid": f"uid-{index}", "labels": labels}
    spec = {"containers": [{"name": "main"}]}
    return msgspec.convert({"metadata": meta | changes, "spec": spec, "status": {"phase": phase}}, objects.Pod)


class Place:
    """A job that runs on two nodes since second 1000, and all that is done and said around it."""

    def __init__(self, *, is_heard: bool = True) -> None:
        self.posted: list[tuple[str, WriteFn]] = []
        self.said: list[Any] = []
        self.logs: dict[str, LogSource | None] = {}
        self.writes = WriteQueue(self.posted.extend)
        listening = LogSubscriptions(self.logs.update) if is_heard else LogSubscriptions()
        self.site = ReconcileContext(
            Cluster(),
            self.writes,
            ObjectCache().owners(),
            self.said.append,
            lambda party: None,
            listening=listening,
        )
        self.talk = TrainerSession(self.site, ID)
        self.pods = [pod(0), pod(1)]
        self.talk.began(JOB, 0, PLACES, 1000.0)
        self.deadline_s = math.inf

    def may_go(self, uj: UnifiedJob, pods: list[objects.Pod], now_s: float) -> bool:
        """Its pods are to go: whether they may, as the job controller says; else what it says is done."""
        run = ObservedRun(
            fit=Fit.RESTART,
            stop=StopProgress.ASKED if self.talk.is_asked else StopProgress.NO,
            can_save=self.talk.can_save(uj, pods),
            has_saved=self.talk.has_saved(now_s),
            deadline_s=self.deadline_s,
        )
        desired = Desired(saves_on_request=True, grace=Grace(checkpoint_s=grace_s(uj)))
        decision = reconcile(desired, Observed(run), now_s)
        self.deadline_s = decision.deadline_s
        for action in decision.actions:
            if isinstance(action, Stop):
                self.talk.stop_waiting()
                return True
            assert isinstance(action, RequestCheckpoint)
            self.talk.request_checkpoint(uj, pods, now_s)
        self.talk.repeat_request(uj, pods, now_s)
        return False

    def hear(self, *lines: str, time_s: float = 1010.0, **how: Any) -> bool:
        """Replica 0 prints these reports at a time."""
        said = [parse_report(ReportLine(time_s, line.encode())) for line in lines]
        known = tuple(one for one in said if one is not None)
        heard = LogReport(ID, "uid-0", known, len(said) - len(known), **how)
        return self.talk.hear(heard, time_s, is_alive=True)

    def listens_to(self) -> LogSource | None:
        self.talk.listen(PODS, self.pods)
        self.site.listening.send()
        return self.logs.get(ID)

    def asked(self) -> list[str]:
        """Pods that were told since the last look, and it worked."""
        self.writes.send()
        posted, self.posted[:] = [key for key, _ in self.posted], []
        for key in posted:
            self.writes.heard(Written(key, None), 0.0)
        return [key.rpartition("/")[2] for key in posted]


def test_reports_become_progress_of_the_world_and_time_is_that_of_the_node():
    """Given a step per second, the World hears of the fraction and of what is left."""
    place = Place()
    for step in range(1, 61):
        place.hear(f'{{"time":5.0,"step":{step},"total_steps":100}}', time_s=1000.0 + step)
    last = place.said[-1]
    assert isinstance(last, JobProgressed)
    assert last.progress is not None
    assert last.progress.fraction == pytest.approx(0.6)
    assert last.progress.step_s == pytest.approx(1.0, rel=0.05)
    assert len(place.said) < 70


def test_the_world_hears_that_a_job_saves_and_when_it_did_but_not_all_the_time():
    place = Place()
    place.hear('{"event":"saves-on-request"}', time_s=1010.0)
    for second in range(90):
        place.hear('{"event":"checkpoint","path":"/c"}', time_s=1020.0 + second)
    saved = [one for one in place.said if isinstance(one, JobCheckpointed)]
    assert [(one.job, one.saved_s) for one in saved] == [
        *((ID, None), (ID, 1020.0), (ID, 1050.0), (ID, 1080.0)),
    ]
    # and at once of one that it was asked for
    assert not place.may_go(SAVES, place.pods, 1111.0)
    place.hear('{"event":"checkpoint","path":"/c","request":1}', time_s=1112.0)
    assert place.said[-1] == JobCheckpointed(1112.0, ID, 1112.0)


def test_reports_and_what_was_refused_are_counted():
    place = Place()
    place.hear('{"step":1}', '{"step":-1}', "{oops")
    assert (place.site.listening.reports, place.site.listening.refused) == (1, 2)


def test_what_a_job_says_that_the_world_has_forgotten_is_not_told():
    place = Place()
    line = parse_report(ReportLine(1001.0, b'{"step":1,"total_steps":2}'))
    assert line is not None
    place.talk.hear(LogReport(ID, "uid-0", (line,)), 1001.0, is_alive=False)
    assert place.said == []


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12), st.floats(-1e9, 1e12)), max_size=30))
def test_lies_never_make_an_event_that_is_none(claims):
    """Given any steps, totals and clocks, what the World is told is finite and between nothing and all."""
    place = Place()
    for number, (step, total, time_s) in enumerate(claims):
        line = parse_report(ReportLine(time_s, b'{"step":%d,"total_steps":%d}' % (step, total)))
        if line is not None:
            place.talk.hear(LogReport(ID, "uid-0", (line,)), 1000.0 + number, is_alive=True)
    for event in place.said:
        assert math.isfinite(event.remaining_s)
        assert event.remaining_s >= 0
        assert event.progress.fraction is None or 0 <= event.progress.fraction <= 1


def test_replica_0_is_listened_to_until_all_is_heard():
    place = Place()
    assert place.listens_to() == LogSource(ID, "team-a", "resnet-0", "uid-0", "main")
    place.pods = [pod(0, "Succeeded"), pod(1, "Succeeded")]
    assert place.listens_to() == LogSource(ID, "team-a", "resnet-0", "uid-0", "main", is_over=True)
    assert place.hear(is_all=True)
    assert place.listens_to() is None


def test_where_there_is_a_launcher_it_is_listened_to_instead():
    launcher = pod(9, labels={names.ROLE: "launcher"})
    place = Place()
    place.talk.listen(ELASTIC_HOROVOD, [*place.pods, launcher])
    place.site.listening.send()
    log = place.logs[ID]
    assert log is not None
    assert log.uid == "uid-9"


def test_pods_of_an_earlier_start_are_not_listened_to():
    place = Place()
    place.pods = [pod(0, labels={names.START: "7"})]
    assert place.listens_to() is None
    place.talk.ended(1001.0)
    place.pods = [pod(0)]
    assert place.listens_to() is None


def test_a_job_that_has_succeeded_is_over_when_its_last_words_are_heard():
    """Given a result in the last line, the end waits for it, but not for long."""
    place, over = Place(), [pod(0, "Succeeded"), pod(1, "Succeeded")]
    place.hear('{"step":1}')
    assert place.talk.has_more_to_say(PODS, over, 1100.0)
    assert place.talk.due_s == 1100.0 + FINAL_REPORT_WAIT_S
    assert place.hear('{"event":"result","value":[1]}', is_all=True)
    assert place.talk.result == "[1]"
    assert not place.talk.has_more_to_say(PODS, over, 1100.5)
    slow = Place()
    slow.hear('{"step":1}')
    assert slow.talk.has_more_to_say(PODS, over, 1100.0)
    assert not slow.talk.has_more_to_say(PODS, over, 1100.0 + FINAL_REPORT_WAIT_S)


def test_a_job_that_never_said_anything_is_over_at_once_unless_it_was_too_short_to_know():
    over = [pod(0, "Succeeded"), pod(1, "Succeeded")]
    assert not Place().talk.has_more_to_say(PODS, over, 1100.0)
    assert Place().talk.has_more_to_say(PODS, over, 1001.0)
    assert not Place(is_heard=False).talk.has_more_to_say(PODS, over, 1001.0)


def test_pods_that_save_when_asked_are_asked_once_and_go_when_they_have_saved():
    place = Place()
    assert not place.may_go(SAVES, place.pods, 1100.0)
    assert place.asked() == ["uid-0", "uid-1"]
    assert not place.may_go(SAVES, place.pods, 1101.0)
    assert place.asked() == []
    assert place.talk.is_asking
    assert place.hear('{"event":"checkpoint","path":"/c","request":1}', time_s=1102.0)
    assert place.may_go(SAVES, place.pods, 1102.0)
    assert not place.talk.is_asking


def test_a_checkpoint_from_before_the_request_is_no_answer():
    place = Place()
    place.hear('{"event":"checkpoint","path":"/c"}')
    assert not place.may_go(SAVES, place.pods, 1100.0)
    place.hear('{"event":"checkpoint","path":"/c","restart":9,"request":1}')
    assert not place.may_go(SAVES, place.pods, 1100.0)
    place.hear('{"event":"checkpoint","path":"/c"}')
    assert place.may_go(SAVES, place.pods, 1100.0)


def test_pods_that_do_not_answer_go_when_their_grace_is_over():
    place = Place()
    assert not place.may_go(SAVES, place.pods, 1100.0)
    assert place.deadline_s == 1220.0  # its template has terminationGracePeriodSeconds: 120
    assert not place.may_go(SAVES, place.pods, 1219.0)
    assert place.may_go(SAVES, place.pods, 1220.0)


@pytest.mark.parametrize(
    "pods",
    [
        [],
        [pod(0), pod(1, "Pending")],
        [pod(0), pod(1, "Failed")],
        [pod(0, deletionTimestamp="2026-01-01T00:00:00Z")],
    ],
)
def test_nothing_is_asked_of_pods_that_cannot_answer(pods):
    place = Place()
    assert place.may_go(SAVES, pods, 1100.0)
    assert place.asked() == []


@pytest.mark.parametrize("word", ["none", "600"])
def test_a_job_that_saves_by_itself_or_never_is_not_asked(word):
    place = Place()
    place.hear('{"step":1}')
    assert place.may_go(unified_job(annotations={names.CHECKPOINT: word}), place.pods, 1100.0)
    assert Place(is_heard=False).may_go(SAVES, place.pods, 1100.0)


def test_an_elastic_job_that_says_nothing_of_checkpoints_is_asked_if_its_script_reports():
    """Given no annotation, a script that has reported is asked, but not again if it did not answer."""
    place, elastic = Place(), unified_job()
    assert place.may_go(elastic, place.pods, 1100.0)
    place.hear('{"step":1}')
    rigid = unified_job(replicas={"minReplicas": 2, "maxReplicas": 2})
    assert place.may_go(rigid, place.pods, 1100.0)
    assert not place.may_go(elastic, place.pods, 1100.0)
    assert place.may_go(elastic, place.pods, 1220.0)
    place.talk.began(JOB, 1, PLACES, 1300.0)
    assert place.may_go(elastic, place.pods, 1400.0)


def test_an_operator_goes_on_with_the_request_of_the_one_before_it():
    """Given pods that were asked and did not answer, no second request is made; after an answer, one is."""
    asked = [pod(k, annotations={names.CHECKPOINT_REQUEST: "3"}) for k in (0, 1)]
    place = Place()
    assert not place.may_go(SAVES, asked, 1100.0)
    assert place.asked() == []
    place.hear('{"event":"checkpoint","path":"/c","request":3}')
    assert place.may_go(SAVES, asked, 1101.0)
    place.talk.stays()
    assert not place.may_go(SAVES, asked, 1102.0)
    assert place.asked() == ["uid-0", "uid-1"]


def test_a_request_that_could_not_be_written_is_written_again():
    place = Place()
    place.may_go(SAVES, place.pods, 1100.0)
    place.asked()
    place.talk.failed("checkpoint/uid-0")
    assert not place.may_go(SAVES, place.pods, 1101.0)
    assert place.asked() == ["uid-0", "uid-1"]
