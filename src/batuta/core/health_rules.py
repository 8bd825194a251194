"""What a finding means and what is done about it: rules as values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from batuta.core.cluster import NodeName
from batuta.core.job import JobId


class Action(StrEnum):
    """What is done about a finding, from nothing to the most."""

    IGNORE = "ignore"
    SUSPECT = "suspect"  # remembered, and held against the hardware when several different jobs met it; nothing else
    RESTART_JOB = "restart job"
    RESET_GPU = "reset GPU"
    REBOOT = "reboot"
    REPLACE = "replace"  # out of service until an administrator has looked: new hardware, new firmware, a cable

    @property
    def takes_out(self) -> bool:
        """Whether it is about hardware, which goes out of service for it."""
        return self in REMEDIES


REMEDIES: Final = (Action.RESET_GPU, Action.REBOOT, Action.REPLACE)  # each is tried when the one before it did not help


class Source(StrEnum):
    """Where findings come from."""

    XID = "xid"  # the GPU's driver, in the kernel log
    SXID = "sxid"  # the driver of NVLink switches, in the kernel log
    LOG = "log"  # what a job prints
    NVML = "nvml"  # a figure of a GPU: its name is the text, its value the code
    BEHAVIOUR = "behaviour"  # how a job does on a node: what an observer of jobs says of it

    @property
    def has_codes(self) -> bool:
        """Whether a code names the error; else the rule that fits does."""
        return self in {Source.XID, Source.SXID}


class Scope(StrEnum):
    """What is out of service for it."""

    GPU = "gpu"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table: these codes, with such a text, mean this."""

    source: Source
    means: str
    action: Action
    scope: Scope = Scope.GPU
    first: int = 0  # the codes, or values, from `first` to `last`; of logs and behaviour there are none
    last: int = 0
    pattern: re.Pattern[str] | None = None  # what must be found in the text besides; None: nothing
    at_idle: bool = False  # not at once: when no job has the GPU
    follows: bool = False  # it is told after other errors, as their consequence: then it says nothing new
    counts: bool = True
    """Whether the same error in several jobs is held against the hardware: many meet what one has caused."""

    def fits(self, source: Source, code: int, text: str) -> bool:
        if source is not self.source or not self.first <= code <= self.last:
            return False
        return self.pattern is None or self.pattern.search(text) is not None


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """How much it takes to act, and how far acting may go."""

    jobs: int = 3  # an application error that so many different jobs met on one GPU is the GPU's fault
    within_s: float = 86_400.0  # errors longer ago than this are forgotten
    restarts: int = 3  # so often within that time a job is restarted for its own errors; then it has to help itself
    incident_s: float = 60.0  # the same error again within this time is still the same incident
    probation_s: float = 1_800.0
    longest_probation_s: float = 86_400.0
    calm_s: float = 604_800.0
    """Who falls ill again within this time after a return flaps: the next probation is twice as long."""
    share: float = 0.25  # the part of a pool's GPUs that may be out of service automatically; 0: nothing is taken out

    def probation_after_s(self, flaps: int) -> float:
        """How long the next probation is; doubled for each return that did not last."""
        return min(self.probation_s * 2.0 ** min(flaps, 64), self.longest_probation_s)

    def may_restart(self, restarted: dict[JobId, list[float]], job: JobId, now_s: float) -> bool:
        """Whether a job may be restarted for an error of its own once more; if so it is counted, as the last."""
        recent = [time_s for time_s in restarted.get(job, ()) if now_s - time_s <= self.within_s]
        if len(recent) >= self.restarts:
            return False
        restarted.pop(job, None)
        restarted[job] = [*recent, now_s]
        return True


@dataclass(frozen=True, slots=True)
class HealthRules:
    """The whole table; of several rules that fit the first one counts."""

    rules: tuple[Rule, ...]
    limits: HealthLimits = field(default_factory=HealthLimits)
    version: int = 1

    def find(self, source: Source, code: int, text: str) -> Rule | None:
        return next((rule for rule in self.rules if rule.fits(source, code, text)), None)


_UNITS: Final = {"temperature": " °C"}  # of figures that are no plain numbers


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was noticed on a node."""

    time_s: float
    node: NodeName
    source: Source
    code: int = 0
    text: str = ""
    gpu: int | None = None  # None: not about a GPU, or it is unknown about which
    jobs: tuple[JobId, ...] = ()  # whose work was hit
    is_hearsay: bool = False
    """Whether it is the word of a job alone, of a user who is not trusted with what others run on."""

    @property
    def name(self) -> str:
        """What people call it: `Xid 79`."""
        unit = _UNITS.get(self.text, "")
        names = {
            Source.XID: f"Xid {self.code}",
            Source.SXID: f"SXid {self.code}",
            Source.NVML: self.text if self.code == 1 else f"{self.text} {self.code}{unit}",
        }
        return names.get(self.source, self.source.value)
