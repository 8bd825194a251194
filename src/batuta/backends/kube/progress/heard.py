"""Which log is to be listened to, and what was heard in it: what both sides of the operator say of logs."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.backends.kube.progress.said import ResultGiven, Said
from batuta.core.job import JobId


@dataclass(frozen=True, slots=True)
class LogOf:
    """The log of one container of one pod."""

    job: JobId
    namespace: str
    pod: str
    uid: str
    container: str
    is_over: bool = False
    """The pod has ended: nothing more will be written."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Something was said in the log of a pod."""

    job: JobId
    uid: str
    said: tuple[Said, ...] = ()
    refused: int = 0
    """Lines that claimed to be reports and were none, or too many."""
    is_all: bool = False
    """Nothing more can be heard of this pod."""

    @property
    def is_urgent(self) -> bool:
        """Whether somebody may wait for it: how far a job is can lie for a moment."""
        return self.is_all or any(
            isinstance(one, ResultGiven) or one.report.is_checkpoint for one in self.said
        )
