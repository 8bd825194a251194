"""What can be done about an illness without a human: resets where they are safe, and burn-ins."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from batuta.core.health import HealthBook
from batuta.core.health_record import BurnIn, Mend, Order, Target
from batuta.core.health_rules import Action
from batuta.gpu.health.burn_in_run import BurnInRun

_log = logging.getLogger(__name__)


class Ward(Protocol):
    """The GPUs, for those who treat them."""

    def in_use(self, target: Target) -> bool:
        """Whether processes are on it."""
        ...

    def reset(self, target: Target) -> bool:
        """Resets it, if that can be done from here; whether it was."""
        ...

    def burn_in(self, target: Target) -> BurnInRun | None:
        """Begins a burn-in of a GPU or of all GPUs of a node; None: not possible now."""
        ...


class WasReset(NamedTuple):
    """A GPU was reset."""

    target: Target

    def tell(self, book: HealthBook, now_s: float) -> None:
        book.mended(self.target, now_s)


class WasTested(NamedTuple):
    """A burn-in is over."""

    target: Target
    passed: bool
    detail: str

    def tell(self, book: HealthBook, now_s: float) -> None:
        book.burnt_in(self.target, self.passed, self.detail, now_s)


Done: TypeAlias = WasReset | WasTested


class Care:
    """Goes from bed to bed. One burn-in at a time: it heats, and it takes the machine's cores."""

    def __init__(self, ward: Ward) -> None:
        self._ward = ward
        self._run: tuple[Target, BurnInRun] | None = None

    def give(self, orders: Sequence[Order]) -> list[Done]:
        """Does what is ordered, as far as that can be done now; what is done since.

        For no lock: GPUs that are ill may take their time to answer.
        """
        done = self._look_at_run(orders)
        for order in orders:
            if isinstance(order, Mend) and order.remedy is Action.RESET_GPU:
                if not self._ward.in_use(order.target) and self._ward.reset(order.target):
                    done.append(WasReset(order.target))
            elif isinstance(order, BurnIn) and self._run is None and not self._ward.in_use(order.target):
                run = self._ward.burn_in(order.target)
                self._run = (order.target, run) if run is not None else None
        return done

    def _look_at_run(self, orders: Sequence[Order]) -> list[Done]:
        if self._run is None:
            return []
        target, run = self._run
        if BurnIn(target) not in orders:
            run.close()  # it fell ill again meanwhile, or a human has decided
            self._run = None
            return []
        outcome = run.poll()
        if outcome is None:
            return []
        self._run = None
        passed, detail = outcome
        _log.info("burn-in of %s %s: %s", target, "passed" if passed else "failed", detail)
        return [WasTested(target, passed, detail)]

    def close(self) -> None:
        """Ends what is under way: it begins anew at the next start."""
        if self._run is not None:
            self._run[1].close()
            self._run = None
