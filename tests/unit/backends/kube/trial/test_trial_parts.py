"""The parts of a trial: its definition, the job of one size, the plan, a status that can be read again."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.crd import broken
from batuta.backends.kube.trial import crd
from batuta.backends.kube.trial.controller import trial_manifest
from batuta.backends.kube.trial.model import RULES, TrialRun
from batuta.backends.kube.trial.plan import Planned, Unplannable, plan, run_manifest, run_name, tried_job
from batuta.backends.kube.trial.reconciler import RUNS, TrialConclusion, read_measured, shows, status_of
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import to_job
from batuta.core.job import Job, JobState
from batuta.core.trial import TrialMeasurement, TrialOutcome
from tests.support.unified_jobs import ON_CPU, manifest, read, unified_job

FILE = Path(__file__).parents[5] / "deploy/helm/batuta/crds/trialruns.batuta.dev.yaml"


def trial(name: str = "resnet", **spec: Any) -> TrialRun:
    """A trial that the API server has accepted."""
    meta = {"name": name, "namespace": "team-a", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body = {"metadata": meta, "spec": spec or {"jobName": "resnet"}}
    return msgspec.json.decode(msgspec.json.encode(body), type=TrialRun)


def planned(most: int = 8, uj: UnifiedJob | None = None, **spec: Any) -> Planned | Unplannable:
    return plan(trial(**spec), uj or unified_job(), {}, lambda job: most)


def showing(run: TrialRun, shown: dict[str, Any]) -> TrialRun:
    """The trial, once its status has been written."""
    return TrialRun(metadata=run.metadata, raw_spec=run.raw_spec, raw_status=shown)


def test_the_chart_has_the_definition_of_this_model():
    assert FILE.read_text() == crd.DEFINITION.to_yaml(), (
        f"the model has changed: python -m batuta.backends.kube.trial.crd > {FILE.name}"
    )


def test_every_column_shows_a_field_that_there_is():
    (version,) = crd.DEFINITION.build()["spec"]["versions"]
    for column in version["additionalPrinterColumns"]:
        place = version["schema"]["openAPIV3Schema"]
        for key in column["jsonPath"].strip(".").split("."):
            place = place["properties"][key] if key != "creationTimestamp" else place


def test_only_rules_about_a_change_are_left_to_the_api_server():
    assert all((rule.holds is None) == ("oldSelf" in rule.cel) for rule in RULES)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"budgetSeconds": 60}, "one of them"),
        ({"jobName": "a", "template": {"spec": {}}}, "one of them"),
        ({"jobName": "a", "sizes": [2, 1]}, "must ascend"),
        ({"jobName": "a", "eachSeconds": 400}, "at most budgetSeconds"),
    ],
)
def test_a_broken_rule_is_told(spec, said):
    (found,) = broken(RULES, trial(**spec))
    assert said in found


# --------------------------------------------------------------------------------------------- the plan


def test_sizes_are_chosen_up_to_what_the_nodes_could_give():
    found = planned(most=4)
    assert isinstance(found, Planned)
    assert (found.plan.sizes, found.plan.each_s) == ((1, 2, 4), 60.0)
    assert found.plan.open_up_to is None


def test_where_the_size_is_open_it_may_be_chosen():
    found = planned(uj=unified_job(annotations={names.WANTED: names.ANY_SIZE}))
    assert isinstance(found, Planned)
    assert found.plan.open_up_to == 8


def test_everything_that_stands_against_it_is_told_at_once():
    assert planned(jobName="resnet", sizes=[3, 99]) == Unplannable(
        ("trial: 99 GPUs is no size that this task can have here (some of 1, 2, 3, 4, 5, 6, 7, 8)",)
    )
    share = unified_job(replicas={"maxReplicas": 1}, sharing={"gpuCompute": 50})
    for one in (share, unified_job(replicas=ON_CPU)):
        found = planned(uj=one)
        assert isinstance(found, Unplannable)
        assert "nothing to try out" in found.faults[0]


def test_a_plan_that_was_written_down_stays_when_nodes_come_and_go():
    run = showing(trial(), {"eachSeconds": 30, "runs": [{"gpus": 1, "state": "measured"}, {"gpus": 8}]})
    found = plan(run, unified_job(), {}, lambda job: 2)
    assert isinstance(found, Planned)
    assert (found.plan.sizes, found.plan.each_s) == ((1, 8), 30.0)


def test_a_template_is_a_job_of_the_application_that_it_names():
    spec = manifest()["spec"]
    run = trial(name="trial-1", template={"metadata": {"name": "bert"}, "spec": spec})
    uj = tried_job(run, {})
    assert uj is not None
    job = to_job(uj, {"": 0})
    assert isinstance(job, Job)
    assert (job.application, job.id) == ("bert", "team-a/trial-1")


# ------------------------------------------------------------------------------------------- its jobs


def made(gpus: int = 4, **changes: Any) -> dict[str, Any]:
    uj = unified_job(**changes)
    job = to_job(uj, {"": 0})
    assert isinstance(job, Job)
    return run_manifest(trial(priorityClassName="low", jobName="resnet"), uj, job, gpus)


def test_one_size_is_a_rigid_job_that_never_starts_over():
    body = made(replicas={"gpusPerReplica": 2, "sizes": [1, 2, 8], "targetReplicas": 2})
    replicas = body["spec"]["replicaSpec"]
    assert (replicas["minReplicas"], replicas["maxReplicas"]) == (2, 2)
    assert not {"sizes", "targetReplicas"} & replicas.keys()
    assert (body["spec"]["backoffLimit"], body["spec"]["priorityClassName"]) == (0, "low")
    job = to_job(
        read(body | {"metadata": body["metadata"] | {"creationTimestamp": "2026-01-01T00:00:00Z"}}),
        {"": 0, "low": 1},
    )
    assert isinstance(job, Job)
    assert (job.size, job.min, job.max, job.trial_of) == (4, 4, 4, "team-a/resnet")
    assert job.application == "resnet"


def test_it_goes_with_its_trial_and_is_not_tried_out_itself():
    meta = made(annotations={names.TRIAL: "true", names.USER: "ann"})["metadata"]
    assert meta["ownerReferences"][0]["uid"] == "u1"
    assert meta["annotations"][names.TRIAL] == "false"
    assert meta["annotations"][names.USER] == "ann"


def test_its_pods_know_and_keep_their_last_words():
    (container,) = made()["spec"]["replicaSpec"]["template"]["spec"]["containers"]
    assert {"name": "BATUTA_TRIAL", "value": "1"} in container["env"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_names_of_runs_are_host_names_and_differ():
    long = ["a" * 50, "a" * 49 + "b"]
    found = {run_name(name, gpus) for name in long for gpus in (1, 64)}
    assert len(found) == 4
    assert all(len(name) <= 50 for name in found)
    assert run_name("resnet", 4) == "resnet-t4"


# ------------------------------------------------------------------------------------- for jobs that wait


def test_a_job_says_by_annotations_how_it_is_tried_out():
    words = {names.TRIAL_SIZES: "4, 1,2", names.TRIAL_BUDGET: "120", names.TRIAL_EACH: "20"}
    body = trial_manifest(unified_job(annotations=words))
    assert body["spec"] == {
        "jobName": "resnet",
        "sizes": [1, 2, 4],
        "budgetSeconds": 120,
        "eachSeconds": 20,
    }
    assert trial_manifest(unified_job())["spec"] == {"jobName": "resnet"}


# ----------------------------------------------------------------------------------------------- status

ONE = TrialMeasurement(
    "team-a/resnet-t1",
    1,
    TrialOutcome.MEASURED,
    "resnet",
    "A100",
    unit="samples",
    batch=64,
    units_per_s=100.0,
    step_s=0.64,
    memory_mib=900,
    utilisation=0.75,
)
TWO = TrialMeasurement("team-a/resnet-t2", 2, TrialOutcome.OUT_OF_MEMORY, "resnet", "A100", detail="it was too much")


def test_what_is_written_down_is_read_again_by_the_next_operator():
    found = planned(jobName="resnet", sizes=[1, 2, 4])
    assert isinstance(found, Planned)
    run = trial()
    shown = status_of(run, found.plan, {1: ONE, 2: TWO}, {4: RUNS}, None, 1000.0)
    run = showing(run, shown)
    assert shows(run, shown)
    assert [row["state"] for row in shown["runs"]] == ["measured", "out of memory", "runs"]
    assert (shown["progress"], shown["state"], shown["runs"][0]["efficiencyPercentage"]) == (
        "2/3",
        "RUNNING",
        100,
    )
    assert read_measured(run, "resnet") == {1: ONE, 2: TWO}
    assert not run.is_over


def test_a_trial_that_is_over_has_its_condition_and_keeps_its_time():
    verdict = TrialConclusion(JobState.FAILED, "Invalid", "no")
    shown = status_of(trial(), None, {}, {}, verdict, 1000.0)
    run = showing(trial(), shown)
    assert run.is_over
    conditions = [(one.type, one.status) for one in run.status.conditions]
    assert conditions == [("Complete", "False"), ("Failed", "True")]
    assert status_of(run, None, {}, {}, verdict, 2000.0) == shown
