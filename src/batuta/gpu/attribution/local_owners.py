"""Owners on a machine without Kubernetes: a job's replicas carry their names in their environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from batuta.gpu.attribution.owner import Owner
from batuta.gpu.attribution.process_memo import ProcessMemo
from batuta.gpu.attribution.processes import PROC, read_environment

_JOB: Final = "BATUTA_JOB_ID"
_REPLICA: Final = "BATUTA_REPLICA"
_PROGRESS: Final = "BATUTA_PROGRESS"


class LocalOwners:
    """Asks each process once. What it says may be wrong: nothing is granted by it."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._memo = ProcessMemo(self._ask, proc)
        self.progress_files: dict[str, str] = {}
        """By job: where its processes report their progress."""

    def of(self, pid: int) -> Owner | None:
        return self._memo.of(pid)

    def by_gpu(self) -> Mapping[str, Owner]:
        return {}

    def _ask(self, pid: int) -> Owner | None:
        said = read_environment(pid, self._proc)
        job = said.get(_JOB, "")
        if job and said.get(_PROGRESS):
            self.progress_files[job] = said[_PROGRESS]
        return Owner(job, pod=said.get(_REPLICA, "")) if job else None
