"""Every reason can be reached, and its sentence is true: given a World, then a job is told this."""

from collections.abc import Callable
from typing import Any

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import DesiredState, Share, Spread, Topology
from batuta.core.plan import Decision, Resize
from batuta.core.quota import IdleAction
from batuta.core.reason import Reason
from batuta.core.trial import TrialMeasurement, TrialOutcome, TrialPlan
from batuta.core.utilisation import IdleRules
from batuta.core.weigh import Costs
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.placement.placer import TopologyPlacer
from batuta.policies.fifo import ElasticFifo
from batuta.quota.admission import QuotaAdmission
from tests.support.fixed_policy import rules_that_give
from tests.support.invariants import check_plan
from tests.support.quotas import short
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world, scaling
from tests.unit.quota.test_reasons import CASES as QUOTA_CASES

Case = Callable[[], tuple[World, SchedulerProfile]]


def quota(world: World, limits: dict[str, int], *, held: bool = False) -> World:
    """With so much quota for the queue that all jobs are in."""
    apply(world, ev.QuotaSet(0.0, short(("default", limits), held=("default",) if held else ())))
    return world


def limited(**gpus: int) -> SchedulerProfile:
    return rules_that_give(None, QuotaAdmission(), **gpus)


def alone(*sizes: int, lost: tuple[str, ...] = (), **wishes: Any) -> World:
    """Job `j`, which waits, on nodes of these sizes."""
    return make_world(make_nodes(*sizes), {}, [make_job("j", wishes.pop("size", 1), **wishes)], lost=lost)


def beside(other: str, nodes: list[Node], **wishes: Any) -> World:
    """Job `j`, which waits, while another job runs."""
    size = sum(len(part.split(":")[1]) for part in other.split())
    jobs = [make_job("other", size), make_job("j", wishes.pop("size", 1), **wishes)]
    return make_world(nodes, {"other": other}, jobs)


def on_cpu(**wishes: int) -> World:
    """Job `j`, of two replicas that need no GPU, on two nodes of four CPUs; another job has half of one."""
    other = make_job("other", cpus_milli_per_gpu=2000, memory_mib_per_gpu=2048)
    nodes = make_nodes(4, 4, cpus_milli=4000, memory_mib=4096)
    return make_world(nodes, {"other": "n0:0"}, [other, make_job("j", 2, gpus_per_replica=0, **wishes)])


def moving() -> tuple[World, SchedulerProfile]:
    world, rules = alone(4, size=2, max=4), rules_that_give(j=2)
    apply(world, ev.Planned(NOW_S, decide(world, NOW_S, rules)))
    return world, rules


def makes_room() -> tuple[World, SchedulerProfile]:
    jobs = [make_job("other", 1, max=4), make_job("j")]
    return make_world(make_nodes(4), {"other": "n0:0123"}, jobs), rules_that_give(other=3, j=1)


def unsaved() -> tuple[World, SchedulerProfile]:
    job = make_job("j", 2, min=1, max=4, restartable=False)
    return make_world(make_nodes(4), {"j": "n0:01"}, [job]), rules_that_give(j=4)


def idle(action: IdleAction, *uses: float) -> tuple[World, SchedulerProfile]:
    """Job `j` has all four GPUs and could do with one; a report of their use every 100 s, the last now."""
    world = make_world(make_nodes(4), {"j": "n0:0123"}, [make_job("j", 4, min=1)])
    for number, used in enumerate(uses, start=1 - len(uses)):
        apply(world, ev.GpusUsed(NOW_S + 100.0 * number, "n0", (used,) * 4))
    return world, SchedulerProfile(ElasticFifo(), TopologyPlacer(), idle=IdleRules(after_s=100.0, action=action))


def kept_small() -> tuple[World, SchedulerProfile]:
    world, rules = idle(IdleAction.SHRINK, 0.0, 0.0)
    apply(world, ev.Planned(NOW_S, decide(world, NOW_S, rules)))
    apply(world, ev.JobStarted(NOW_S, "j"))
    return world, rules


def wished(wish: DesiredState, running: bool = False) -> tuple[World, SchedulerProfile]:
    world = make_world(make_nodes(4), {"j": "n0:0"} if running else {}, [make_job("j")])
    apply(world, ev.JobWished(NOW_S, "j", wish))
    return world, rules_that_give()


def tried(*outcomes: TrialOutcome) -> tuple[World, SchedulerProfile]:
    job = make_job("j", min=1, max=2, trial=TrialPlan((1, 2), 60.0, 10.0))
    world = make_world(make_nodes(4), {}, [job])
    for gpus, outcome in enumerate(outcomes, start=1):
        apply(world, ev.TrialMeasured(NOW_S, "j", TrialMeasurement(f"j-t{gpus}", gpus, outcome)))
    return world, rules_that_give()


def failed() -> tuple[World, SchedulerProfile]:
    world = make_world(make_nodes(4), {"j": "n0:0"}, [make_job("j")])
    apply(world, ev.JobInterrupted(NOW_S, "j", not_before_s=NOW_S + 8))
    return world, rules_that_give()


def not_resized() -> tuple[World, SchedulerProfile]:
    world = make_world(make_nodes(4), {"j": "n0:01"}, [make_job("j", 2, min=1, max=4)])
    apply(world, ev.JobFound(NOW_S, "j", at("n0:0"), not_before_s=NOW_S + 9))
    return world, rules_that_give(j=1)


NOBODY_MOVES = Costs(enabled=False)
ON_ONE_NODE = Topology(Spread.NODE, required=True)


def just_changed() -> tuple[World, SchedulerProfile]:
    world = make_world(make_nodes(8), {"j": "n0:0123"}, [make_job("j", 1, max=8, restart_s=1.0)])
    carry_out(world, [Resize("j", at("n0:01"), Reason.SHRANK)], NOW_S - 10)
    apply(world, ev.JobStarted(NOW_S - 10, "j"))
    return world, profile_for("rent")


CASES: dict[str, tuple[Reason, str, Case]] = {
    "it has all": (
        Reason.FULL_SIZE,
        "runs at its full size of 4 GPUs",
        lambda: (alone(4, size=4), rules_that_give(j=4)),
    ),
    "others go first": (
        Reason.WAITING_FOR_GPUS,
        "needs 2 GPUs, 1 of 4 are left by the jobs that go first",
        lambda: (beside("n0:012", make_nodes(4), size=2), rules_that_give(other=3)),
    ),
    "the policy does not want it": (
        Reason.HELD_BACK,
        "needs 2 GPUs and 4 are free, but the policy does not start it now",
        lambda: (alone(4, size=2), rules_that_give()),
    ),
    "it is larger than the cluster": (
        Reason.EXCEEDS_CLUSTER,
        "needs 5 GPUs, the cluster has 4 that it may use",
        lambda: (alone(4, size=5), rules_that_give(j=5)),
    ),
    "it is larger than what it may use of the cluster": (
        Reason.EXCEEDS_CLUSTER,
        "needs 4 GPUs, the cluster has 2 that it may use",
        lambda: (
            make_world(
                [Node("n0", 4, cpus_milli=2000), Node("n1", 4, taints=("spot",))],
                {},
                [make_job("j", 4, cpus_milli_per_gpu=1000)],
            ),
            rules_that_give(j=4),
        ),
    ),
    "there are no nodes": (
        Reason.NO_ACCEPTED_TYPE,
        "accepts no GPU type that the cluster has",
        lambda: (alone(), rules_that_give(j=1)),
    ),
    "it wants another type": (
        Reason.NO_ACCEPTED_TYPE,
        "accepts no GPU type that the cluster has",
        lambda: (alone(4, gpu_types=(("tpu", 1.0),)), rules_that_give(j=1)),
    ),
    "its queue is held": (
        Reason.QUEUE_HELD,
        "its queue is held",
        lambda: (quota(alone(4), {}, held=True), limited(j=1)),
    ),
    "its queue is held while it runs": (
        Reason.QUEUE_HELD,
        "its queue is held",
        lambda: (
            quota(make_world(make_nodes(4), {"j": "n0:0"}, [make_job("j", max=4)]), {}, held=True),
            limited(j=1),
        ),
    ),
    "its queue has used its quota": (
        Reason.QUOTA_EXHAUSTED,
        "needs 2 GPUs, its queue has 1 of 4 left, its cohort lends 0 more",
        lambda: (
            quota(beside("n0:012", make_nodes(8), size=2), {"*": 4}),
            limited(other=3),
        ),
    ),
    "its queue leaves it no more": (
        Reason.QUOTA_REACHED,
        "has 3 GPUs, which is all that its queue's quota leaves to it",
        lambda: (quota(alone(8, size=1, max=8), {"*": 3}), limited(j=3)),
    ),
    "its queue would leave it more": (
        Reason.AT_ASKED_SIZE,
        "has 2 GPUs, 1 asked for; it could use 8, 6 are spare",
        lambda: (quota(alone(8, size=1, max=8), {"*": 3}), limited(j=2)),
    ),
    "its queue is not why it waits": (
        Reason.WAITING_FOR_GPUS,
        "needs 1 GPU, 0 of 4 are left by the jobs that go first",
        lambda: (
            quota(beside("n0:0123", make_nodes(4), size=1, max=8), {"*": 6}),
            limited(other=4),
        ),
    ),
    "there is room, but not for a replica": (
        Reason.FRAGMENTED,
        "needs 2 GPUs, 2 are free but not in a usable arrangement",
        lambda: (
            beside("n0:0 n1:0", make_nodes(2, 2), size=2, gpus_per_replica=2),
            rules_that_give(NOBODY_MOVES, other=2, j=2),
        ),
    ),
    "there is room, but not on one node": (
        Reason.TOPOLOGY_UNMET,
        "needs 2 GPUs close together, the best place has 1",
        lambda: (
            beside("n0:0 n1:0", make_nodes(2, 2), size=2, topology=ON_ONE_NODE),
            rules_that_give(NOBODY_MOVES, other=2, j=2),
        ),
    ),
    "no node is large enough": (
        Reason.TOPOLOGY_UNMET,
        "needs 3 GPUs close together, the best place has 2",
        lambda: (alone(2, 2, size=3, topology=ON_ONE_NODE), rules_that_give(j=3)),
    ),
    "its label is nowhere": (
        Reason.NO_MATCHING_NODE,
        "no node has the labels it wants or the taints it tolerates",
        lambda: (alone(4, node_labels=(("zone", "x"),)), rules_that_give(j=1)),
    ),
    "there are GPUs, but no CPU": (
        Reason.SHORT_OF_CPU_OR_MEMORY,
        "GPUs are free, but the CPU or memory beside them is not",
        lambda: (
            make_world(
                make_nodes(4, cpus_milli=4000),
                {"other": "n0:0"},
                [make_job("other", cpus_milli_per_gpu=3500), make_job("j", cpus_milli_per_gpu=1000)],
            ),
            rules_that_give(other=1, j=1),
        ),
    ),
    "it runs on CPU": (
        Reason.FULL_SIZE,
        "runs at its full size of 2 replicas",
        lambda: (alone(4, size=2, gpus_per_replica=0), rules_that_give()),
    ),
    "it runs on CPU, and CPUs are out": (
        Reason.WAITING_FOR_CPU,
        "needs 2 replicas with 3 CPUs each, the jobs that go first leave room for 1",
        lambda: (on_cpu(cpus_milli_per_gpu=3000), rules_that_give()),
    ),
    "it runs on CPU, and memory is out": (
        Reason.WAITING_FOR_MEMORY,
        "needs 2 replicas with 3 GiB of memory each, the jobs that go first leave room for 1",
        lambda: (on_cpu(cpus_milli_per_gpu=1000, memory_mib_per_gpu=3072), rules_that_give()),
    ),
    "it runs on CPU, and no node is large enough": (
        Reason.EXCEEDS_CPU_OR_MEMORY,
        "needs 2 replicas with 5 CPUs and 0 GiB of memory each, "
        "the nodes that it may use have room for 0 when no job is on them",
        lambda: (on_cpu(cpus_milli_per_gpu=5000), rules_that_give()),
    ),
    "it asked for more": (
        Reason.SHARES_WITH_OTHERS,
        "has 2 of the 4 GPUs it asked for; the others are held by other jobs",
        lambda: (beside("n0:01", make_nodes(4), size=4, min=1), rules_that_give(other=2, j=2)),
    ),
    "it has what it asked for and could use more": (
        Reason.AT_ASKED_SIZE,
        "has 2 GPUs, 2 asked for; it could use 4, 2 are spare",
        lambda: (alone(4, size=2, max=4), rules_that_give(j=2)),
    ),
    "more does not pay": (
        Reason.CHANGE_DOES_NOT_PAY,
        "stays at 1 GPU: a change to 2 gains 100 s and costs 400 s",
        lambda: (
            make_world(
                make_nodes(4),
                {"j": "n0:0"},
                [make_job("j", 1, max=2, work_s=NOW_S, restart_s=100.0)],
            ),
            rules_that_give(j=2),
        ),
    ),
    "it is parked": (Reason.PARKED, "is parked until it is started again", lambda: wished(DesiredState.PARK)),
    "it is cancelled": (
        Reason.CANCELLING,
        "is cancelled and about to end",
        lambda: wished(DesiredState.CANCEL, True),
    ),
    "its node is drained": (
        Reason.EVICTED,
        "has to leave its GPUs, and may have others",
        lambda: wished(DesiredState.EVICT, True),
    ),
    "it is tried out": (
        Reason.IN_TRIAL,
        "is tried out before it is queued: 1 of 2 sizes are done",
        lambda: tried(TrialOutcome.OUT_OF_MEMORY),
    ),
    "it does not fit into memory": (
        Reason.OUT_OF_MEMORY,
        "ran out of GPU memory in trial runs with up to 2 GPUs, so it is not started; "
        "give it a size that fits, or start it all the same",
        lambda: tried(TrialOutcome.OUT_OF_MEMORY, TrialOutcome.OUT_OF_MEMORY),
    ),
    "it failed": (Reason.RESTART_BACKOFF, "failed and is tried again in 8 s", failed),
    "it could not be resized": (
        Reason.RESIZE_BACKOFF,
        "could not be resized; that is tried again in 9 s",
        not_resized,
    ),
    "it does not use its GPUs": (
        Reason.IDLE,
        "holds 4 GPUs and has not used them for 200 s",
        lambda: idle(IdleAction.REPORT, 0.0, 0.01, 0.0),
    ),
    "it did not use them and was made small": (
        Reason.KEPT_SMALL,
        "is kept at 1 GPU until it has used them for a while: it left its GPUs idle",
        kept_small,
    ),
    "it did not use them and is parked": (
        Reason.PARKED_IDLE,
        "is parked until it is started again: it held 4 GPUs and did not use them for 200 s",
        lambda: idle(IdleAction.PARK, 0.0, 0.0, 0.0),
    ),
    "it was just changed": (
        Reason.SETTLING,
        "stays at 2 GPUs for now: it was changed 10 s ago, and a job is changed once for each arrival or "
        "end, at most 18 times an hour (5 left)",
        just_changed,
    ),
    "no checkpoint of it was seen": (
        Reason.KEEPS_SIZE,
        "keeps its 2 GPUs: no checkpoint of it was seen, so a resize would lose its work; it is restarted "
        "with fewer only so that another job can start",
        unsaved,
    ),
    "its GPUs are still in use": (
        Reason.WAITING_FOR_RELEASE,
        "starts on 1 GPU that another job leaves first, after it has saved its work: within a "
        "minute unless its `grace` is longer",
        makes_room,
    ),
    "it is just starting": (Reason.IN_TRANSITION, "has 2 GPUs and is just starting or resizing", moving),
}

FOR_EVENTS = {Reason.STRAGGLER, Reason.UNEVEN_RANKS, Reason.HANG}
FOR_EVENTS |= {Reason.TIME_LIMIT, Reason.PROCESS_LIMIT, Reason.MEMORY_LIMIT}
"""What holds up a job that runs as it should, and what ended it, is told when it is found."""
FOR_COMMANDS = {
    *(Reason.ADMITTED, Reason.GREW, Reason.SHRANK, Reason.PREEMPTED, Reason.CONSOLIDATED, Reason.MADE_ROOM),
    Reason.SHRANK_UNSAVED,
    *(Reason.REPAIRED, Reason.LOST_NODE, Reason.CUT_TO_MAX, Reason.CHANGED_TYPE, Reason.SHRUNK_IDLE),
}


def decision_on(world: World, rules: SchedulerProfile, job: str = "j") -> Decision:
    plan = decide(world, NOW_S, rules)
    check_plan(world, plan)
    decision = plan.decisions.of(job)
    assert decision is not None
    return decision


@pytest.mark.parametrize("case", CASES)
def test_a_job_is_told_why(case: str) -> None:
    reason, sentence, given = CASES[case]
    decision = decision_on(*given())
    assert (decision.reason, str(decision)) == (reason, sentence)


def test_there_is_a_case_for_every_reason() -> None:
    told = {reason for reason, _, _ in (*CASES.values(), *QUOTA_CASES.values())}
    assert told | FOR_COMMANDS | FOR_EVENTS == set(Reason)


def test_shares_that_fit_on_no_card_are_told_so() -> None:
    world = make_world(make_nodes(4, gpu_memory_mib=1000), {}, [make_job("j", share=Share(memory_mib=2000))])
    assert decision_on(world, rules_that_give(j=1)).reason is Reason.EXCEEDS_CLUSTER


def test_numbers_are_of_the_type_that_the_job_competes_for() -> None:
    nodes = [Node("n0", 4, gpu_type="a"), Node("n1", 2, gpu_type="b")]
    jobs = [make_job("a", 4, gpu_types=(("a", 1.0),)), make_job("j", 2, gpu_types=(("b", 1.0),), min=1)]
    numbers = dict(decision_on(make_world(nodes, {}, jobs), rules_that_give(a=4, j=1)).evidence)
    assert (numbers["capacity"], numbers["free"], numbers["gpus"]) == (2, 1, 1)


def test_there_is_one_decision_for_everybody_and_none_for_strangers() -> None:
    world = make_world(make_nodes(2), {}, [make_job("a"), make_job("b", curve=scaling(1))])
    decisions = decide(world, NOW_S, rules_that_give(Costs(), a=1)).decisions
    assert ([decision.job for decision in decisions], len(decisions)) == (["a", "b"], 2)
    assert decisions.of("stranger") is None
