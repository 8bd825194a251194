"""What is known about the health of one GPU or node, and what can be ordered because of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from batuta.core.cluster import NodeName
from batuta.core.health_rules import Action
from batuta.core.health_verdict import Incident
from batuta.core.job import JobId

WHOLE_NODE: Final = -1
BY_HEALTH: Final = "health"
"""Who did it, where no human did."""


class State(StrEnum):
    """How a GPU or node is. The first two are in service."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """Something was found that alone is no reason to act, or that waits for its jobs to end."""
    ILL = "ill"
    BURN_IN = "burn-in"
    PROBATION = "probation"

    @property
    def is_in_service(self) -> bool:
        return self in {State.HEALTHY, State.SUSPECT}


class Target(NamedTuple):
    """A GPU, or a whole node."""

    node: NodeName
    gpu: int = WHOLE_NODE

    def __str__(self) -> str:
        return self.node if self.gpu == WHOLE_NODE else f"{self.node} GPU {self.gpu}"


class Cordon(NamedTuple):
    """A human's own word that nothing new shall start on a node."""

    who: str = ""
    """Empty where nobody knows."""
    since_s: float = 0.0
    """0 where nobody knows."""


@dataclass(slots=True)
class Record:
    """The health of one target."""

    state: State = State.HEALTHY
    since_s: float = 0.0
    """When it came into this state."""
    reason: str = ""
    who: str = ""
    """Who brought it into this state: `health`, or a human's name."""
    remedy: Action = Action.IGNORE
    """What has to be done about it, while that is not done."""
    held: bool = False
    """It is ill and yet in service: taking it out would take too much of its pool."""
    ends_s: float = 0.0
    """When its probation is over."""
    flaps: int = 0
    """How many returns in a row did not last."""
    returned_s: float | None = None
    """When it last came back into service."""
    incidents: list[Incident] = field(default_factory=list)

    @property
    def is_out(self) -> bool:
        """Whether it is out of service because of its health."""
        return not self.state.is_in_service and not self.held

    def enter(self, state: State, now_s: float, reason: str, who: str = BY_HEALTH) -> None:
        self.state, self.since_s, self.reason, self.who = state, now_s, reason, who


@dataclass(frozen=True, slots=True)
class RestartJob:
    """A job is to begin again from its last checkpoint. Of all orders only this is not to be done twice."""

    job: JobId
    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class TakeOut:
    """Jobs leave with their progress, and nothing new comes."""

    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class Mend:
    """Somebody, or something, is to do this and then to say so."""

    target: Target
    remedy: Action
    reason: str


@dataclass(frozen=True, slots=True)
class BurnIn:
    """It is to be tested; whoever does it tells the outcome."""

    target: Target


@dataclass(frozen=True, slots=True)
class PutBack:
    """Jobs may come again."""

    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class Alert:
    """People have to look: no more is taken out of this pool."""

    pool: str
    target: Target
    reason: str


Order: TypeAlias = RestartJob | TakeOut | Mend | BurnIn | PutBack | Alert
