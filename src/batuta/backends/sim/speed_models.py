"""How fast a job runs with n GPUs: models that give a curve, and the text that names them.

| text | speed with n GPUs |
|---|---|
| `linear` | n |
| `constant` | 1: more GPUs do not help |
| `amdahl:F` | a fraction F of each step does not scale |
| `power:E` | n to the power of E |
| `alpha-beta:A,B` | all-reduce: a step takes 1/n + A + B·(n−1)/n of the step on one GPU (1 for n = 1) |
| `table:1,1.8,2.5` | measured on 1, 2, 3 … GPUs, in any unit |
| `table:1=10,2=18,8=50` | measured at these counts, straight lines between them |

Beyond the last value of a table its speed holds. Arguments may also be split by colons.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from batuta.core.curve import SpeedCurve, amdahl_curve, linear_curve, power_curve
from batuta.spec.problem import InputError, did_you_mean

LARGEST_JOB_GPUS = 100_000
"""No input may ask for more: a curve holds one value per GPU."""


class SpeedModel(Protocol):
    """A rule that gives the speed curve up to any number of GPUs. Its text parses back to it."""

    def curve(self, largest: int) -> SpeedCurve: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """Perfect scaling."""

    def curve(self, largest: int) -> SpeedCurve:
        return linear_curve(largest)

    def __str__(self) -> str:
        return "linear"


@dataclass(frozen=True, slots=True)
class Constant:
    """No scaling at all."""

    def curve(self, largest: int) -> SpeedCurve:
        return SpeedCurve((0.0, 1.0))

    def __str__(self) -> str:
        return "constant"


@dataclass(frozen=True, slots=True)
class Amdahl:
    """Amdahl's law (1967)."""

    serial_fraction: float

    def curve(self, largest: int) -> SpeedCurve:
        return amdahl_curve(largest, self.serial_fraction)

    def __str__(self) -> str:
        return f"amdahl:{self.serial_fraction!r}"


@dataclass(frozen=True, slots=True)
class Power:
    """n to a power."""

    exponent: float

    def curve(self, largest: int) -> SpeedCurve:
        return power_curve(largest, self.exponent)

    def __str__(self) -> str:
        return f"power:{self.exponent!r}"


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The latency-bandwidth model of a ring all-reduce; both costs relative to a step on one GPU."""

    latency: float
    bandwidth: float

    def curve(self, largest: int) -> SpeedCurve:
        return _alpha_beta_curve(largest, self.latency, self.bandwidth)

    def __str__(self) -> str:
        return f"alpha-beta:{self.latency!r},{self.bandwidth!r}"


@dataclass(frozen=True, slots=True)
class Table:
    """Measured speeds at some GPU counts, 1 among them, ascending."""

    points: tuple[tuple[int, float], ...]

    def curve(self, largest: int) -> SpeedCurve:
        return measured_curve(self.points)

    def __str__(self) -> str:
        return "table:" + ",".join(f"{gpus}={speed!r}" for gpus, speed in self.points)


@lru_cache(maxsize=4096)
def _alpha_beta_curve(largest: int, latency: float, bandwidth: float) -> SpeedCurve:
    steps = (1.0 / n + latency + bandwidth * (n - 1) / n for n in range(2, largest + 1))
    return SpeedCurve((0.0, 1.0, *(1.0 / step for step in steps)))


@lru_cache(maxsize=4096)
def measured_curve(points: tuple[tuple[int, float], ...]) -> SpeedCurve:
    """Relative to the first point, which is one GPU; straight lines in between."""
    counts = [gpus for gpus, _ in points]
    speeds = [speed / points[0][1] for _, speed in points]
    between = np.interp(np.arange(1, counts[-1] + 1), counts, speeds)
    return SpeedCurve((0.0, *between.tolist()))


def parse_speed(text: str) -> SpeedModel:
    """The model that a text such as `amdahl:0.05` names."""
    name, _, arguments = text.partition(":")
    name = name.strip().lower()
    parse = _PARSERS.get(name)
    if parse is None:
        raise InputError.of(f"unknown speed model {text!r}", fix=did_you_mean(name, list(_PARSERS)))
    try:
        return parse([part.strip() for part in re.split("[,:]", arguments)] if arguments.strip() else [])
    except ValueError as error:
        raise InputError.of(f"speed model {text!r}: {error}", fix=f"for example {_EXAMPLES[name]}") from None


def _linear(arguments: Sequence[str]) -> SpeedModel:
    _numbers(arguments, 0)
    return Linear()


def _constant(arguments: Sequence[str]) -> SpeedModel:
    _numbers(arguments, 0)
    return Constant()


def _amdahl(arguments: Sequence[str]) -> SpeedModel:
    (fraction,) = _numbers(arguments, 1)
    if fraction > 1:
        raise ValueError(f"the serial fraction must be within 0..1, found {fraction:g}")
    return Amdahl(fraction)


def _power(arguments: Sequence[str]) -> SpeedModel:
    (exponent,) = _numbers(arguments, 1)
    if exponent > 2:
        raise ValueError(f"the exponent must be within 0..2, found {exponent:g}")
    return Power(exponent)


def _alpha_beta(arguments: Sequence[str]) -> SpeedModel:
    latency, bandwidth = _numbers(arguments, 2)
    return AlphaBeta(latency, bandwidth)


def _table(arguments: Sequence[str]) -> SpeedModel:
    points: list[tuple[int, float]] = []
    for place, argument in enumerate(arguments, start=1):
        count, equals, speed = argument.rpartition("=")
        if equals and not count.strip().isdecimal():
            raise ValueError(f"{argument!r} does not begin with a GPU count")
        points.append((int(count) if equals else place, _numbers([speed], 1)[0]))
    counts = [gpus for gpus, _ in points]
    if not points or counts[0] != 1:
        raise ValueError("a table begins with the speed on 1 GPU")
    if counts != sorted(set(counts)):
        raise ValueError(f"GPU counts must ascend without repeats, found {counts}")
    if counts[-1] > LARGEST_JOB_GPUS:
        raise ValueError(f"at most {LARGEST_JOB_GPUS:,} GPUs, found {counts[-1]:,}")
    if not all(speed > 0 for _, speed in points):
        raise ValueError("every speed must be above 0")
    measured_curve(tuple(points))  # raises when the values lie too far apart
    return Table(tuple(points))


def _numbers(arguments: Sequence[str], wanted: int) -> list[float]:
    if len(arguments) != wanted:
        raise ValueError(f"takes {wanted} number{'s'[: wanted != 1]}, found {len(arguments)}")
    numbers = []
    for argument in arguments:
        try:
            number = float(argument)
        except ValueError:
            raise ValueError(f"{argument!r} is not a number") from None
        if not math.isfinite(number) or number < 0:
            raise ValueError(f"{argument} is not a finite number ≥ 0")
        numbers.append(number)
    return numbers


_PARSERS: dict[str, Callable[[Sequence[str]], SpeedModel]] = {
    "linear": _linear,
    "constant": _constant,
    "amdahl": _amdahl,
    "power": _power,
    "alpha-beta": _alpha_beta,
    "table": _table,
}
_EXAMPLES = {
    "linear": "linear",
    "constant": "constant",
    "amdahl": "amdahl:0.05",
    "power": "power:0.9",
    "alpha-beta": "alpha-beta:0.01,0.1",
    "table": "table:1,1.8,2.5,3.1",
}
