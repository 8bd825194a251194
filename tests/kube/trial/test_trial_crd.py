"""TrialRun in a real cluster: its rules hold, and a template is checked as a job is."""

import json
from typing import Any

import pytest

from tests.kube.trial.conftest import Trials, template
from tests.support.kube.api import ApiError


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "by jobName or by template, one of them"),
        ({"jobName": "a", "template": {"spec": {}}}, "jobType: Required value"),
        ({"jobName": "a", "sizes": [2, 1]}, "sizes must ascend"),
        ({"jobName": "a", "sizes": [0]}, "spec.sizes[0]"),
        (
            {"jobName": "a", "eachSeconds": 60, "budgetSeconds": 30},
            "eachSeconds must be at most budgetSeconds",
        ),
        ({"jobName": "a", "budgetSeconds": 1}, "spec.budgetSeconds"),
    ],
)
def test_a_trial_that_breaks_a_rule_is_refused_with_its_message(
    trials: Trials, spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(ApiError) as refused:
        trials.try_out("wrong", spec)
    assert said in json.loads(refused.value.text)["message"]


def test_a_template_is_held_to_the_rules_of_a_unified_job(trials: Trials) -> None:
    own = template(trials)
    own["spec"]["replicaSpec"]["minReplicas"] = 9
    with pytest.raises(ApiError) as refused:
        trials.try_out("wrong", {"template": own})
    assert "minReplicas must be at most maxReplicas" in json.loads(refused.value.text)["message"]
