"""One running job of the goodput model: give it GPUs, let time pass, see how far it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from batuta.backends.sim.goodput.application import (
    Application,
    BatchSplit,
    EpochPlan,
    PerEpoch,
)
from batuta.backends.sim.goodput.throughput import Placement

RESTART_S = 30


class BatchMode(Protocol):
    """How a job splits its batch in each epoch, given the GPUs on each node."""

    def plan(self, application: Application, placement: Placement) -> EpochPlan: ...


class FixedBatch:
    """The total batch size of the request, whatever the GPUs (Tiresias, Optimus)."""

    __slots__ = ("batch",)

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def plan(self, application: Application, placement: Placement) -> EpochPlan:
        return application.fixed_plan(placement, self.batch)


class TunedBatch:
    """The batch size with the largest true goodput in each epoch; a pinned application keeps its own."""

    __slots__ = ()

    def plan(self, application: Application, placement: Placement) -> EpochPlan:
        pinned = application.profile.rule.pinned_batch
        return application.fixed_plan(placement, pinned) if pinned else application.tuned_plan(placement)


class ChosenBatch:
    """The split that a function of (placement, epoch) gives, asked again in each epoch and each round."""

    __slots__ = ("choose",)

    def __init__(self, choose: Callable[[Placement, int], BatchSplit]) -> None:
        self.choose = choose

    def plan(self, application: Application, placement: Placement) -> EpochPlan:
        splits = _OnDemand(lambda epoch: self.choose(placement, epoch))
        goodputs = _OnDemand(lambda epoch: application.goodputs(placement, splits[epoch])[epoch])
        return EpochPlan(goodputs, splits)


T_co = TypeVar("T_co", covariant=True)


class _OnDemand(Generic[T_co]):
    """A value per epoch, computed at each access because it may change."""

    __slots__ = ("_compute",)

    def __init__(self, compute: Callable[[int], T_co]) -> None:
        self._compute = compute

    def __getitem__(self, epoch: int) -> T_co:
        return self._compute(epoch)


class GoodputJob:
    """Progress of one job. Seconds may be whole or not; with whole ones all times stay whole."""

    __slots__ = (
        "_goodputs",
        "_last",
        "_plan",
        "_thresholds",
        "application",
        "epoch",
        "finished",
        "mode",
        "nodes",
        "placement",
        "progress",
        "restart_left_s",
        "restart_s",
        "starts",
    )

    def __init__(
        self,
        application: Application,
        mode: BatchMode,
        restart_s: float = RESTART_S,
        epochs: int | None = None,
    ) -> None:
        self.application = application
        self.mode = mode
        self.restart_s = restart_s
        self.placement: Placement = ()
        self.nodes: tuple[int, ...] = ()
        self.epoch = 0
        self.progress = 0.0
        self.finished = False
        self.restart_left_s: float = 0
        self.starts = 0
        """How often it was given GPUs that it did not hold before; all but the first are restarts."""
        self._plan: EpochPlan | None = None
        self._goodputs: PerEpoch[float] = ()
        self._thresholds = application.efficiency.thresholds
        self._last = (epochs or application.efficiency.epochs) - 1

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
            self.starts += 1
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
            if epoch == self._last:
                self.finished = True
                return seconds - left
        return None

    @property
    def epochs(self) -> int:
        """How many it runs for."""
        return self._last + 1

    @property
    def end(self) -> float:
        """Progress at which it is done."""
        return self._thresholds[self._last + 1]

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
