"""JSON, signals and prctl, straight from the C modules of the standard library.

There is one runner per replica, and a replica waits for its runner to start. The modules in front of these
(json, signal, ctypes) load `re` and `enum` and would double that time. An interpreter without the C modules of
json and signal gets the ordinary ones.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` itself is one of the slow ones
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    try:
        import _signal as signal
    except ImportError:
        import signal

__all__ = ["PR_SET_CHILD_SUBREAPER", "PR_SET_DUMPABLE", "PR_SET_NAME", "PR_SET_PDEATHSIG", "TYPE_CHECKING"]
__all__ += ["call", "dump", "parse", "prctl", "signal"]

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int | bytes) -> bool:
    """Changes a property of this process; False where that cannot be done."""
    if sys.platform != "linux":
        return False
    try:
        import _ctypes

        itself: Any = None  # what the interpreter has loaded, its C library included
        address = _ctypes.dlsym(_ctypes.dlopen(itself, 0), "prctl")
        return int(_ctypes.call_function(address, (option, value, 0, 0, 0))) == 0
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
        from _json import make_scanner

        scan = make_scanner(_Strict)  # type: ignore[arg-type]  # anything with these attributes
    except (ImportError, AttributeError):
        import json

        return json.loads(text)
    try:
        return scan(text, 0)[0]
    except StopIteration as nothing:  # what the C scanner says at an unexpected end
        raise ValueError("not JSON") from nothing


def dump(value: object) -> str:
    """JSON, in ASCII alone, of plain Python values."""
    try:
        from _json import encode_basestring_ascii, make_encoder

        encode = make_encoder(None, None, encode_basestring_ascii, None, ": ", ", ", False, False, True)  # type: ignore[arg-type]
    except (ImportError, AttributeError):
        import json

        return json.dumps(value)
    return "".join(encode(value, 0))


class _Strict:
    """What the C scanner wants to know: plain JSON, plain Python values."""

    strict = True
    object_hook = object_pairs_hook = parse_constant = None
    parse_float = float
    parse_int = int
