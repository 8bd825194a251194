"""How long the jobs of a goodput replay are: all of their epochs, or a part drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batuta.spec.problem import InputError


@dataclass(frozen=True, slots=True)
class Lengths:
    """Each job runs for a share of its epochs, drawn evenly between two shares."""

    least: float = 1.0
    most: float = 1.0
    seed: int = 0

    @staticmethod
    def parse(text: str, seed: int = 0) -> Lengths:
        """`0.2-1`: between a fifth of the epochs and all of them."""
        least, _, most = text.partition("-")
        try:
            found = Lengths(float(least), float(most or least), seed)
        except ValueError:
            found = Lengths(0.0)
        if not 0 < found.least <= found.most <= 1:
            raise InputError.of(f"lengths {text!r} are no shares of a job's epochs", fix="for example 0.2-1")
        return found

    def draw(self, epochs: Sequence[int]) -> list[int]:
        """Epochs of each job, at least one."""
        if self.least == self.most == 1.0:
            return list(epochs)
        shares = np.random.default_rng(self.seed).uniform(self.least, self.most, len(epochs))
        return [max(1, round(whole * share)) for whole, share in zip(epochs, shares.tolist(), strict=True)]
