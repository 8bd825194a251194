"""A cluster of its own with Kueue's definitions: on the shared one they would be in the way of others."""

from collections.abc import Iterator

import pytest

from tests.kube.conftest import LastingCluster
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options
from tests.support.kube.kueue import clear, knows_kueue
from tests.support.kube.modules import crds
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import prepare

OPTIONS = Options(controllers=True)
GPUS = 8


@pytest.fixture(scope="session")
def bare_cluster(lasting_cluster: LastingCluster) -> Iterator[ControlPlane]:
    """It knows UnifiedJobs, and has one node with eight GPUs."""
    with lasting_cluster("bare_cluster", OPTIONS) as cluster:
        prepare(cluster)
        cluster.add_nodes(1, NodeShape(gpus=GPUS))
        yield cluster


@pytest.fixture(scope="session")
def kueue_cluster(bare_cluster: ControlPlane) -> ControlPlane:
    """It knows Kueue's objects as well."""
    if not knows_kueue(bare_cluster):
        bare_cluster.install_crds(crds("kueue"))
    return bare_cluster


@pytest.fixture
def team(kueue_cluster: ControlPlane) -> Iterator[str]:
    """A fresh namespace of a cluster without queues."""
    clear(kueue_cluster)
    name = kueue_cluster.new_namespace()
    yield name
    clear(kueue_cluster)
    kueue_cluster.delete_namespace(name)
