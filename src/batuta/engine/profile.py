"""Builds a scheduler profile from a policy's name: policy, placer, admission and costs that fit together."""

from __future__ import annotations

from dataclasses import replace

from batuta.core.decide import SchedulerProfile
from batuta.core.placer import Placer
from batuta.core.policy import PlacerKind, Policy, PolicyTraits
from batuta.core.utilisation import IdleRules
from batuta.core.weigh import Costs
from batuta.engine.loop import Cadence
from batuta.placement.attempt import PlacerOptions
from batuta.placement.most_free import MostFreePlacer
from batuta.placement.placer import TopologyPlacer
from batuta.placement.whole_nodes import WholeNodePlacer
from batuta.policies.checked import BrokenPolicyError
from batuta.policies.registry import UnknownPolicyError, load_policy, load_policy_file
from batuta.quota.admission import QuotaAdmission
from batuta.spec.problem import InputError

LIVE_EVERY_S = 60.0
"""A server decides at least this often while jobs wait: its policy may change at run time, so it decides as
often as any policy asks for."""
LIVE_CALM_S = 5.0  # a server decides no more often than this on reports of progress alone


def find_policy(name: str) -> Policy:
    """Return a policy by its name, or the one in a Python file: `mine.py`, or `mine.py:ClassName`."""
    path, _, wanted = name.partition(":")
    try:
        return load_policy_file(path, wanted) if path.endswith(".py") else load_policy(name)
    except (BrokenPolicyError, UnknownPolicyError) as error:
        raise InputError.of(str(error)) from error


def placer_for(traits: PolicyTraits, options: PlacerOptions | None = None) -> Placer:
    """Return the placer that a policy declares, with these options."""
    options = options or PlacerOptions()
    match traits.placer:
        case PlacerKind.TOPOLOGY:
            return TopologyPlacer(options)
        case PlacerKind.WHOLE_NODES:
            return WholeNodePlacer(options)
        case PlacerKind.MOST_FREE | PlacerKind.MOST_FREE_BY_SIZE:
            return MostFreePlacer(traits.placer is PlacerKind.MOST_FREE_BY_SIZE, options)


def profile_for(
    policy_name: str,
    weigh: bool = True,
    freeze: bool = True,
    placing: PlacerOptions | None = None,
    idle: IdleRules | None = None,
) -> SchedulerProfile:
    """Return the profile of a policy. `freeze`: jobs in transition keep what they have."""
    policy = find_policy(policy_name)
    traits = policy.traits
    weigh, freeze = weigh and not traits.as_published, freeze and not traits.as_published
    costs = Costs(enabled=weigh, growth=not traits.weighs, freeze_transitions=freeze)
    rules = SchedulerProfile(policy, placer_for(traits, placing), QuotaAdmission(), costs)
    return rules if idle is None else replace(rules, idle=idle)


def live_cadence() -> Cadence:
    return Cadence(calm_s=LIVE_CALM_S, every_s=LIVE_EVERY_S)
