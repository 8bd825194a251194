"""What tests borrow from other projects works on our control plane: their CRDs, their programs."""

from collections.abc import Iterator

import pytest

from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.modules import CRDS, NoModule, crds, module_files
from tests.support.kube.mpi_operator import PROGRAM
from tests.support.kube.processes import RunningProgram


# Those of Kueue are large, and tests/kube/kueue has them on a cluster of its own.
@pytest.mark.parametrize("project", sorted(CRDS.keys() - {"kueue"}))
def test_the_crds_of_other_projects_are_accepted(cluster, project):
    cluster.install_crds(crds(project))


def test_a_module_that_is_not_pinned_is_refused():
    with pytest.raises(NoModule, match="is not pinned"):
        module_files("sigs.k8s.io/kueue", "v0.0.1")


@pytest.fixture
def mpi_operator(fragile: ControlPlane) -> Iterator[RunningProgram]:
    fragile.install_crds(crds(PROGRAM))
    fragile.new_namespace(PROGRAM)
    yield fragile.run(PROGRAM, f"-kubeConfig={fragile.kubeconfig_path}")
    fragile.programs.stop(PROGRAM)


def test_mpi_operator_makes_the_workers_of_a_job(fragile, mpi_operator):
    namespace = fragile.new_namespace()
    template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    replicas = {
        "Launcher": {"replicas": 1, "template": template},
        "Worker": {"replicas": 2, "template": template},
    }

    fragile.apply(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": "train", "namespace": namespace},
            "spec": {"mpiReplicaSpecs": replicas},
        }
    )

    assert wait_until(lambda: workers(fragile, namespace, mpi_operator), "the workers") == [
        "train-worker-0",
        "train-worker-1",
    ]


def workers(cluster, namespace, operator) -> list[str]:
    """The workers' names when there are two of them."""
    operator.check()
    label = "training.kubeflow.org/job-role=worker"
    found = cluster.api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=label)
    return sorted(each["metadata"]["name"] for each in found) if len(found) == 2 else []
