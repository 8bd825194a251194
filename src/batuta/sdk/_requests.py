"""Requests for a checkpoint: numbers in two small files, and SIGUSR1."""

from __future__ import annotations

import os

from batuta.sdk import _lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REQUEST_FILE = "checkpoint-request"
DONE_FILE = "checkpoint-done"

_answered = 0  # the last request that this process answered, should its answer not have reached the disk
_signalled = False
_listening = False
_reported = False  # whether this process reported that it looks for requests


def listen() -> None:
    """Installs the handler of SIGUSR1, under Batuta and where that is possible; else nothing happens."""
    global _listening  # noqa: PLW0603 - a process has one handler for a signal
    if _listening or "BATUTA_JOB_ID" not in os.environ:
        return
    import signal  # noqa: PLC0415 - only under Batuta

    try:
        before = signal.getsignal(signal.SIGUSR1)
        if before is None:
            return  # Set by C code, which could not be called from here.

        def note(number: int, frame: Any) -> None:
            global _signalled  # noqa: PLW0603
            _signalled = True
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGUSR1, note)
        if before in (signal.SIG_DFL, signal.SIG_IGN):
            # It is only noted: no call of a C library has to be cut short for that.
            signal.siginterrupt(signal.SIGUSR1, False)
        _listening = True
    except (ValueError, OSError, AttributeError):
        return  # Not the main thread, or not a system with this signal. The files do without.


def is_waiting() -> bool:
    """Whether a request has not been answered yet."""
    _report()
    if os.environ.get("BATUTA_CONTROL"):
        return pending() > 0
    listen()
    return _signalled


def _report() -> None:
    """Reports once that the script saves on request: Batuta may resize a job that does."""
    global _reported  # noqa: PLW0603 - a process says it once
    path = os.environ.get("BATUTA_PROGRESS")
    if path and not _reported:
        _reported = True
        _lines.append_event(path, "saves-on-request")


def pending() -> int:
    """The number of the request that waits for an answer; 0 when there is none, or when it has no number."""
    folder = os.environ.get("BATUTA_CONTROL")
    if not folder:
        return 0
    wanted = _read_number(os.path.join(folder, REQUEST_FILE))
    if wanted <= _answered:
        return 0
    return wanted if wanted > _read_number(_done_file(folder)) else 0


def answer(number: int) -> None:
    """Marks a request as answered, for this process and for all that share the folder."""
    global _answered, _signalled  # noqa: PLW0603 - what a process knows of its requests
    _signalled = False
    folder = os.environ.get("BATUTA_CONTROL")
    if not number or not folder:
        return
    _answered = max(_answered, number)
    try:
        _lines.replace_file(_done_file(folder), f"{number}\n".encode())
    except Exception as error:
        _lines.warn_once(f"a request for a checkpoint could not be answered: {error}")


def _done_file(folder: str) -> str:
    """Beside the requests, unless Batuta names another folder because that one is read-only."""
    return os.path.join(os.environ.get("BATUTA_ANSWERS") or folder, DONE_FILE)


def _read_number(path: str) -> int:
    """The number in a file; 0 for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        text = os.read(handle, 32).split()
        return int(text[0]) if text and text[0].isdigit() else 0
    except OSError:
        return 0
    finally:
        os.close(handle)
