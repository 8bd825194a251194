"""UnifiedJobs that no schema has checked: an API server may have accepted anything before."""

from collections.abc import Iterator
from functools import partial

import pytest
import yaml

from batuta.backends.kube import names
from tests.support.kube.api import Json
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import CRD, OperatorProcess, grant
from tests.support.kube.unified import Jobs, Submitted, manifest


@pytest.fixture
def lax(broken: ControlPlane) -> Iterator[Jobs]:
    """A namespace of an API server that accepts anything as a UnifiedJob."""
    definition = yaml.safe_load(CRD.read_text())
    for version in definition["spec"]["versions"]:
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version["schema"] = {"openAPIV3Schema": {**anything, "properties": {"spec": anything, "status": anything}}}
    broken.apply(definition, "--force-conflicts")
    jobs = Jobs(broken, broken.new_namespace())
    wait_until(lambda: jobs.accepts({"spec": {"jobType": 7}}), "anything to be accepted")
    yield jobs
    jobs.api.delete(jobs.path)
    wait_until(lambda: not jobs.api.items(jobs.path), "the nonsense to be gone")
    broken.apply(CRD, "--force-conflicts")
    wait_until(lambda: not jobs.accepts({"spec": {"jobType": 7}}), "the schema to be back")


def test_nonsense_gets_a_condition_and_never_ends_the_operator(broken, lax, tmp_path):
    """Given objects that no schema has seen, each says what is wrong with it, and a good one runs."""
    nodes = broken.add_nodes(1, NodeShape(gpus=2), lax.namespace)
    bad: dict[str, Json] = {
        "no-replicas": {"spec": {"jobType": "Pods"}},
        "wrong-type": {"spec": {"jobType": "Dance", "replicaSpec": {"minReplicas": 1}}},
        "numbers": {"spec": {"jobType": 7, "replicaSpec": {"minReplicas": "many", "template": []}}},
        "negative": manifest("negative", replicas=(-1, 4)),
        "no-containers": manifest(
            "no-containers", replica_spec={"template": {"spec": {"containers": [{"name": 3}, "x"]}}}
        ),
        "no-class": manifest("no-class", priorityClassName="nobody"),
    }
    with OperatorProcess(broken, tmp_path, kubeconfig=grant(broken)):
        for name, body in bad.items():
            meta = {"metadata": {"name": name}, "apiVersion": names.API_VERSION, "kind": names.KIND}
            lax.create(body | meta)
        strange = lax.create(
            manifest("strange", annotations={names.TARGET: "x", names.WANTED: "-"})
            | {"status": {"conditions": "none", "run": 3, "startTime": "yesterday", "placement": []}}
        )
        lax.api.patch(f"{strange.path}/status", {"status": {"conditions": [3], "run": 3, "startTime": "noon"}})
        good = lax.submit("good")
        good.runs_with(1)
        for name in bad:
            told = partial(message_of, Submitted(lax, name))
            wait_until(told, f"what is wrong with {name}")
        strange.runs_with(1)
    broken.delete_nodes(nodes)


def message_of(job: Submitted) -> str:
    return job.status.get("message", "")
