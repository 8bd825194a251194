"""A case about quota, played step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from batuta.quota import claim
from batuta.quota.trial import Standing, Trial
from batuta.spec.quota_case import (
    Action,
    Case,
    ChangeQuota,
    Delete,
    Finish,
    PatchWorkload,
    PodSet,
    Step,
    Submit,
)


class Played(NamedTuple):
    """A step, how things stand after it, and how that differs from what was expected."""

    step: Step
    standing: Standing
    differences: list[str]


def play(case: Case) -> Iterator[Played]:
    """Plays the steps of a case, one after the other."""
    trial, over = Trial(case.quota), set[str]()
    for step in case.steps:
        standing = _do(trial, step.action, over)
        lost = (one.workload for one in standing.preempted)
        yield Played(step, standing, step.expected.differences(standing.admitted, lost, standing.pending))


def _do(trial: Trial, action: Action, over: set[str]) -> Standing:
    """`over` has the workloads that finished: what is done to them changes nothing."""
    match action:
        case Submit():
            over.discard(action.name)
            pod_sets = tuple(_pod_set(one) for one in action.pod_sets)
            return trial.submit(
                action.name, action.queue, pod_sets, action.priority, action.active, action.namespace
            )
        case Finish() | Delete() | PatchWorkload() if action.name in over:
            return trial.standing()
        case Finish() | Delete():
            over.add(action.name)
            return trial.finish(action.name)
        case PatchWorkload():
            return trial.patch(action.name, action.active, action.priority, action.queue)
        case ChangeQuota():
            return trial.change(action.quota)


def _pod_set(one: PodSet) -> claim.PodSet:
    return claim.PodSet(one.requests, one.count, one.min_count, one.name, one.node_selector, one.tolerations)
