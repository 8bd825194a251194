"""JSON, signals and prctl, straight from the C modules of the standard library.

There is one runner per replica, and a replica waits for its runner to start. The modules in front of these
(json, signal, ctypes) load `re` and `enum` and would double that time. An interpreter without these C modules
gets the ordinary ones.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` itself is one of the slow ones
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any
else:
    try:
        import _signal as signal
    except ImportError:
        import signal

__all__ = [
    "PR_SET_CHILD_SUBREAPER",
    "PR_SET_NAME",
    "PR_SET_PDEATHSIG",
    "TYPE_CHECKING",
    "call",
    "dump",
    "parse",
    "prctl",
    "signal",
]

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int | bytes) -> bool:
    """Changes a property of this process; False where that cannot be done."""
    if sys.platform != "linux":
        return False
    try:
        return _prctl()(option, value) == 0
    except (ImportError, AttributeError, OSError):
        return False


def call(name: str, *arguments: int | bytes | str) -> int:
    """Calls a function of the C library: numbers, texts, 0 for a null pointer. OSError when it returns -1."""
    import _ctypes
    import os

    c: Any = _ctypes

    class _Int(c._SimpleCData):  # type: ignore[misc]  # as ctypes makes them
        _type_ = "i"

    class _Function(c.CFuncPtr):  # type: ignore[misc]
        _flags_ = c.FUNCFLAG_CDECL | c.FUNCFLAG_USE_ERRNO
        _restype_ = _Int

    function = _Function(c.dlsym(c.dlopen(None, 0), name))
    done = function(*(os.fsencode(one) if isinstance(one, str) else one or None for one in arguments))
    if done == -1:
        number = c.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return int(done)


def parse(text: str) -> Any:
    """The value of a JSON text; ValueError when it is none."""
    try:
        return _parser()(text)
    except StopIteration as nothing:  # what the C scanner says at an unexpected end
        raise ValueError("not JSON") from nothing


def dump(value: object) -> str:
    """JSON of what a state consists of: text, numbers, None, lists, dicts with text as keys."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {dump(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(dump, value)) + "]"
    raise TypeError(f"no JSON for {type(value).__name__}")


def _quoted(text: str) -> str:
    escaped = []
    for char in text:
        if char in '"\\':
            escaped.append("\\" + char)
        elif " " <= char <= "~":
            escaped.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass").hex()
            escaped.extend(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
    return '"' + "".join(escaped) + '"'


class _Strict:
    """What the C scanner wants to know: plain JSON, plain Python values."""

    strict = True
    object_hook = object_pairs_hook = parse_constant = None
    parse_float = float
    parse_int = int


def _parser() -> Callable[[str], Any]:
    try:
        from _json import make_scanner

        scan = make_scanner(_Strict)  # type: ignore[arg-type]  # anything with these attributes
    except (ImportError, AttributeError):
        import json

        return json.loads
    return lambda text: scan(text, 0)[0]


def _prctl() -> Callable[[int, int | bytes], int]:
    try:
        import _ctypes

        itself: Any = None  # what the interpreter has loaded, its C library included
        address = _ctypes.dlsym(_ctypes.dlopen(itself, 0), "prctl")
        return lambda option, value: int(_ctypes.call_function(address, (option, value, 0, 0, 0)))
    except (ImportError, AttributeError):
        import ctypes

        libc = ctypes.CDLL(None)
        return lambda option, value: int(libc.prctl(option, value, 0, 0, 0))
