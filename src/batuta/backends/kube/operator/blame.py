"""Whether a run that failed is to blame for it: asked again until somebody knows."""

from __future__ import annotations

import math
from typing import Final

from batuta.backends.kube.operator.run import Site
from batuta.core.job import JobId

_AGAIN_S: Final = 0.25


class Blame:
    """One job's, through all its starts."""

    def __init__(self, site: Site, job: JobId) -> None:
        self._site = site
        self._job = job
        self._start = -1
        self._began_s = 0.0
        """When the run was first on its way that goes on now."""
        self._failed_s = math.inf
        self.due_s = math.inf
        """When to ask again."""

    def begins(self, start: int, now_s: float) -> None:
        """This start is on its way; it may be said again and again."""
        if start != self._start:
            self._start, self._began_s = start, now_s
            self._failed_s = math.inf

    def excuse(self, now_s: float) -> str | None:
        """Why a run that has failed is not to blame; empty: it is. None: it is not known yet, ask again."""
        self._failed_s = min(self._failed_s, now_s)
        found = self._site.excuse(self._job, self._began_s, self._failed_s, now_s)
        self.due_s = now_s + _AGAIN_S if found is None else math.inf
        return found
