"""Starts servers by forking, so that one is up in a fifth of a second: python -P fork_server.py.

All that a server imports is imported once, here. One JSON object per line comes in and one goes out:

    {"start": {options of UpOptions}, "log": PATH}   a child serves          {"pid": PID}
    {"look": PID}                                    whether it has ended    {"code": CODE or null}

At the end of its input it kills the children that it still has, and ends. Single-threaded: it may fork.
"""

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from batuta.bootstrap.local_server import UpOptions, serve
from batuta.engine.profile import profile_for
from batuta.policies.registry import policy_summaries

LATE = (
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)


def main() -> None:
    # What a server would import only when it needs it.
    for module in LATE:
        importlib.import_module(module)
    for policy, _ in policy_summaries():
        profile_for(policy)
    alive: set[int] = set()
    try:
        for line in iter(sys.stdin.readline, ""):
            asked = json.loads(line)
            if "start" in asked:
                answer: dict[str, Any] = {"pid": _start(asked["start"], asked["log"])}
                alive.add(answer["pid"])
            else:
                answer = {"code": _look(asked["look"], alive)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
            os.waitpid(pid, 0)


def _look(pid: int, alive: set[int]) -> int | None:
    if pid not in alive:
        raise ValueError(f"{pid} is no child of mine")
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return None
    alive.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _start(options: dict[str, Any], log: str) -> int:
    pid = os.fork()
    if pid == 0:
        _serve(options, log)
    return pid


def _serve(options: dict[str, Any], log: str) -> NoReturn:
    """What the child does: it never comes back to the loop above."""
    code = 70
    try:
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDONLY)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(nothing, 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = serve(UpOptions(**(options | {"home": Path(options["home"])})))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
