"""What must hold between the fields of a TrialRun: for the API server as CEL, for Batuta as Python."""

from __future__ import annotations

import re
from typing import Final

from batuta.backends.kube.definition import Rule, broken
from batuta.backends.kube.trial.model import LONGEST_TRIAL_NAME, TRIAL_NAME_PATTERN, TrialRun

_KEPT: Final = ("jobName", "sizes", "budgetSeconds", "eachSeconds")


def broken_rules(trial: TrialRun) -> list[str]:
    """The messages of the rules that a trial breaks, each with its field."""
    return broken(RULES, trial)


def _ascends(trial: TrialRun) -> bool:
    sizes = trial.spec.sizes
    return sizes is None or sizes == sorted(sizes)


def _is_within(trial: TrialRun) -> bool:
    spec = trial.spec
    return spec.each_seconds is None or spec.each_seconds <= spec.budget_seconds


def _sound_name(trial: TrialRun) -> bool:
    name = trial.metadata.name
    return len(name) <= LONGEST_TRIAL_NAME and re.search(TRIAL_NAME_PATTERN, name) is not None


def _stays(field: str) -> Rule[TrialRun]:
    new, old = f"self.{field}", f"oldSelf.{field}"
    return Rule(
        "spec",
        f"has({new}) == has({old}) && (!has({new}) || {new} == {old})",
        f"{field} cannot be changed: what was measured would be of another trial; create another one",
        field=field,
    )


RULES: Final[tuple[Rule[TrialRun], ...]] = (
    Rule(
        "",
        f"size(self.metadata.name) <= {LONGEST_TRIAL_NAME} && "
        f"self.metadata.name.matches('{TRIAL_NAME_PATTERN}')",
        f"the name becomes part of host names: at most {LONGEST_TRIAL_NAME} letters, digits and dashes, "
        "beginning with a letter",
        holds=_sound_name,
    ),
    Rule(
        "spec",
        "has(self.jobName) != has(self.template)",
        "say what is to be tried out by jobName or by template, one of them",
        holds=lambda trial: (trial.spec.job_name is None) != (trial.spec.template is None),
    ),
    Rule(
        "spec",
        "!has(self.sizes) || self.sizes.isSorted()",
        "sizes must ascend",
        field="sizes",
        holds=_ascends,
    ),
    Rule(
        "spec",
        "!has(self.eachSeconds) || self.eachSeconds <= self.budgetSeconds",
        "eachSeconds must be at most budgetSeconds",
        field="eachSeconds",
        holds=_is_within,
    ),
    *map(_stays, _KEPT),
)
