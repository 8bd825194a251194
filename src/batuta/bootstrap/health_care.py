"""What can be done about an illness without a human: resets where they are safe, and burn-ins."""

from __future__ import annotations

import logging
from typing import Protocol

from batuta.core.health import HealthBook
from batuta.core.health_record import BurnIn, Mend, Target
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


class Care:
    """Goes from bed to bed. One burn-in at a time: it heats, and it takes the machine's cores."""

    def __init__(self, ward: Ward) -> None:
        self._ward = ward
        self._run: tuple[Target, BurnInRun] | None = None

    def give(self, book: HealthBook, now_s: float) -> None:
        """Does what the book has ordered, as far as it can be done now, and tells it. It never waits."""
        self._look_at_run(book, now_s)
        for order in book.standing():
            if isinstance(order, Mend) and order.remedy is Action.RESET_GPU:
                if not self._ward.in_use(order.target) and self._ward.reset(order.target):
                    book.mended(order.target, now_s)
            elif isinstance(order, BurnIn) and self._run is None and not self._ward.in_use(order.target):
                run = self._ward.burn_in(order.target)
                self._run = (order.target, run) if run is not None else None

    def _look_at_run(self, book: HealthBook, now_s: float) -> None:
        if self._run is None:
            return
        target, run = self._run
        if BurnIn(target) not in book.standing():
            run.close()  # it fell ill again meanwhile, or a human has decided
            self._run = None
            return
        outcome = run.poll()
        if outcome is not None:
            self._run = None
            passed, detail = outcome
            _log.info("burn-in of %s %s: %s", target, "passed" if passed else "failed", detail)
            book.burnt_in(target, passed, detail, now_s)

    def close(self) -> None:
        """Ends what is under way: it begins anew at the next start."""
        if self._run is not None:
            self._run[1].close()
            self._run = None
