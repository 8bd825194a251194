"""How the rigid jobs of a trace become elastic: a size range around the recorded size, and a speed curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batuta.backends.sim.speed import parse_speed
from batuta.spec.problem import InputError

MEASURED = "elasticflow:"
_LARGEST_FACTOR = 1024.0


@dataclass(frozen=True, slots=True)
class Elasticity:
    """A job of recorded size n may have ⌊n × min_factor⌋ (at least 1) to ⌈n × max_factor⌉ GPUs.

    `curve` names a speed model (see `batuta.backends.sim.speed`), or `elasticflow:T4`: every job trains one
    of the models that ElasticFlow measured on that GPU type, drawn with a seed.
    """

    min_factor: float = 1.0
    max_factor: float = 1.0
    curve: str = "linear"

    @property
    def rigid(self) -> bool:
        return self.min_factor == 1.0 and self.max_factor == 1.0

    @property
    def measured_on(self) -> str:
        """The GPU type of measured curves; empty when the curve is a model."""
        return self.curve[len(MEASURED) :] if self.curve.startswith(MEASURED) else ""

    @staticmethod
    def parse(sizes: str = "rigid", curve: str = "linear") -> Elasticity:
        """From `rigid` or `MIN:MAX` (factors of the recorded size, such as `0.5:2`) and a curve's name."""
        curve = curve.strip()
        if curve.lower().startswith(MEASURED):
            gpu_type = curve[len(MEASURED) :].strip()
            if not gpu_type:
                raise InputError.of(f"curve {curve!r} names no GPU type", fix=f"for example {MEASURED}T4")
            curve = MEASURED + gpu_type
        else:
            curve = str(parse_speed(curve))
        low, high = _factors(sizes.strip())
        return Elasticity(low, high, curve)


RIGID = Elasticity()


def _factors(text: str) -> tuple[float, float]:
    if text.lower() == "rigid":
        return 1.0, 1.0
    fix = "write rigid, or MIN:MAX as factors of the recorded size, such as 0.5:2"
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise InputError.of(f"elastic sizes {text!r} are not understood", fix=fix) from None
    if not (math.isfinite(low) and 0 <= low <= 1 <= high <= _LARGEST_FACTOR):
        raise InputError.of(
            f"elastic sizes {text!r}: MIN must be within 0..1 and MAX within 1..{_LARGEST_FACTOR:g}", fix=fix
        )
    return low, high
