"""The processes of a run whose runner is gone: found by marks that they carry, and killed.

The kernel ends the main process with its runner; what that has forked loses its ancestors and lives on. It is
found by `BATUTA_RUN` in its environment, by the session of the main process, and by descent from these. (A
program that sets its title writes over its environment; one that leaves the session keeps the environment.)
"""

from __future__ import annotations

import os
import signal
import time

from batuta.backends.local.supervisor import tree
from batuta.backends.local.supervisor.tree import Entry

_WITHIN_S = 10.0


def kill_leftovers(run_id: str, session: tree.Process | None = None) -> int:
    """Kills what is left of a run, and waits until it is gone, at most ten seconds; how many processes.

    Only for a run whose runner is gone: a living runner's processes would be found too.
    """
    killed: set[tree.Process] = set()
    give_up = time.monotonic() + _WITHIN_S
    while left := find_leftovers(run_id, session):
        for entry in left:
            if tree.send(entry.process, signal.SIGKILL):
                killed.add(entry.process)
        if time.monotonic() > give_up:
            break
        time.sleep(0.002)
    return len(killed)


def find_leftovers(run_id: str, session: tree.Process | None = None) -> list[Entry]:
    """The living processes of a run, wherever they hang now; never this process, nor a runner."""
    mark = f"BATUTA_RUN={run_id}".encode()
    own = {os.getpid(), os.getppid()}
    roots = [
        entry
        for entry in tree.all_entries()
        if entry.pid not in own and (_is_member(entry, session) or _is_marked(entry, mark))
    ]
    below = tree.descendants({entry.pid for entry in roots}) if roots else []
    return [entry for entry in (*roots, *below) if entry.pid not in own and not entry.dead]


def _is_member(entry: Entry, session: tree.Process | None) -> bool:
    """Whether it is in the session that the main process led.

    A session keeps its number from being used again. If its leader's pid belongs to another process now, the
    session is over, and the number means another one.
    """
    if session is None or entry.session != session[0] or entry.start < session[1]:
        return False
    leader = tree.look_up(session[0])
    return leader is None or leader.start == session[1]


def _is_marked(entry: Entry, mark: bytes) -> bool:
    try:
        with open(f"/proc/{entry.pid}/environ", "rb", buffering=0) as file:
            text = file.read(1 << 20)
    except OSError:
        return False  # gone, or another user's
    return mark in text.split(b"\0") if mark in text else False
