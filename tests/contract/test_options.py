"""Every option of `batuta up` and of the operator's configuration changes something, under every policy.

Options that bear on decisions are tried here under each policy. The two tables at the end name what all the
others change, so an option that is added without a word here fails the last tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Literal, TypeAlias

import pytest

from batuta.backends.kube.binder.plugins.gpus import GpuShare
from batuta.backends.kube.operator_config import OperatorConfig, Placement
from batuta.bootstrap.local_server import UpOptions, local_profile
from batuta.bootstrap.operator_leader import binder_profile, operator_profile
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import Share
from batuta.core.plan import Preempt, Resize, Start
from batuta.core.quota import IdleAction
from batuta.core.reason import Reason
from batuta.core.utilisation import IdleRules
from batuta.core.world import World
from batuta.gpu.local_nodes import virtual_nodes, with_capacity
from batuta.policies.registry import policy_names
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world, shown

each_policy = pytest.mark.parametrize("policy", policy_names())
Order: TypeAlias = Literal["bin-pack", "spread"]
RulesOf: TypeAlias = Callable[[str, Order, float], SchedulerProfile]


def _local(policy: str, shares: Order, busiest: float) -> SchedulerProfile:
    return local_profile(policy, UpOptions(shares=shares, busiest=busiest))


def _operator(policy: str, shares: Order, busiest: float) -> SchedulerProfile:
    config = OperatorConfig.model_validate({"placement": {"shares": shares, "busiest": busiest}})
    return operator_profile(policy, config)


@pytest.fixture(params=[_local, _operator], ids=["up", "operator"])
def rules_of(request: pytest.FixtureRequest) -> RulesOf:
    found: RulesOf = request.param
    return found


def one_sharer_and_another_that_waits() -> World:
    jobs = [make_job(name, share=Share(100, 30)) for name in ("first", "second")]
    return make_world(make_nodes(4, gpu_memory_mib=1000), {"first": "n0:0"}, jobs)


def place_of_the_second(world: World, rules: SchedulerProfile) -> str:
    (start,) = (one for one in decide(world, NOW_S, rules).commands if one.job == "second")
    assert isinstance(start, Start)
    return shown(start.placement)


@each_policy
def test_shares_fill_cards_or_are_spread_as_the_option_says(policy: str, rules_of: RulesOf) -> None:
    world = one_sharer_and_another_that_waits()
    assert place_of_the_second(world, rules_of(policy, "bin-pack", 0.7)) == "n0:0"
    assert place_of_the_second(world, rules_of(policy, "spread", 0.7)) != "n0:0"


@each_policy
def test_a_busy_card_is_shared_further_only_up_to_the_option(policy: str, rules_of: RulesOf) -> None:
    world = one_sharer_and_another_that_waits()
    apply(world, ev.GpusUsed(NOW_S, "n0", (0.5, 0.0, 0.0, 0.0)))
    assert place_of_the_second(world, rules_of(policy, "bin-pack", 0.95)) == "n0:0"
    assert place_of_the_second(world, rules_of(policy, "bin-pack", 0.3)) != "n0:0"


@pytest.mark.parametrize(("order", "plugin"), [("bin-pack", "bin_pack"), ("spread", "spread")])
def test_the_binder_places_shares_in_the_same_way(order: str, plugin: str) -> None:
    config = OperatorConfig.model_validate({"placement": {"shares": order, "busiest": 0.5}})
    (share,) = (one.plugin for one in binder_profile(config).plugins if isinstance(one.plugin, GpuShare))
    assert (share.order, share.busiest) == (plugin, 0.5)


def test_without_a_word_cards_are_filled_up_to_70_percent_of_use() -> None:
    (share,) = (one.plugin for one in binder_profile(OperatorConfig()).plugins if isinstance(one.plugin, GpuShare))
    assert (share.order, share.busiest) == ("bin_pack", 0.7)


# ----------------------------------------------------------------------------------- idle jobs (batuta up)


def _idle_job() -> tuple[World, float]:
    """An elastic job that has used none of its four GPUs for five minutes, and the time then."""
    world = make_world(make_nodes(2, 2), {"j": "n0:01 n1:01"}, [make_job("j", 4, min=1)])
    for now_s in (NOW_S, NOW_S + 300):
        for node in ("n0", "n1"):
            apply(world, ev.GpusUsed(now_s, node, (0.0, 0.0)))
    return world, NOW_S + 300


@each_policy
def test_a_job_is_idle_after_the_time_that_the_option_says(policy: str) -> None:
    world, now_s = _idle_job()
    for after_s, is_idle in ((299.0, True), (301.0, False)):
        plan = decide(world, now_s, local_profile(policy, UpOptions(idle=IdleRules(after_s))))
        decision = plan.decisions.of("j")
        assert decision is not None
        assert (decision.reason is Reason.IDLE) == is_idle


@each_policy
@pytest.mark.parametrize(
    ("action", "command"),
    [(IdleAction.REPORT, None), (IdleAction.SHRINK, Resize), (IdleAction.PARK, Preempt)],
    ids=lambda value: str(getattr(value, "value", "")),
)
def test_an_idle_job_is_treated_as_the_option_says(policy: str, action: IdleAction, command: type | None) -> None:
    world, now_s = _idle_job()
    plan = decide(world, now_s, local_profile(policy, UpOptions(idle=IdleRules(299.0, action))))
    assert [type(one) for one in plan.commands] == ([] if command is None else [command])


# ------------------------------------------------------------------------------------- nodes (batuta up)


def _nodes_of(options: UpOptions) -> tuple[Node, ...]:
    """The virtual nodes of a server, as `batuta up` makes them of its options."""
    local = virtual_nodes(options.nodes, options.gpus, options.gpu_type)
    return with_capacity(local, options.over_allocate, options.cpus, options.memory_gib, virtual=True).nodes


def _started(policy: str, options: UpOptions, share: Share | None = None, **needs: int) -> int:
    """How many of six small jobs a server with these options starts at once."""
    jobs = [make_job(f"j{i}", share=share, **needs) for i in range(6)]
    world = make_world(list(_nodes_of(options)), {}, jobs)
    plan = decide(world, NOW_S, local_profile(policy, options))
    return sum(isinstance(one, Start) for one in plan.commands)


@each_policy
def test_as_many_jobs_start_as_the_options_give_nodes_gpus_cpus_and_memory_for(policy: str) -> None:
    assert _started(policy, UpOptions(nodes=1, gpus=2)) == 2
    assert _started(policy, UpOptions(nodes=2, gpus=2)) == 4
    assert _started(policy, UpOptions(nodes=1, gpus=6)) == 6
    assert _started(policy, UpOptions(nodes=1, gpus=6, cpus=3), cpus_milli_per_gpu=1000) == 3
    assert _started(policy, UpOptions(nodes=1, gpus=6, memory_gib=2), memory_mib_per_gpu=512) == 4


@each_policy
def test_soft_shares_are_promised_as_much_compute_as_the_option_says(policy: str) -> None:
    half = Share(compute_percent=50, soft=True)
    assert _started(policy, UpOptions(nodes=1, gpus=1), half) == 2
    assert _started(policy, UpOptions(nodes=1, gpus=1, over_allocate=200), half) == 4


# ---------------------------------------------------------------------------------- no option is left out

UP_DECIDES = {"nodes", "gpus", "cpus", "memory_gib", "idle", "shares", "busiest", "over_allocate"}
UP_ELSEWHERE = {
    "home": "where the journal is",
    "virtual": "which nodes there are",
    "gpu_type": "which requests for a type fit",
    "port": "the API",
    "unix_socket": "the API, and whose jobs run as whom",
    "job_files": "where jobs of users have their files",
    "listen": "the API",
    "policy": "the policy itself",
    "shadow": "a second policy, which only watches",
    "user_priority": "which priority the API accepts",
    "open_metrics": "the API",
    "metrics_per_job": "the metrics",
    "pass_env": "the environment of jobs",
    "jobs_run_as_me": "the API",
    "set_aside": "which folders of jobs are taken over at the start",
    "keep": "when jobs that are over are forgotten",
    "health_log": "the health watch",
    "health_rules": "the health watch",
    "ranks": "the straggler controller",
    "otlp": "where traces are sent",
    "log_format": "the server's log",
    "limits": "what the processes of jobs may have at most",
    "open_files": "how many files the processes of jobs may open",
}
OPERATOR_DECIDES = {"placement"}
OPERATOR_ELSEWHERE = {
    "policy": "the policy itself",
    "config_map": "where the configuration is",
    "gpu_resources": "what counts as a GPU of a node",
    "gang_timeout_seconds": "the gang binder",
    "restart_backoff_seconds": "the job controller",
    "queues": "the quota",
    "admission": "whether Kueue decides about quota",
    "fair_sharing": "the quota",
    "kueue": "where the quota comes from",
    "retention": "when jobs that are over are forgotten",
    "health": "the health controller",
    "leader_election": "who is the leader",
    "namespaces": "which objects are watched",
    "state_dir": "where the journal is",
    "lease_name": "who is the leader",
    "queue_files": "the quota",
    "health_memory": "the health controller",
    "api": "the API",
    "telemetry": "where traces are sent",
}


def test_every_option_of_up_is_tried_here_or_concerns_something_else() -> None:
    assert UP_DECIDES | UP_ELSEWHERE.keys() == {field.name for field in fields(UpOptions)}


def test_every_setting_of_the_operator_is_tried_here_or_concerns_something_else() -> None:
    assert OPERATOR_DECIDES | OPERATOR_ELSEWHERE.keys() == OperatorConfig.model_fields.keys()
    assert Placement.model_fields.keys() == {"weights", "shares", "busiest"}
