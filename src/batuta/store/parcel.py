"""A JSON header and NumPy arrays in one compressed block. Integers take as few bytes as they need."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.store.errors import CodecError
from batuta.store.values import dumps, loads

_LENGTH = struct.Struct("<I")
_LEVEL = 1
"""Higher levels of zlib gain a tenth in size for several times the time (benchmarks/store.py)."""
_WIDTHS = tuple(np.dtype(name) for name in ("<i1", "<i2", "<i4", "<i8"))


def wrap(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    parts, listed = [], []
    for name, array in arrays.items():
        array = _narrow(array)
        listed.append([name, array.dtype.str, list(array.shape)])
        parts.append(array.tobytes())
    head = dumps({**header, "arrays": listed}).encode()
    return zlib.compress(b"".join((_LENGTH.pack(len(head)), head, *parts)), _LEVEL)


def unwrap(block: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What was wrapped; integers are 64 bits wide again."""
    try:
        raw = zlib.decompress(block)
        (length,) = _LENGTH.unpack_from(raw)
        place = _LENGTH.size + length
        header: dict[str, Any] = loads(raw[_LENGTH.size : place])
        arrays: dict[str, NDArray[Any]] = {}
        for name, kind, shape in header.pop("arrays"):
            dtype = np.dtype(kind)
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(raw, dtype, count, place).reshape(shape)
            # A copy either way: what comes out can be written to, and does not hold on to the block.
            arrays[name] = array.astype(np.int64 if dtype.kind == "i" else dtype.newbyteorder("="))
            place += count * dtype.itemsize
    except (zlib.error, struct.error, ValueError, KeyError, TypeError) as error:
        raise CodecError(f"a packed block is damaged: {error}") from error
    return header, arrays


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "i":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        for width in _WIDTHS:
            if np.iinfo(width).min <= low and high <= np.iinfo(width).max:
                return array.astype(width)
    return array if array.dtype.kind == "b" else array.astype("<f8")
