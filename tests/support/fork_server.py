"""Runs `batuta` by forking, so that no call has to import it again: python -P fork_server.py.

All that servers, operators and the client import is imported once, here: that takes a server or an operator some
seconds of CPU, and the tests start hundreds. One JSON object per line comes in and one goes out:

    {"start": {options of UpOptions}, "log": PATH}             a child serves                 {"pid": PID}
    {"run": [words], "cwd": PATH, "env": {…}, "in": PATH, "out": PATH, "err": PATH, "alone": BOOL}
                                                               a child is `batuta words`,     {"pid": PID}
                                                               alone: in a session of its own
    {"look": PID}                                              whether it has ended           {"code": CODE or null}

At the end of its input it kills the children that it still has, and ends. Single-threaded: it may fork.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from batuta.bootstrap.local_server import UpOptions, serve
from batuta.cli.main import run
from batuta.cli.verbs import VERBS
from batuta.engine.profile import profile_for
from batuta.policies.registry import policy_summaries

LATE = (
    "_strptime",
    "anyio._backends._asyncio",
    "anyio.streams.tls",
    "batuta.bootstrap.operator",
    "batuta.client.client",
    "batuta.store.postgres",
    "concurrent.futures.thread",
    "encodings.idna",
    "fastapi.telemetry._runtime",
    "httpcore2",
    "importlib.resources.readers",
    "pydantic.dataclasses",
    "truststore",
    "typer._adapters",
    "typer._click.decorators",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""What is otherwise imported when it is first needed."""


def main() -> None:
    for module in (*LATE, *sorted({f"batuta.cli.{verb.module}" for verb in VERBS})):
        importlib.import_module(module)
    for policy, _ in policy_summaries():
        profile_for(policy)
    gc.collect()
    gc.freeze()
    if (work := _take_requests()) is not None:
        _end_with(work)


def _end_with(work: Callable[[], None]) -> None:
    """Does a child's work and ends as any program does, but for one thing: it gives its memory back as a whole.

    To free it object by object means to copy what it shares with all other children: half the time of a short call.
    There is no public name for what an interpreter does at its end; `multiprocessing` ends its children like this, too.
    """
    try:
        work()
        code: object = 0
    except SystemExit as error:
        code = error.code
    except BaseException:  # Ctrl-C is told as an exit code by `batuta` itself
        sys.excepthook(*sys.exc_info())
        code = 1
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def _take_requests() -> Callable[[], None] | None:
    """Return what a child shall do, in that child; None at the end of the input.

    A child works below `main`, so that it ends as any program does: its threads are waited for, its streams flushed.
    """
    alive: set[int] = set()
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        if "look" in asked:
            answer: dict[str, Any] = {"code": _look(asked["look"], alive)}
        elif (pid := os.fork()) == 0:
            return partial(_serve if "start" in asked else _run, asked)
        else:
            alive.add(pid)
            answer = {"pid": pid}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid in alive:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        os.waitpid(pid, 0)
    return None


def _look(pid: int, alive: set[int]) -> int | None:
    if pid not in alive:
        raise ValueError(f"{pid} is no child of mine")
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return None
    alive.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _serve(asked: dict[str, Any]) -> None:
    os.setsid()
    _redirect("/", os.devnull, asked["log"], asked["log"])
    options = asked["start"]
    # Tests make up users, and run as root on most machines: as with any other user, their jobs run as whoever it is.
    usual = {} if "unix_socket" in options else {"jobs_run_as_me": True}
    sys.exit(serve(UpOptions(**(usual | options | {"home": Path(options["home"])}))))


def _run(asked: dict[str, Any]) -> None:
    if asked["alone"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(asked["env"])
    _redirect(asked["cwd"], asked["in"], asked["out"], asked["err"])
    sys.argv = ["batuta", *asked["run"]]
    run()


def _redirect(cwd: str, read: str, out: str, err: str) -> None:
    os.chdir(cwd)
    os.dup2(os.open(read, os.O_RDONLY), 0)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)


if __name__ == "__main__":
    main()
