"""The fields of a job record: how each is checked and turned into a value.

A parser raises ValueError with what the value must be, to be put after "FIELD must be".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from batuta.backends.sim.speed import LARGEST_JOB_GPUS
from batuta.backends.sim.workload import GoodputRequest
from batuta.core.curve import SpeedCurve, linear_curve
from batuta.core.job import JobKind, Share, Spread, Topology

GOODPUT_FIELDS = ("application", "num_replicas", "batch_size")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("a finite number ≥ 0")
    return float(value)


def _maybe_number(value: object) -> float | None:
    return None if value is None else _number(value)


def _speed(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("numbers")
    return float(value)


def _whole(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number within {low}..{high}")
        return value

    return parse


_gpus = _whole(1, LARGEST_JOB_GPUS)
_amount = _whole(0, 10**15)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _sizes(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError("a list of GPU counts")
    return tuple(_gpus(one) for one in value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("a list of texts")
    return tuple(_text(one) for one in value)


def _pairs(parse: Callable[[object], Any], what: str) -> Callable[[object], tuple[tuple[str, Any], ...]]:
    def parse_pairs(value: object) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict):
            raise ValueError(f"an object of {what}")
        return tuple((name, parse(one)) for name, one in value.items())

    return parse_pairs


def _curve(value: object) -> SpeedCurve:
    if isinstance(value, dict):
        parts = _parts(value, {"speeds": _speeds, "across_nodes": _speed, "across_racks": _speed})
        try:
            speeds: SpeedCurve = parts.pop("speeds")
            return replace(speeds, **parts)
        except (ValueError, KeyError):
            raise ValueError("an object with speeds, and with spread factors in (0, 1]") from None
    return _speeds(value)


def _speeds(value: object) -> SpeedCurve:
    if isinstance(value, str) and value.startswith("linear:") and value[7:].isdecimal():
        return linear_curve(_gpus(int(value[7:])))
    if not isinstance(value, list) or not value or not {*map(type, value)} <= {int, float}:
        raise ValueError("linear:N or a list of speeds for 1, 2, … GPUs")
    return _curve_of(tuple(value))


@lru_cache(maxsize=65_536)
def _curve_of(speeds: tuple[float, ...]) -> SpeedCurve:
    try:
        return SpeedCurve((0.0, *map(float, speeds)))
    except (ValueError, OverflowError):
        raise ValueError("a list of finite speeds ≥ 0") from None


def _kind(value: object) -> JobKind:
    try:
        return JobKind(value)
    except ValueError:
        raise ValueError(f"one of {', '.join(kind.value for kind in JobKind)}") from None


def _spread(value: object) -> Spread:
    try:
        return Spread(value)
    except ValueError:
        raise ValueError(f"one of {', '.join(spread.value for spread in Spread)}") from None


def _parts(value: object, parsers: dict[str, Callable[[object], Any]]) -> dict[str, Any]:
    """The parts of an object that has a fixed set of fields."""
    if not isinstance(value, dict) or not value.keys() <= parsers.keys():
        raise ValueError(f"an object with {', '.join(parsers)}")
    return {name: parsers[name](one) for name, one in value.items()}


def _share(value: object) -> Share | None:
    if value is None:
        return None
    return Share(**_parts(value, {"memory_mib": _amount, "compute_percent": _amount}))


def _topology(value: object) -> Topology:
    return Topology(**_parts(value, {"within": _spread, "required": _flag, "single_numa": _flag}))


def _goodput(value: object) -> GoodputRequest | None:
    if value is None:
        return None
    parts = _parts(value, {"application": _text, "num_replicas": _gpus, "batch_size": _whole(1, 10**9)})
    if len(parts) != len(GOODPUT_FIELDS):
        raise ValueError(f"an object with all of {', '.join(GOODPUT_FIELDS)}")
    return GoodputRequest(**parts)


PARSERS: dict[str, Callable[[object], Any]] = {
    "id": _text,
    "submit_s": _number,
    "size": _gpus,
    "min": _gpus,
    "max": _gpus,
    "sizes": _sizes,
    "work_s": _number,
    "believed_work_s": _number,
    "curve": _curve,
    "believed_curve": _curve,
    "gpus_per_replica": _gpus,
    "name": _text,
    "user": _text,
    "queue": _text,
    "priority": _whole(-(10**9), 10**9),
    "application": _text,
    "cpus_milli_per_gpu": _amount,
    "memory_mib_per_gpu": _amount,
    "restart_s": _number,
    "checkpoint_interval_s": _maybe_number,
    "kind": _kind,
    "gpu_types": _pairs(_speed, "GPU types and their relative speeds"),
    "node_labels": _pairs(_text, "labels and their values"),
    "tolerations": _texts,
    "share": _share,
    "topology": _topology,
    "goodput": _goodput,
}
