"""The real mpi-operator beside a control plane: it makes launchers and workers of MPIJobs."""

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.modules import crds
from tests.support.kube.processes import RunningProgram

PROGRAM = "mpi-operator"
_NAMESPACE = "mpi-operator"
"""For its election."""


def start_mpi_operator(cluster: ControlPlane) -> RunningProgram:
    """Installs its definitions and starts it. It ends with the control plane."""
    cluster.install_crds(crds(PROGRAM))
    cluster.new_namespace(_NAMESPACE)
    return cluster.run(PROGRAM, f"--kubeConfig={cluster.kubeconfig_path}", f"--lock-namespace={_NAMESPACE}")
