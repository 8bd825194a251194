"""What tests borrow from other projects works on our control plane: their CRDs, their programs."""

import pytest

from tests.support.kube.control_plane import wait_until
from tests.support.kube.modules import CRDS, NoModule, crds, module_files


# Those of Kueue are large, and tests/kube/kueue has them on a cluster of its own.
@pytest.mark.parametrize("project", sorted(CRDS.keys() - {"kueue"}))
def test_the_crds_of_other_projects_are_accepted(cluster, project):
    cluster.install_crds(crds(project))


def test_a_module_that_is_not_pinned_is_refused():
    with pytest.raises(NoModule, match="is not pinned"):
        module_files("sigs.k8s.io/kueue", "v0.0.1")


def test_mpi_operator_makes_the_workers_of_a_job(make_cluster):
    cluster = make_cluster()
    cluster.install_crds(crds("mpi-operator"))
    cluster.new_namespace("mpi-operator")
    operator = cluster.run("mpi-operator", f"-kubeConfig={cluster.kubeconfig_path}")
    template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    replicas = {
        "Launcher": {"replicas": 1, "template": template},
        "Worker": {"replicas": 2, "template": template},
    }

    cluster.apply(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": "train", "namespace": "default"},
            "spec": {"mpiReplicaSpecs": replicas},
        }
    )

    assert wait_until(lambda: workers(cluster, operator), "the workers") == [
        "train-worker-0",
        "train-worker-1",
    ]


def workers(cluster, operator) -> list[str]:
    """The workers' names when there are two of them."""
    operator.check()
    label = "training.kubeflow.org/job-role=worker"
    found = cluster.api.items("/api/v1/namespaces/default/pods", labelSelector=label)
    return sorted(each["metadata"]["name"] for each in found) if len(found) == 2 else []
