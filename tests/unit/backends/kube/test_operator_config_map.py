"""What of an operator's ConfigMap takes effect at run time, who changed it, and how a policy is written into it."""

from typing import Any

import msgspec
import pytest
import yaml

from batuta.backends.kube.install.chart import manifests
from batuta.backends.kube.operator_config import CONFIG_FILE, OperatorConfig, config_from
from batuta.backends.kube.operator_config_map import (
    AT_RUN_TIME,
    CHANGED_BY,
    OperatorConfigMap,
    at_run_time,
    author_of,
    changed_keys,
    with_policy,
)
from batuta.backends.kube.settings import Settings, YamlSource, validated
from batuta.spec.problem import InputError
from tests.support.chart import release_of

AT_A_START = {
    *("gpuResources", "admission", "kueue.readQuota", "kueue.showWorkloads", "namespaces", "stateDir", "configMap"),
    *("leaseName", "queueFiles", "healthMemory", "telemetry.otlpUrl", "telemetry.logFormat"),
    *("leaderElection.leaseDurationSeconds", "leaderElection.renewDeadlineSeconds"),
    *("leaderElection.retryPeriodSeconds", "health.enabled", "health.rules", "health.poolLabel"),
    *(f"health.burnIn.{name}" for name in ("image", "command", "runtimeClassName", "timeoutSeconds")),
    *("api.listen", "api.port", "api.openMetrics", "api.audiences"),
    *(f"api.tls.{name}" for name in ("mode", "folder", "secret", "configMap", "names", "refreshSeconds")),
}


def config_map(text: str, *managers: tuple[str, str, str], **annotations: str) -> OperatorConfigMap:
    """With `managers` as name, time and the key of `data` that they own."""
    fields = [{"manager": name, "time": time, "fieldsV1": {"f:data": {f"f:{key}": {}}}} for name, time, key in managers]
    metadata = {"name": "batuta-config", "namespace": "batuta-system", "managedFields": fields}
    body = {"metadata": metadata | {"annotations": annotations}, "data": {CONFIG_FILE: text}}
    return msgspec.convert(body, OperatorConfigMap)


def read(text: str) -> OperatorConfig:
    return config_from(YamlSource.parse("config.yaml", text))


def leaves(settings: Settings, above: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in type(settings).model_fields.items():
        value, key = getattr(settings, name), f"{above}{field.alias}"
        found |= leaves(value, f"{key}.") if isinstance(value, Settings) and key not in AT_RUN_TIME else {key}
    return found


def test_each_key_takes_effect_either_at_run_time_or_at_a_start():
    assert leaves(OperatorConfig()) == AT_RUN_TIME | AT_A_START


def test_only_keys_of_run_time_are_taken_up():
    running = OperatorConfig()
    wanted = read("policy: fifo\nretention: {jobs: 3}\nadmission: kueue\napi: {port: 1234, metricsPerJob: 4}\n")
    assert set(changed_keys(running, wanted)) == {"policy", "retention", "admission", "api.port", "api.metricsPerJob"}
    found = at_run_time(running, wanted)
    assert (found.policy, found.retention.jobs, found.api.metrics_per_job) == ("fifo", 3, 4)
    assert (found.admission, found.api.port) == (running.admission, running.api.port)
    assert not [key for key in changed_keys(found, wanted) if key in AT_RUN_TIME]


def changed_values(settings: Settings, key: str) -> dict[str, Any]:
    """The chart's values with another value for a key of run time."""
    other: dict[str, Any] = {
        "policy": "fifo",
        "placement": {"busiest": 0.1},
        "queues": [{"name": "other"}],
        "fairSharing": True,
        "gangTimeoutSeconds": 7,
        "restartBackoffSeconds": 7,
        "retention": {"jobs": 7},
    }
    return {"metricsPerJob": 7} if key == "api.metricsPerJob" else {"config": {key: other[key]}}


@pytest.mark.parametrize("key", sorted(AT_RUN_TIME))
def test_the_chart_starts_no_new_pods_for_a_key_of_run_time(key: str):
    def made(values: dict[str, Any]) -> tuple[str, OperatorConfig]:
        objects = {one["kind"]: one for one in manifests(release_of(values)) if one["metadata"]["name"] in NAMES}
        text = objects["ConfigMap"]["data"][CONFIG_FILE]
        template = objects["Deployment"]["spec"]["template"]["metadata"]
        return template["annotations"]["checksum/config"], validated(OperatorConfig, yaml.safe_load(text))

    before, config = made({})
    after, other = made(changed_values(config, key))
    assert list(changed_keys(config, other)) == [key]
    assert before == after


NAMES = ("batuta-config", "batuta-operator")


def test_the_author_is_the_last_who_set_the_text_and_not_who_changed_a_label():
    found = config_map(
        "policy: fifo\n",
        ("helm", "2026-01-01T00:00:00Z", CONFIG_FILE),
        ("kubectl-edit", "2026-01-02T00:00:00Z", CONFIG_FILE),
        ("kubectl-label", "2026-01-03T00:00:00Z", "another.yaml"),
    )
    assert author_of(found) == "cluster:kubectl-edit"


def test_a_user_is_the_author_only_of_what_the_operator_wrote():
    by_operator = ("batuta-operator", "2026-01-02T00:00:00Z", CONFIG_FILE)
    by_kubectl = ("kubectl-edit", "2026-01-03T00:00:00Z", CONFIG_FILE)
    assert author_of(config_map("", by_operator, **{CHANGED_BY: "ana"})) == "ana"
    assert author_of(config_map("", by_operator, by_kubectl, **{CHANGED_BY: "ana"})) == "cluster:kubectl-edit"
    assert author_of(config_map("")) == "cluster"


@pytest.mark.parametrize(
    "text",
    [
        "# ours\nqueues:\n  - name: a  # first\npolicy: rent # the default\nretention: {jobs: 5}\n",
        "{policy: 'rent', queues: [{name: a}], retention: {jobs: 5}}",
        "queues: [{name: a}] # größer\nretention: {jobs: 5}\n",
        'queues: [{name: a}]\nretention: {jobs: 5}\n"policy": >-\n  rent\n',
    ],
)
def test_a_policy_is_replaced_and_all_else_stays(text: str):
    found = with_policy(config_map(text), "afs-l")
    assert read(found) == read(text).model_copy(update={"policy": "afs-l"})
    assert found.count("#") == text.count("#")


@pytest.mark.parametrize("text", ["{queues: [{name: a}]}\n", "policy: &name rent\nstateDir: *name\n"])
def test_a_policy_that_cannot_be_replaced_is_refused(text: str):
    with pytest.raises(InputError, match="kubectl -n batuta-system edit configmap batuta-config"):
        with_policy(config_map(text), "afs-l")
