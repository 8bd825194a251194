"""Lines for `$BATUTA_PROGRESS` and the result. Nothing here raises into a training loop."""

from __future__ import annotations

import atexit
import os
import sys
import time

from batuta.sdk import _stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST_LINE_BYTES = 2**16
LARGEST_RESULT_BYTES = 2**24
_DEEPEST = 64
_OTHERS_EVERY_S = 0.5  # ranks other than 0 report no more often than this, unless told otherwise: all do the same steps

_warned: set[str] = set()
_torn: set[str] = set()  # files whose last line was cut off by a full disk: the next one has to begin a new line
_held: dict[str, dict[str, Any]] = {}  # by file: the report that waits because the one before it is too fresh
_last_s: dict[str, float] = {}
_at_exit: list[bool] = []


def append_report(
    path: str, known: dict[str, Any], metrics: dict[str, Any], own_s: Any = None, taken: tuple[float, int] | None = None
) -> None:
    """Appends a report; `own_s` is the script's own measure of its time, `taken` that of the clock."""
    try:
        in_log = path == _stderr.PATH
        if in_log and not _stderr.speaks_for_all():
            return
        broken: list[str] = []
        record = _origin()
        record.update({key: _number(key, value, broken) for key, value in known.items() if value is not None})
        named = {key: _number(key, value, broken) for key, value in metrics.items() if value is not None}
        if named:
            record["metrics"] = named
        if broken:
            record["nonfinite"] = broken
        record.update(_own_time(own_s, taken, _held.get(path)))
        usual_s = _stderr.EVERY_S if in_log else _OTHERS_EVERY_S if record.get("rank") else 0.0
        every_s = float(os.environ.get("BATUTA_REPORT_EVERY_S") or usual_s)
        if every_s > 0 and time.monotonic() - _last_s.get(path, -every_s) < every_s:
            if not _at_exit:
                _at_exit.append(True)
                atexit.register(flush)
            _held[path] = record
            return
        _held.pop(path, None)
        _last_s[path] = time.monotonic()
        _append(path, record)
    except Exception as error:
        warn_once(f"a report was dropped: {error}")


def _own_time(
    said: Any, taken: tuple[float, int] | None, held: dict[str, Any] | None
) -> dict[str, float | int | list[float]]:
    """What a report says of own time: `said` by the script, or `taken` from the clock.

    That of a report which was held back and is dropped for this one is added.
    """
    seconds, steps = ([], 0) if taken is None else ([taken[0]], taken[1])
    is_list = hasattr(said, "__len__") and getattr(said, "ndim", 1) > 0
    if said is not None:
        seconds, steps = [float(one) for one in said] if is_list else [float(said)], max(steps, 1)
    if held is not None and "own_s" in held:
        before = held["own_s"] if isinstance(held["own_s"], list) else [held["own_s"]]
        if not seconds or len(seconds) == len(before):
            is_list = isinstance(held["own_s"], list)
            seconds = [one + other for one, other in zip(before, seconds or [0.0] * len(before), strict=True)]
            steps += held["own_steps"]
    if not seconds:
        return {}
    short = [float(f"{one:.4g}") for one in seconds]
    return {"own_s": short if is_list else short[0], "own_steps": steps}


def append_checkpoint(path: str, where: str | os.PathLike[str], step: int | None, request: int) -> None:
    try:
        flush()
        record = {**_origin(), "event": "checkpoint", "path": os.fsdecode(where)}
        if step is not None:
            record["step"] = _number("step", step, [])
        if request:
            record["request"] = request
        _append(path, record)
    except Exception as error:
        warn_once(f"a checkpoint could not be reported: {error}")


def append_event(path: str, event: str) -> None:
    """Something that has no numbers."""
    try:
        if path != _stderr.PATH or _stderr.speaks_for_all():
            _append(path, {**_origin(), "event": event})
    except Exception as error:
        warn_once(f"a report was dropped: {error}")


def keep_result(value: Any) -> None:
    """Keeps the result as a line of the log or as a file; the last one counts."""
    try:
        folder = os.environ.get("BATUTA_CONTROL")
        if os.environ.get("BATUTA_PROGRESS") == _stderr.PATH:
            flush()
            record = {**_origin(), "event": "result", "value": _plain(value, 0)}
            _stderr.write(_encode(record), _stderr.LONGEST_RESULT_BYTES)
        elif folder:
            text = _encode(_plain(value, 0))
            if len(text) > LARGEST_RESULT_BYTES:
                raise ValueError(f"it is larger than {LARGEST_RESULT_BYTES >> 20} MiB")
            replace_file(os.path.join(folder, "result.json"), text)
    except Exception as error:
        warn_once(f"the result was not kept: {error}")


def flush() -> None:
    """Writes the reports that were held back."""
    while _held:
        path, record = _held.popitem()
        try:
            _append(path, record)
        except Exception as error:
            warn_once(f"a report was dropped: {error}")


def replace_file(path: str, data: bytes) -> None:
    """Readers see the old content or the new one, also after a crash of the machine."""
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        try:  # noqa: SIM105 - importing contextlib takes longer than all the rest
            os.unlink(draft)
        except OSError:
            pass
        raise


def warn_once(message: str) -> None:
    """On stderr, and not through `warnings`: those can be turned into exceptions."""
    if message not in _warned and len(_warned) < 20:
        _warned.add(message)
        try:  # noqa: SIM105 - see above
            sys.stderr.write(f"batuta.sdk: {message}\n")
        except Exception:
            pass


def _origin() -> dict[str, Any]:
    record: dict[str, Any] = {"time": time.time()}
    replica, restart = os.environ.get("BATUTA_REPLICA", ""), os.environ.get("BATUTA_RESTART", "")
    rank = os.environ.get("RANK", "") or replica
    for key, text in (("rank", rank), ("replica", replica), ("restart", restart)):
        if text.isdecimal():
            record[key] = int(text)
    return record


def _append(path: str, record: dict[str, Any]) -> None:
    """One write for one line, at the end of the file wherever that is: lines of many processes do not mix."""
    if path == _stderr.PATH:
        _say(record)
        return
    line = _encode(record) + b"\n"
    if len(line) > LONGEST_LINE_BYTES:
        raise ValueError(f"it is longer than {LONGEST_LINE_BYTES >> 10} KiB")
    if path in _torn:
        line = b"\n" + line
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(handle, line)
    finally:
        os.close(handle)
    _torn.discard(path)
    if written < len(line):
        _torn.add(path)
        raise OSError("the disk is full")


def _say(record: dict[str, Any]) -> None:
    """As a line of the log. How far the training is matters more than metrics that there is no room for."""
    text = _encode(record)
    dropped = next((key for key in ("metrics", "own_s") if key in record), None)
    if len(text) + len(_stderr.PREFIX) >= _stderr.LONGEST_LINE_BYTES and dropped:
        warn_once(f"{dropped} were left out: together they are longer than a line of the log may be")
        less = {key: value for key, value in record.items() if key != dropped}
        if "nonfinite" in less:
            less["nonfinite"] = [name for name in less["nonfinite"] if name in less]
        _say(less)
    else:
        _stderr.write(text)


def _encode(value: Any) -> bytes:
    import json  # noqa: PLC0415 - a tenth of the time that importing the SDK may take

    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _number(key: str, value: Any, broken: list[str]) -> Any:
    """A number that JSON can say. NaN and infinities become null, and their names are noted."""
    if not isinstance(value, int | float):
        value = value.item() if hasattr(value, "item") else float(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and not -1.8e308 < value < 1.8e308:
        broken.append(key)
        return None
    return value


def _plain(value: Any, depth: int) -> Any:
    """The same in JSON's own kinds; what has none becomes text."""
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return value if -1.8e308 < value < 1.8e308 else None
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), depth + 1)
    return str(value)
