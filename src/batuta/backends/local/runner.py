"""Supervises one replica: `python -I -S runner.py RUN_DIR`.

A server starts one runner per replica, in a session of its own, and may then be killed: the runner goes on,
and what happens to the replica is in RUN_DIR for the next server. It has to start fast and stay small, so it
loads nothing of Batuta but the package beside it, `supervisor`, without the packages above.
"""

from __future__ import annotations

import os
import sys

_LOCK = 3  # the descriptor at which the server hands over its lock on `spec.json`: held as long as the runner lives


CAN_MOUNT = "--can-mount"
"""In place of RUN_DIR: says why replicas cannot have a private view of the file system, or ends with 0."""


def _can_mount() -> int:
    _find_supervisor()
    from batuta.backends.local.supervisor.mount_namespace import why_not

    found = why_not()
    os.write(1, found.encode())
    return 1 if found else 0


def _run(run_dir: str) -> int:
    _find_supervisor()
    _detach()
    from batuta.backends.local.supervisor.lean_stdlib import PR_SET_NAME, parse, prctl
    from batuta.backends.local.supervisor.loop import Supervisor
    from batuta.backends.local.supervisor.report import Report

    spec_path = os.path.join(run_dir, "spec.json")
    if not _own(spec_path):
        return 3
    prctl(PR_SET_NAME, b"batuta-runner")
    with open(spec_path, encoding="utf-8") as file:
        spec = parse(file.read())
    Supervisor(spec, Report(run_dir, spec["run_id"], spec.get("doorbell"))).supervise()
    return 0


def _find_supervisor() -> None:
    """Makes the package beside this file importable by its full name, without the packages around it."""
    if "batuta" in sys.modules:
        return
    here = os.path.dirname(os.path.abspath(__file__))
    name = ""
    for part in ("batuta", "backends", "local"):
        name = f"{name}.{part}" if name else part
        package = type(sys)(name)
        package.__path__ = [here]
        sys.modules[name] = package


def _detach() -> None:
    """Leaves the server's session, where it could not be spawned outside of it, and holds no directory."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    os.chdir("/")


def _own(spec_path: str) -> bool:
    """Whether this is the only runner here: by the lock that the server handed over, or by taking it."""
    import fcntl

    open_files = os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ["255"]
    os.closerange(_LOCK + 1, max(map(int, open_files)) + 1)
    try:
        handed_over = os.path.samestat(os.fstat(_LOCK), os.stat(spec_path))
    except OSError:
        handed_over = False
    lock = _LOCK if handed_over else os.open(spec_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    os.set_inheritable(lock, False)
    return True


if __name__ == "__main__":
    if sys.argv[1] == CAN_MOUNT:
        os._exit(_can_mount())
    try:
        where = os.path.abspath(sys.argv[1])
        code = _run(where)
    except Exception:
        import traceback

        with open(os.path.join(where, "runner.err"), "a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        code = 1
    os._exit(code)  # all is written; to tidy up the interpreter would only delay the news
