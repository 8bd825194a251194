"""Jobs that hold GPUs without using them are found, and what their queue wants is done; nobody is killed."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import NO_RESTART_S, DesiredState, Job, JobState, Share
from batuta.core.plan import Plan, Preempt, Resize
from batuta.core.quota import ClusterQueue, IdleAction, IdleWish, LocalQueue, Quota
from batuta.core.reason import Reason
from batuta.core.utilisation import STALE_S, IdleRules, next_idle_s
from batuta.core.world import World
from batuta.placement.placer import TopologyPlacer
from batuta.policies.fifo import ElasticFifo
from batuta.store.snapshots import decode_world, encode_world
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world

AFTER_S = 300.1
BUSY, IDLE = 0.9, 0.0


class Cluster:
    """Job `j` on all GPUs of two nodes; the test reports how busy they are and asks for decisions."""

    def __init__(self, action: IdleAction = IdleAction.REPORT, job: Job | None = None) -> None:
        job = job or make_job("j", 4, min=1)
        where = "n0:0" if job.max == 1 else "n0:01 n1:01"
        self.world: World = make_world(make_nodes(2, 2), {"j": where}, [job])
        self.rules = SchedulerProfile(ElasticFifo(), TopologyPlacer(), idle=IdleRules(AFTER_S, action))
        self.now_s = NOW_S

    def report(self, used: float | None, other: float | None = -1.0, jobs: dict[str, float] | None = None) -> None:
        for node, busy in (("n0", used), ("n1", used if other == -1.0 else other)):
            apply(self.world, ev.GpusUsed(self.now_s, node, (busy, busy), tuple((jobs or {}).items())))

    def idle_for(self, seconds: float) -> None:
        self.report(IDLE)
        self.now_s += seconds
        self.report(IDLE)

    def busy_for(self, seconds: float) -> None:
        self.report(BUSY)
        self.now_s += seconds
        self.report(BUSY)

    def decide(self) -> Plan:
        return decide(self.world, self.now_s, self.rules)

    def carry_out(self) -> Plan:
        """Decides, and what is decided happens at once."""
        plan = self.decide()
        if not plan.empty:
            apply(self.world, ev.Planned(self.now_s, plan))
        if any(isinstance(command, Resize) for command in plan.commands):
            apply(self.world, ev.JobStarted(self.now_s, "j"))
        return plan

    def why(self) -> Reason:
        decision = self.decide().decisions.of("j")
        assert decision is not None
        return decision.reason


# ------------------------------------------------------------------------------------------- when it is idle


def test_a_job_is_idle_when_all_its_gpus_were_for_long_enough():
    cluster = Cluster()
    cluster.idle_for(AFTER_S - 1)
    assert cluster.why() is not Reason.IDLE
    cluster.now_s += 1
    assert cluster.why() is Reason.IDLE


def test_that_it_is_idle_is_told_once():
    cluster = Cluster()
    cluster.idle_for(AFTER_S)
    assert cluster.carry_out().found_idle == ("j",)
    cluster.idle_for(AFTER_S)
    plan = cluster.carry_out()
    assert (plan.empty, cluster.why()) == (True, Reason.IDLE)


def test_it_is_told_again_after_it_was_busy():
    cluster = Cluster()
    cluster.idle_for(AFTER_S)
    cluster.carry_out()
    cluster.busy_for(10)
    assert cluster.why() is not Reason.IDLE
    cluster.idle_for(AFTER_S)
    assert cluster.carry_out().found_idle == ("j",)


@pytest.mark.parametrize(
    ("used", "other"),
    [(IDLE, BUSY), (IDLE, None), (None, None)],
    ids=["one GPU is used", "of one nobody knows", "nobody knows anything"],
)
def test_a_job_is_not_idle_when(used: float | None, other: float | None):
    cluster = Cluster()
    for _ in range(3):
        cluster.report(used, other)
        cluster.now_s += AFTER_S
    assert cluster.why() is not Reason.IDLE


def test_a_report_that_is_too_old_counts_for_nothing():
    # given a node that has fallen silent, and one that goes on to report
    cluster = Cluster()
    cluster.report(IDLE)
    cluster.now_s += STALE_S + 1
    apply(cluster.world, ev.GpusUsed(cluster.now_s, "n1", (IDLE, IDLE)))
    # then nobody knows whether the job is idle
    assert cluster.why() is not Reason.IDLE


def test_time_in_which_nobody_looked_counts_for_nothing():
    # given a job that was idle when the server went down for long
    cluster = Cluster(IdleAction.PARK)
    cluster.report(IDLE)
    cluster.now_s += STALE_S + 1
    assert cluster.decide().commands == ()
    # when a new one looks, then the time begins anew
    cluster.idle_for(AFTER_S - 1)
    assert cluster.decide().commands == ()
    cluster.now_s += 1
    assert len(cluster.decide().commands) == 1


def test_time_before_a_job_began_to_run_does_not_count():
    cluster = Cluster()
    cluster.report(IDLE)
    cluster.now_s += AFTER_S
    apply(cluster.world, ev.JobStarted(cluster.now_s, "j"))
    cluster.report(IDLE)
    assert cluster.why() is not Reason.IDLE


def test_a_job_on_gpus_that_are_known_to_be_idle_need_not_wait_for_another_report():
    cluster = Cluster()
    cluster.report(IDLE)
    cluster.now_s += AFTER_S
    apply(cluster.world, ev.JobStarted(cluster.now_s, "j"))
    assert next_idle_s(cluster.world, cluster.now_s, cluster.rules.idle) == cluster.now_s + AFTER_S
    cluster.now_s += AFTER_S
    assert cluster.why() is Reason.IDLE


def test_a_share_is_judged_by_its_own_use_of_the_card():
    cluster = Cluster(job=make_job("j", share=Share(compute_percent=50)))
    cluster.report(BUSY, jobs={"j": IDLE})
    cluster.now_s += AFTER_S
    cluster.report(BUSY, jobs={"j": IDLE})
    assert cluster.why() is Reason.IDLE


def test_of_a_share_on_a_busy_card_nothing_is_known_without_that():
    cluster = Cluster(job=make_job("j", share=Share(compute_percent=50)))
    cluster.report(BUSY)
    cluster.now_s += AFTER_S
    cluster.report(BUSY)
    assert cluster.why() is not Reason.IDLE


def test_the_engine_can_know_when_to_look_again():
    cluster = Cluster()
    cluster.report(IDLE)
    rules = cluster.rules.idle
    assert next_idle_s(cluster.world, cluster.now_s, rules) == cluster.now_s + AFTER_S
    assert next_idle_s(cluster.world, cluster.now_s + AFTER_S, rules) == float("inf")


@pytest.mark.parametrize("since_s", [1794844789.123456 + 0.1 * number for number in range(20)])
def test_at_that_very_moment_it_is_idle(since_s: float):
    cluster = Cluster()
    cluster.now_s = since_s
    cluster.report(IDLE)
    cluster.now_s = next_idle_s(cluster.world, since_s, cluster.rules.idle)
    assert cluster.why() is Reason.IDLE


# -------------------------------------------------------------------------------------------- what is done


def test_it_is_shrunk_to_its_min_where_the_queue_says_so():
    cluster = Cluster(IdleAction.SHRINK)
    cluster.idle_for(AFTER_S)
    (command,) = cluster.carry_out().commands
    assert isinstance(command, Resize)
    assert (command.placement.size, command.reason) == (1, Reason.SHRUNK_IDLE)
    assert command.reason.sentence(command.evidence) == ("shrinks from 4 to 1 GPU: it has not used them for 300 s")


def test_it_grows_again_when_it_has_been_busy_for_as_long():
    cluster = Cluster(IdleAction.SHRINK)
    cluster.idle_for(AFTER_S)
    cluster.carry_out()
    # when it uses what it has, then it has to do so for a while
    cluster.busy_for(AFTER_S - 1)
    assert (cluster.carry_out().commands, cluster.why()) == ((), Reason.KEPT_SMALL)
    cluster.now_s += 1
    (command,) = cluster.carry_out().commands
    assert isinstance(command, Resize)
    assert command.placement.size == 4
    # and then a moment of rest is no reason to shrink
    cluster.report(IDLE)
    assert cluster.carry_out().commands == ()


def test_it_is_parked_where_the_queue_says_so_until_somebody_starts_it():
    cluster = Cluster(IdleAction.PARK)
    cluster.idle_for(AFTER_S)
    (command,) = cluster.carry_out().commands
    assert isinstance(command, Preempt)
    assert command.reason is Reason.PARKED_IDLE
    # then it waits, however long
    cluster.now_s += 10 * AFTER_S
    assert (cluster.carry_out().commands, cluster.why()) == ((), Reason.PARKED_IDLE)
    # and is a job like any other when it was started again
    apply(cluster.world, ev.JobWished(cluster.now_s, "j", DesiredState.RUN))
    (start,) = cluster.decide().commands
    assert start.reason is Reason.ADMITTED
    assert cluster.world.idle == {}


@pytest.mark.parametrize("action", [IdleAction.SHRINK, IdleAction.PARK])
@pytest.mark.parametrize("wishes", [{"checkpoint_interval_s": 600.0}, {"restart_s": NO_RESTART_S}])
def test_a_job_that_would_lose_work_is_only_told(action: IdleAction, wishes: dict[str, float]):
    cluster = Cluster(action, make_job("j", 4, min=1, **wishes))
    cluster.idle_for(AFTER_S)
    plan = cluster.carry_out()
    assert (plan.commands, plan.found_idle) == ((), ("j",))


@pytest.mark.parametrize(
    ("queue", "door", "wanted"),
    [
        (IdleWish(IdleAction.PARK), IdleWish(), Reason.PARKED_IDLE),
        (IdleWish(IdleAction.PARK), IdleWish(IdleAction.SHRINK), Reason.SHRUNK_IDLE),
        (IdleWish(IdleAction.PARK, AFTER_S * 2), IdleWish(), None),
        (IdleWish(), IdleWish(), None),
    ],
)
def test_what_a_queue_says_goes_before_what_the_server_says(queue: IdleWish, door: IdleWish, wanted: Reason | None):
    cluster = Cluster(IdleAction.REPORT)
    quota = Quota(
        cluster_queues=(ClusterQueue("team", idle=queue),),
        local_queues=(LocalQueue("default", "team", idle=door),),
    )
    apply(cluster.world, ev.QuotaSet(cluster.now_s, quota))
    cluster.idle_for(AFTER_S)
    assert [command.reason for command in cluster.carry_out().commands] == ([wanted] if wanted else [])


# ----------------------------------------------------------------------------------------- what is remembered


def test_nothing_is_remembered_of_a_job_that_is_over():
    cluster = Cluster()
    cluster.idle_for(AFTER_S)
    apply(cluster.world, ev.JobEnded(cluster.now_s, "j", JobState.SUCCEEDED))
    assert cluster.world.idle == {}


@pytest.mark.parametrize("action", list(IdleAction))
def test_an_image_of_the_world_has_it_all(action: IdleAction):
    cluster = Cluster(action)
    cluster.idle_for(AFTER_S)
    cluster.carry_out()
    again = decode_world(encode_world(cluster.world))
    assert (again.idle, again.usage) == (cluster.world.idle, cluster.world.usage)
    assert again.idle


def test_a_fork_goes_its_own_way():
    cluster = Cluster()
    twin = cluster.world.fork()
    cluster.idle_for(AFTER_S)
    assert (twin.idle, twin.usage) == ({}, {})
