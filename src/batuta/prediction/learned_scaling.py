"""How one job scales, by what it reports: its own records, fitted when they say something new."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median

from batuta.core.curve import SpeedCurve
from batuta.prediction.footprint import Footprint
from batuta.prediction.measured import Measured
from batuta.prediction.scaling import LONGEST_CURVE, Forms, Scaling
from batuta.prediction.size_record import SizeRecord

_NOISE_STEPS = 2
"""A noise scale is heard in so many steps for each doubling: it is noisy itself."""


class LearnedScaling:
    """Turns a job's records into its curve. Asked again without news it remembers its answer."""

    __slots__ = ("_answer", "_asked", "forms", "largest", "prior")

    def __init__(self, prior: SpeedCurve, most_gpus: int) -> None:
        self.prior = prior
        self.largest = min(most_gpus, LONGEST_CURVE)
        self.forms = Forms()
        self._asked: tuple[float | None, ...] = ()
        self._answer: Scaling | None = None

    def of(self, records: Mapping[Footprint, SizeRecord], noise_samples: float | None) -> Scaling | None:
        """How the job scales; None until something was measured. The noise scale counts in samples."""
        asked = self._question(records, noise_samples)
        if asked != self._asked:
            self._answer, self._asked = self.forms.scaling(self._measured(records, noise_samples)), asked
        return self._answer

    def to_fit(
        self, records: Mapping[Footprint, SizeRecord], noise_samples: float | None
    ) -> Iterator[tuple[Forms, Measured]]:
        """What `of` would have to fit, so that it can be done together with that of others."""
        if len(records) > 1 and self._question(records, noise_samples) != self._asked:
            yield self.forms, self._measured(records, noise_samples)

    def _question(
        self, records: Mapping[Footprint, SizeRecord], noise_samples: float | None
    ) -> tuple[float | None, ...]:
        return *(one.version for one in records.values()), self.largest, noise_samples

    def forget(self) -> None:
        """All records have begun anew, in another unit."""
        self._asked = ()

    def _measured(self, records: Mapping[Footprint, SizeRecord], noise_samples: float | None) -> Measured:
        rates: dict[Footprint, float] = {}
        steps: dict[int, float] = {}
        for footprint, record in records.items():
            rate, step_units = record.rate(), record.units_per_step()
            if rate is not None:
                rates[footprint] = rate
                if step_units is not None:
                    steps[footprint.gpus] = step_units
        # A size that does not say how much a step is makes the others no help.
        known = steps if len(steps) == len({footprint.gpus for footprint in rates}) else {}
        return Measured(self.prior, self.largest, rates, known, _noise_units(records, noise_samples))


def _noise_units(records: Mapping[Footprint, SizeRecord], noise_samples: float | None) -> float | None:
    samples = [found for record in records.values() if (found := record.samples_per_unit()) is not None]
    if noise_samples is None or not samples:
        return None
    heard: float = 2.0 ** (round(_NOISE_STEPS * math.log2(noise_samples)) / _NOISE_STEPS)
    return heard / median(samples)
