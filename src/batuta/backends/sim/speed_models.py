"""How fast a job runs with n GPUs: models of curves and their texts (docs/reference/simulator.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from batuta.core.curve import SpeedCurve, amdahl_curve, linear_curve, power_curve
from batuta.spec.problem import InputError, did_you_mean

LARGEST_JOB_GPUS = 100_000  # no input may ask for more: a curve holds one value per GPU


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """A rule that gives the speed curve up to any number of GPUs. Its text parses back to it."""

    family: str
    numbers: tuple[float, ...] = ()
    points: tuple[tuple[int, float], ...] = ()  # of a table: speeds at some GPU counts, 1 among them, ascending

    def curve(self, largest: int) -> SpeedCurve:
        return measured_curve(self.points) if self.points else _FAMILIES[self.family].curve(largest, *self.numbers)

    def __str__(self) -> str:
        arguments = [f"{gpus}={speed!r}" for gpus, speed in self.points] or [*map(repr, self.numbers)]
        return f"{self.family}:{','.join(arguments)}" if arguments else self.family


@lru_cache(maxsize=4096)
def measured_curve(points: tuple[tuple[int, float], ...]) -> SpeedCurve:
    """Relative to the first point, which is one GPU; straight lines in between."""
    counts = [gpus for gpus, _ in points]
    speeds = [speed / points[0][1] for _, speed in points]
    between = np.interp(np.arange(1, counts[-1] + 1), counts, speeds)
    return SpeedCurve((0.0, *between.tolist()))


@lru_cache(maxsize=4096)
def _alpha_beta_curve(largest: int, latency: float, bandwidth: float) -> SpeedCurve:
    """The latency-bandwidth model of a ring all-reduce; both costs relative to a step on one GPU."""
    steps = (1.0 / n + latency + bandwidth * (n - 1) / n for n in range(2, largest + 1))
    return SpeedCurve((0.0, 1.0, *(1.0 / step for step in steps)))


class _Family(NamedTuple):
    """How the models of one name make their curves from the largest size and their numbers."""

    curve: Callable[..., SpeedCurve]
    example: str
    limits: tuple[tuple[str, float], ...] = ()  # what each number is called, and the most that it may be


_TABLE = "table"
_FAMILIES = {
    "linear": _Family(linear_curve, "linear"),
    "constant": _Family(lambda largest: SpeedCurve((0.0, 1.0)), "constant"),
    "amdahl": _Family(amdahl_curve, "amdahl:0.05", (("serial fraction", 1.0),)),
    "power": _Family(power_curve, "power:0.9", (("exponent", 2.0),)),
    "alpha-beta": _Family(
        _alpha_beta_curve, "alpha-beta:0.01,0.1", (("latency", math.inf), ("inverse bandwidth", math.inf))
    ),
    _TABLE: _Family(measured_curve, "table:1,1.8,2.5,3.1"),
}


def parse_speed(text: str) -> SpeedModel:
    """The model that a text such as `amdahl:0.05` names."""
    name, _, rest = text.partition(":")
    name = name.strip().lower()
    family = _FAMILIES.get(name)
    if family is None:
        raise InputError.of(f"unknown speed model {text!r}", fix=did_you_mean(name, list(_FAMILIES)))
    arguments = [part.strip() for part in re.split("[,:]", rest)] if rest.strip() else []
    try:
        if name == _TABLE:
            return SpeedModel(name, points=_points(arguments))
        return SpeedModel(name, _numbers(arguments, family.limits))
    except ValueError as error:
        raise InputError.of(f"speed model {text!r}: {error}", fix=f"for example {family.example}") from None


def _numbers(arguments: Sequence[str], limits: Sequence[tuple[str, float]]) -> tuple[float, ...]:
    wanted = len(limits)
    if len(arguments) != wanted:
        raise ValueError(f"takes {wanted} number{'s'[: wanted != 1]}, found {len(arguments)}")
    numbers = tuple(map(_number, arguments))
    for number, (what, most) in zip(numbers, limits, strict=True):
        if number > most:
            raise ValueError(f"the {what} must be within 0..{most:g}, found {number:g}")
    return numbers


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"{text} is not a finite number ≥ 0")
    return number


def _points(arguments: Sequence[str]) -> tuple[tuple[int, float], ...]:
    points: list[tuple[int, float]] = []
    for place, argument in enumerate(arguments, start=1):
        count, equals, speed = argument.rpartition("=")
        if equals and not count.strip().isdecimal():
            raise ValueError(f"{argument!r} does not begin with a GPU count")
        points.append((int(count) if equals else place, _number(speed)))
    counts = [gpus for gpus, _ in points]
    if counts[:1] != [1]:
        raise ValueError("a table begins with the speed on 1 GPU")
    if counts != sorted(set(counts)):
        raise ValueError(f"GPU counts must ascend without repeats, found {counts}")
    if counts[-1] > LARGEST_JOB_GPUS:
        raise ValueError(f"at most {LARGEST_JOB_GPUS:,} GPUs, found {counts[-1]:,}")
    if not all(speed > 0 for _, speed in points):
        raise ValueError("every speed must be above 0")
    measured_curve(tuple(points))  # raises when the values lie too far apart
    return tuple(points)
