"""How `pytest -n 2` shares out the tests: a folder of tests/kube to one process, whose operator they share.

xdist's own way, the mark `xdist_group`, is without effect in xdist 3.8 with pytest 9.2 (pytest-xdist #1386).
"""

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_KUBE = "tests/kube/"
_MPI = ("tests/kube/test_job_types.py", "tests/kube/test_other_projects.py", "tests/kube/mpi/")
"""mpi-operator answers health checks at a port that nobody can choose, so two cannot run at a time."""


class KubeByFolder(LoadScopeScheduling):  # type: ignore[misc]
    """Every test goes to whichever process is free, but those of a folder of tests/kube stay together.

    Each process has a control plane of its own, so folders do not meet.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not file.startswith(_KUBE):
            return nodeid
        folder = file.rpartition("/")[0] + "/"
        if file in _MPI or folder in _MPI:
            return "mpi-operator"
        return file if folder == _KUBE else folder
