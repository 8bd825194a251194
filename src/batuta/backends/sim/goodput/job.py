"""One running job of the goodput model: give it GPUs, let time pass, see how far it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from batuta.backends.sim.goodput.application import Application, BatchSplit, EpochPlan, PerEpoch
from batuta.backends.sim.goodput.throughput import Placement

RESTART_S = 30


class BatchMode(Protocol):
    """How a job splits its batch in each epoch, given the GPUs on each node."""

    def plan(self, application: Application, placement: Placement) -> EpochPlan: ...


@dataclass(frozen=True, slots=True)
class FixedBatch:
    """The total batch size of the request, whatever the GPUs (Tiresias, Optimus)."""

    batch: int

    def plan(self, application: Application, placement: Placement) -> EpochPlan:
        return application.fixed_plan(placement, self.batch)


class TunedBatch:
    """The batch size with the largest true goodput in each epoch; a pinned application keeps its own."""

    def plan(self, application: Application, placement: Placement) -> EpochPlan:
        pinned = application.profile.rule.pinned_batch
        return application.fixed_plan(placement, pinned) if pinned else application.tuned_plan(placement)


@dataclass(frozen=True, slots=True)
class ChosenBatch:
    """The split that a function of (placement, epoch) gives, asked again in each epoch and each round."""

    choose: Callable[[Placement, int], BatchSplit]

    def plan(self, application: Application, placement: Placement) -> EpochPlan:
        splits = _OnDemand(lambda epoch: self.choose(placement, epoch))
        goodputs = _OnDemand(lambda epoch: application.goodputs(placement, splits[epoch])[epoch])
        return EpochPlan(goodputs, splits)


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class _OnDemand(Generic[T_co]):
    """A value per epoch, computed at each access because it may change."""

    compute: Callable[[int], T_co]

    def __getitem__(self, epoch: int) -> T_co:
        return self.compute(epoch)


@dataclass(slots=True, eq=False)
class GoodputJob:
    """Progress of one job. Seconds may be whole or not; with whole ones all times stay whole."""

    application: Application
    mode: BatchMode
    restart_s: float = RESTART_S
    epochs: int = 0  # how many it runs for; 0: all that its application has
    placement: Placement = ()
    nodes: tuple[int, ...] = ()
    epoch: int = 0
    progress: float = 0.0
    finished: bool = False
    restart_left_s: float = 0
    _plan: EpochPlan | None = None
    _goodputs: PerEpoch[float] = ()
    _thresholds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self.epochs = self.epochs or self.application.efficiency.epochs
        self._thresholds = self.application.efficiency.thresholds

    def set_placement(self, placement: Placement, nodes: tuple[int, ...]) -> bool:
        """Hold `placement[i]` GPUs on `nodes[i]` from now on; True when that is a change.

        A change costs a restart, also when only the order of the nodes differs. `()` takes all GPUs away.
        """
        if placement == self.placement and nodes == self.nodes:
            return False
        if len(placement) != len(nodes) or any(gpus < 1 for gpus in placement):
            raise ValueError(f"placement {placement} does not fit nodes {nodes}")
        plan = self.mode.plan(self.application, placement) if placement else None
        self._plan = plan
        self._goodputs = plan.goodputs if plan else ()
        self.placement, self.nodes = placement, nodes
        if placement:
            self.restart_left_s = self.restart_s
        return True

    def advance(self, seconds: float) -> float | None:
        """Let time pass; the second within it at which the job finished, or None if it did not."""
        if not self.placement or self.finished:
            return None
        left = seconds
        if self.restart_left_s:
            delay = min(self.restart_left_s, left)
            self.restart_left_s -= delay
            left -= delay
        while left > 0:
            epoch = self.epoch
            goodput = self._goodputs[epoch]
            reached = self.progress + goodput * left
            goal = self._thresholds[epoch + 1]
            if reached < goal:
                self.progress = reached
                return None
            # An epoch takes whole seconds, and its end forgives the rounding, as in the published runs.
            left -= min(round((goal - self.progress) / goodput), left)
            self.progress = goal
            self.epoch = epoch + 1
            if self.epoch == self.epochs:
                self.finished = True
                return seconds - left
        return None

    @property
    def end(self) -> float:
        """Progress at which it is done."""
        return self._thresholds[self.epochs]

    @property
    def gpus(self) -> int:
        return sum(self.placement)

    @property
    def goodput(self) -> float:
        """Progress per second now; 0 without GPUs, in a restart and after the end."""
        return 0.0 if self.restart_left_s or not self._running() else self._goodputs[self.epoch]

    @property
    def split(self) -> BatchSplit | None:
        return self._plan.splits[self.epoch] if self._plan and self._running() else None

    @property
    def batch_size(self) -> int:
        """Samples of one iteration over all GPUs; 0 without GPUs."""
        return self.split.total(self.gpus) if self.split else 0

    def remaining_iterations(self, batch: int) -> float:
        """Iterations of the epochs after the current one at a total batch size; 1 if there are none."""
        return self.application.efficiency.remaining_iterations(batch, self.epoch)

    def _running(self) -> bool:
        return bool(self.placement) and not self.finished
