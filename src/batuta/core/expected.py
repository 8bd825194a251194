"""What was believed of a job at its submit, and why: kept with it, so that a replay believes the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """How long earlier jobs say that this one takes, in seconds on one GPU of the reference type."""

    seconds: tuple[float, ...]
    """P10, P25, P50, P75 and P90."""
    source: str
    """Whose history it is: "the same user and name", "the same queue" …"""
    jobs: int
    """How many jobs of the past it rests upon."""

    @property
    def p10_s(self) -> float:
        return self.seconds[0]

    @property
    def p50_s(self) -> float:
        return self.seconds[len(self.seconds) // 2]

    @property
    def p90_s(self) -> float:
        return self.seconds[-1]


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """Why a job whose user left the size open asks for as many GPUs as it does."""

    gpus: int
    best_gpus: int = 0
    """The fastest size that it may have; 0 when nothing is known of its speed."""
    speed_share: float = 1.0
    """Its speed with `gpus`, as a share of that with `best_gpus`."""
    application: str = ""
    jobs: int = 0
    """How many earlier jobs of the application were measured."""
    trial: bool = False
    """They were its own trial runs."""

    @property
    def sentence(self) -> str:
        gpus = _gpus(self.gpus)
        if not self.best_gpus:
            of = f" of {self.application}" if self.application else ""
            return f"{gpus}: the speed{of} at other sizes is not known yet, so it asks for the smallest"
        if self.trial:
            measured = f"measured in {self.jobs} trial runs"
        else:
            earlier = "earlier job" if self.jobs == 1 else "earlier jobs"
            measured = f"measured by {self.jobs} {earlier} of {self.application}"
        if self.best_gpus == self.gpus:
            return f"{gpus}: no size that it may have is faster ({measured})"
        verb = "gives" if self.gpus == 1 else "give"
        return f"{gpus} {verb} {self.speed_share:.0%} of the speed of {self.best_gpus} ({measured})".replace(
            "%", " %", 1
        )


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
