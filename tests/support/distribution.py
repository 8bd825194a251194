"""How `pytest -n 2` shares out the tests: those that share something costly go to one process together.

xdist's own way, the mark `xdist_group`, is without effect in xdist 3.8 with pytest 9.2 (pytest-xdist #1386).
"""

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_KUBE = "tests/kube/"
_MPI = ("tests/kube/test_job_types.py", "tests/kube/test_other_projects.py", "tests/kube/mpi/")
"""mpi-operator answers health checks at a port that nobody can choose, so two cannot run at a time."""
_SERVED = (
    *("tests/docs/", "tests/e2e/", "tests/integration/", "tests/observability/"),
    *("tests/golden/test_journals.py", "tests/properties/test_replay.py"),
)
"""Here a file has a server, simulations, or what hundreds of jobs left, that its tests look at in turn."""
_QUICK = "tests/unit/"
"""Thousands of tests: to hand out each by itself takes seconds, and what a file shares is made twice."""


class BySharedState(LoadScopeScheduling):  # type: ignore[misc]
    """A test goes to whichever process is free, with those that share its operator or its server.

    Tests of a folder of tests/kube share an operator. Each process has a control plane of its own, so folders
    do not meet.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith((*_SERVED, _QUICK)):
            return file
        if not file.startswith(_KUBE):
            return nodeid
        folder = file.rpartition("/")[0] + "/"
        if file in _MPI or folder in _MPI:
            return "mpi-operator"
        return file if folder == _KUBE else folder
