"""Where shares of GPUs go, as `batuta up` or the operator's configuration says: under every policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import pytest

from batuta.backends.kube.binder.plugins.gpus import GpuShare
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.bootstrap.local_server import UpOptions, local_profile
from batuta.bootstrap.operator_leader import binder_profile, operator_profile
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import Share
from batuta.core.plan import Start
from batuta.core.world import World
from batuta.policies.registry import policy_names
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world, shown

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


@pytest.mark.parametrize("policy", policy_names())
def test_shares_fill_cards_or_are_spread_as_the_option_says(policy: str, rules_of: RulesOf) -> None:
    world = one_sharer_and_another_that_waits()
    assert place_of_the_second(world, rules_of(policy, "bin-pack", 0.7)) == "n0:0"
    assert place_of_the_second(world, rules_of(policy, "spread", 0.7)) != "n0:0"


@pytest.mark.parametrize("policy", policy_names())
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
    (share,) = (
        one.plugin for one in binder_profile(OperatorConfig()).plugins if isinstance(one.plugin, GpuShare)
    )
    assert (share.order, share.busiest) == ("bin_pack", 0.7)
