"""Settings take effect while the operator runs, from the ConfigMap that keeps them."""

from functools import partial

from tests.kube.conftest import AddNodes
from tests.kube.operator.settings.conftest import Settings
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import RELEASE, OperatorProcess
from tests.support.kube.unified import Jobs

FAST_LEASE = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 1}


def test_another_policy_decides_from_the_next_cycle_on_and_a_restart_keeps_it(
    settings: Settings, operator: OperatorProcess, jobs: Jobs, add_nodes: AddNodes
) -> None:
    add_nodes(1, NodeShape(gpus=2))
    jobs.submit("before", "Pods").runs_with(1)
    assert {event["plan"]["policy"] for event in settings.journal("Planned")} == {"elastic-fifo"}

    settings.edit(policy="srjf")
    wait_until(lambda: len(settings.journal("PolicySet")) > 1, "the policy to be in the journal")
    last = settings.journal("PolicySet")[-1]
    assert (last["policy"], last["actor"], last["cause"]) == ("srjf", "cluster:kubectl-patch", "config")
    jobs.submit("after", "Pods").runs_with(1)
    assert settings.journal("Planned")[-1]["plan"]["policy"] == "srjf"
    wait_until(lambda: settings.told().get("ConfigChanged"), "the ConfigMap to tell it")
    assert settings.told() == {"ConfigChanged": ["in effect, changed by cluster:kubectl-patch: policy"]}

    # The file of the process is as old as its start, as that of a pod may be by a minute.
    operator.kill()
    operator.start()
    assert [event["policy"] for event in settings.journal("PolicySet")] == ["elastic-fifo", "srjf"]
    jobs.submit("later", "Pods").reaches("PENDING")
    assert settings.journal("Planned")[-1]["plan"]["policy"] == "srjf"


def test_a_configuration_that_does_not_validate_changes_nothing_and_is_told(
    settings: Settings, operator: OperatorProcess, jobs: Jobs, add_nodes: AddNodes
) -> None:
    add_nodes(1, NodeShape(gpus=1))
    for text, word in (
        ("policy: srfj\nretention: {jobs: 1}\n", "config.yaml:1:9: unknown policy 'srfj' (did you mean srjf?)"),
        ("policy: srjf\nretention: {job: 1}\n", "config.yaml:2:18: unknown key retention.job (did you mean jobs?)"),
        (
            "policy: srjf\nplacement: {weights: {Speed: 1}}\n",
            "config.yaml:2:22: placement.weights: no binder plugin is named 'Speed'",
        ),
        ("policy: [\n", "config.yaml:2:1: is not YAML"),
    ):
        settings.write(text)
        wait_until(partial(_tells, settings, operator, word), f"the ConfigMap and the log to tell {word}")
    assert set(settings.told()) == {"Refused"}
    assert [event["policy"] for event in settings.journal("PolicySet")] == ["elastic-fifo"]
    jobs.submit("one", "Pods").runs_with(1)
    assert settings.journal("Planned")[-1]["plan"]["policy"] == "elastic-fifo"


def test_a_queue_that_gets_less_gives_back_and_its_quota_has_an_author(
    settings: Settings, operator: OperatorProcess, jobs: Jobs, add_nodes: AddNodes
) -> None:
    add_nodes(1, NodeShape(gpus=2))
    settings.edit(queues=[{"name": "default", "quota": {"*": 2}}])
    jobs.submit("first", "Pods").runs_with(1)
    second = jobs.submit("second", "Pods")
    second.runs_with(1)
    settings.edit(queues=[{"name": "default", "quota": {"*": 1}}], gangTimeoutSeconds=60)
    second.reaches("PREEMPTED", "PENDING")
    assert {event["actor"] for event in settings.journal("QuotaSet")} == {"cluster:kubectl-patch"}
    (last,) = [event for event in settings.journal("ActionTaken") if "gangTimeoutSeconds" in event["target"]]
    assert (last["action"], last["actor"]) == ("config.set", "cluster:kubectl-patch")
    settings.edit(queues=[{"name": "default", "quota": {"*": 2}}])
    second.runs_with(1)


def test_what_needs_a_restart_is_told_and_waits_for_it(settings: Settings, operator: OperatorProcess) -> None:
    settings.edit(namespaces=["team-a"], api={"port": operator.port, "metricsPerJob": 3})
    told = "takes effect at the next start of the operator: namespaces; "
    wait_until(lambda: settings.told().get("RestartNeeded"), "the ConfigMap to tell it")
    (note,) = settings.told()["RestartNeeded"]
    assert note.startswith(told)
    assert settings.told()["ConfigChanged"] == ["in effect, changed by cluster:kubectl-patch: api.metricsPerJob"]
    assert operator.leads


def test_of_two_operators_the_leader_alone_records_and_the_other_goes_on_with_the_same(settings: Settings) -> None:
    lease = {"leaseName": f"{RELEASE}-operator", "leaderElection": FAST_LEASE}
    with settings.operator("first", elect=True, **lease) as first:
        first.wait_until_leading()
        with settings.operator("second", elect=True, **lease) as second:
            wait_until(second.metrics, "the other one to answer")
            settings.edit(policy="srjf")
            wait_until(lambda: len(settings.journal("PolicySet", "first")) == 2, "the leader to record it")
            assert settings.journal("PolicySet", "second") == []
            first.kill()
            second.wait_until_leading(30.0)
            (only,) = settings.journal("PolicySet", "second")
            assert (only["policy"], only["actor"]) == ("srjf", "cluster:kubectl-patch")


def _tells(settings: Settings, operator: OperatorProcess, word: str) -> bool:
    return any(word in note for note in settings.told().get("Refused", [])) and word in operator.log.read_text()
