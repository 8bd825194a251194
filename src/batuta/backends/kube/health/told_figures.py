"""What NVML says of a node's GPUs, as the annotation through which the operator hears of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from batuta.core.health_figures import Figure, Values

MOST_GPUS: Final = 1024


def write_figures(found: Mapping[int, Values]) -> str:
    """The annotation; the same figures always make the same text."""
    plain = {str(gpu): {one.value: value for one, value in values.items()} for gpu, values in found.items()}
    return msgspec.json.encode(plain, order="deterministic").decode()


def read_figures(text: str) -> dict[int, dict[Figure, int]]:
    """The figures by GPU. What cannot be read, and figures that nobody knows, say nothing."""
    try:
        plain: dict[str, dict[str, int]] = _decode(text.encode()) if text else {}
    except msgspec.MsgspecError:
        return {}
    known = {int(gpu): told for gpu, told in plain.items() if gpu.isdecimal() and len(gpu) < 5}
    return {
        gpu: {Figure(name): value for name, value in told.items() if name in _NAMES and value >= 0}
        for gpu, told in known.items()
        if gpu < MOST_GPUS
    }


_NAMES: Final = frozenset(Figure)
_decode: Any = msgspec.json.Decoder(dict[str, dict[str, int]]).decode
