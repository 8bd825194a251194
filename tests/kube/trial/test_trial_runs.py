"""A TrialRun has its job run at each size, tells what that showed, and jobs start from it."""

import json
from pathlib import Path

from batuta.backends.kube import names
from tests.kube.cli.command_line import Batuta
from tests.kube.conftest import AddNodes
from tests.kube.trial.conftest import Bench, template
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.unified import Submitted, manifest

QUICK = {"sizes": [1, 2, 4], "eachSeconds": 6, "parallelism": 1, "budgetSeconds": 60}
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"


def test_a_trial_measures_each_size_and_outlives_its_operator(bench: Bench, operator: OperatorProcess) -> None:
    """Given a trial of two sizes, when the operator is killed between them, then both are measured."""
    bench.try_out("resnet", QUICK | {"sizes": [1, 2], "template": template(bench, most=2)})

    def one_is_done() -> bool:
        bench.report()
        return bench.status("resnet").get("progress") == "1/2"

    wait_until(one_is_done, "the first size to be measured", pause_s=0.3)
    operator.kill()
    operator.start()
    status = bench.ends("resnet")
    one, two = status["runs"]
    assert [one["state"], two["state"]] == ["measured", "measured"]
    assert 80 < float(one["unitsPerSecond"]) < 120 < float(two["unitsPerSecond"]) < 230
    assert one["efficiencyPercentage"] == 100
    assert (two["utilisationPercentage"], 1000 <= two["memoryMib"] <= 1003) == (80, True)
    assert status["chosenGpus"] == 2
    assert "(measured in 2 trial runs)" in status["message"]
    # and its runs are gone, but what they showed is what the next job of the application starts from
    wait_until(lambda: not bench.api.items(bench.path), "the runs to be gone")
    body = manifest(
        "next", "Pods", replicas=(1, 2), annotations={names.WANTED: names.ANY_SIZE}, pod={"runs_for": "3600s"}
    )
    body["metadata"]["labels"] = {names.APPLICATION: f"resnet-{bench.namespace}"}
    job = bench.create(body)
    job.reaches("RUNNING")
    assert job.status["sizeChoice"]["gpus"] == 2


def test_a_job_waits_for_its_trial_and_runs_then(bench: Bench) -> None:
    """Given a job that says so, then its trial is made first, one size after the other; then it runs."""
    bench.speeds = {1: 100.0, 2: 190.0}
    words = {names.TRIAL: "true", names.TRIAL_EACH: "6", names.TRIAL_SIZES: "1,2"}
    job = bench.create(manifest("bert", "Pods", replicas=(1, 2), annotations=words, pod={"runs_for": "3600s"}))
    wait_until(lambda: job.status.get("reason") == "InTrial", "it to say why it waits")
    assert "is tried out before it is queued" in job.status["message"]
    assert job.running() == {}
    status = bench.ends("bert")
    assert [run["gpus"] for run in status["runs"]] == [1, 2]
    job.runs_with(2)
    owner = bench.trial("bert")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == (names.KIND, "bert")


def test_a_job_that_is_deleted_and_made_again_at_once_is_tried_out_again(bench: Bench) -> None:
    """Given the trial of a job that is gone, then another one of its name has a trial of its own."""
    bench.speeds = {1: 100.0}
    words = {names.TRIAL: "true", names.TRIAL_EACH: "6", names.TRIAL_SIZES: "1"}
    body = manifest("again", "Pods", replicas=1, annotations=words, pod={"runs_for": "3600s"})
    bench.create(body)
    first = wait_until(lambda: bench.uid("again"), "its trial")
    bench.ends("again")
    bench.api.delete(f"{bench.path}/again")
    wait_until(Submitted(bench, "again").is_gone, "its end")
    job = bench.create(body)
    wait_until(lambda: job.status.get("reason") == "InTrial", "it to say why it waits")
    wait_until(lambda: bench.uid("again") not in ("", first), "its own trial")
    assert [run["state"] for run in bench.ends("again")["runs"]] == ["measured"]
    job.runs_with(1)


def test_what_a_trial_showed_says_with_whom_a_job_may_share_a_card(bench: Bench, add_nodes: AddNodes) -> None:
    """Given a trial in which GPUs were 80 % busy, then two of its application do not share one."""
    bench.try_out("resnet", QUICK | {"sizes": [1], "template": template(bench, most=1)})
    bench.ends("resnet")
    add_nodes(1, NodeShape(gpus=0, capacity={names.SHARE_MEMORY: "320", names.SHARE_COMPUTE: "200"}))
    cards = set()
    for name in ("one", "two"):
        body = manifest(name, "Pods", sharing={"gpuMemory": "4Gi", "gpuCompute": 20})
        body["metadata"]["labels"] = {names.APPLICATION: f"resnet-{bench.namespace}"}
        body["spec"]["replicaSpec"]["template"]["metadata"]["annotations"][names.SHARE_LIMITS] = "soft"
        job = bench.create(body)
        job.runs_with(1)
        (pod,) = job.workers().values()
        assert pod["metadata"]["annotations"][names.EXPECTED_UTILISATION] == "0.8"
        cards.add(pod["metadata"]["annotations"][names.GPUS])
    assert cards == {"0", "1"}


def test_a_job_that_fits_nowhere_is_not_started_and_says_so(bench: Bench) -> None:
    words = {names.TRIAL: "true", names.TRIAL_EACH: "6"}
    how = {"fails_after": "10ms", "last_words": OOM}
    job = bench.create(manifest("huge", "Pods", replicas=(1, 2), annotations=words, pod=how))
    status = bench.ends("huge")
    assert [run["state"] for run in status["runs"]] == ["out of memory", "out of memory"]
    assert (status["state"], status["reason"]) == ("FAILED", "OutOfMemory")
    wait_until(lambda: job.status.get("reason") == "OutOfMemory", "the job to say so")
    # until its user says that it shall start all the same
    job.patch({"metadata": {"annotations": {names.TRIAL: "false"}}})
    wait_until(lambda: job.status.get("failures"), "the job to have been started")


def test_a_trial_that_cannot_be_made_says_everything_that_is_wrong(bench: Bench) -> None:
    bench.try_out("odd", {"sizes": [3, 8], "template": template(bench)})
    bench.try_out("lost", {"jobName": "nobody"})
    status = bench.ends("odd")
    assert status["reason"] == "Invalid"
    assert "8 GPUs is no size that this task can have here" in status["message"]
    assert "there is no UnifiedJob 'nobody'" in bench.ends("lost")["message"]


def test_what_gets_no_gpus_within_the_budget_is_told_and_holds_nobody_up(bench: Bench) -> None:
    taken = bench.submit("taken", "Pods", replicas=4, pod={"runs_for": "3600s"})
    taken.runs_with(4)
    words = {names.TRIAL: "true", names.TRIAL_BUDGET: "5"}
    job = bench.create(manifest("late", "Pods", replicas=1, annotations=words))
    assert [run["state"] for run in bench.ends("late")["runs"]] == ["got no GPUs in time"]
    wait_until(lambda: job.status.get("reason") not in ("", "InTrial"), "the job to be queued")


def test_batuta_trial_makes_one_and_tells_what_it_showed(bench: Bench, tmp_path: Path) -> None:
    """A task without reports: its run is seen, and told as what it is."""
    task = tmp_path / "task.yaml"
    task.write_text(
        "name: quick\nresources: {accelerators: 1, cpus: 1, image_id: docker:train}\nrun: python3 train.py\n"
    )
    batuta = Batuta(bench.cluster.kubeconfig_path, bench.namespace)
    said = batuta("trial", str(task), "--each", "5s", "--output", "json")
    assert said.code == 0, said
    found = json.loads(said.out)
    assert [(run["gpus"], run["state"]) for run in found["runs"]] == [(1, "reported no speed")]
    assert "too little was measured" in found["sentence"]
    shown = bench.cluster.kubectl("get", "trialruns", "-n", bench.namespace)
    assert [word for word in ("STATE", "SIZES", "CHOSEN", "SUCCEEDED", "1/1") if word not in shown] == []
