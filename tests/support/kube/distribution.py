"""How `pytest -n 2` shares out the tests: those of tests/kube to one process, for they share a control plane.

xdist's own way, the mark `xdist_group`, is without effect in xdist 3.8 with pytest 9.2 (pytest-xdist #1386).
"""

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_KUBE = "tests/kube/"


class KubeInOneProcess(LoadScopeScheduling):  # type: ignore[misc]
    """Every test goes to whichever process is free, but for tests/kube, which is one piece of work."""

    def _split_scope(self, nodeid: str) -> str:
        return _KUBE if nodeid.startswith(_KUBE) else nodeid
