"""The state directory: whose it is, who can read it, how much room it has, who holds it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from batuta.cli.checks.finding import Finding, note, ok, warning
from batuta.cli.checks.finding import error as bad
from batuta.client.address import read_server_file, show_path
from batuta.client.errors import ClientError
from batuta.store.room import check_room

_OTHERS = 0o077


def check_state_dir(home: Path) -> Iterator[Finding]:
    """What is wrong with it before a server even starts."""
    name = show_path(home)
    try:
        facts = home.stat()
    except FileNotFoundError:
        yield note("state directory", f"{name} is not there yet", "batuta up makes it")
        return
    except OSError as trouble:
        yield bad("state directory", f"{name}: {trouble.strerror}", "choose another with --home")
        return
    yield _owner(home, facts)
    yield from _secrets(home)
    yield check_room(home)
    yield _lock(home)


def _owner(home: Path, facts: os.stat_result) -> Finding:
    name, mode = show_path(home), stat.S_IMODE(facts.st_mode)
    if not stat.S_ISDIR(facts.st_mode):
        return bad("state directory", f"{name} is not a directory", "choose another with --home")
    if facts.st_uid != os.geteuid():
        return bad("state directory", f"{name} belongs to uid {facts.st_uid}", "choose another with --home")
    if mode & _OTHERS:
        return bad("state directory", f"{name} is open to others (mode {mode:04o})", f"chmod 700 {name}")
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return bad("state directory", f"{name} is not writable", f"chmod 700 {name}")
    return ok("state directory", f"{name}, mode {mode:04o}")


def _secrets(home: Path) -> Iterator[Finding]:
    for file in (home / "token", home / "journal.db"):
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
        except OSError:
            continue
        if mode & _OTHERS:
            name = show_path(file)
            yield bad(file.name, f"{name} can be read by others (mode {mode:04o})", f"chmod 600 {name}")


def _lock(home: Path) -> Finding:
    from batuta.bootstrap.local_facts import server_pid

    try:
        pid = server_pid(home)
    except (ClientError, OSError) as trouble:
        return bad("lock", str(trouble), "end the process that holds it")
    told = read_server_file(home).get("pid")
    if pid is None and told is not None:
        return warning(
            "lock",
            f"the last server (pid {told}) was killed",
            "batuta up recovers everything from the journal",
        )
    if pid is not None and told is not None and told != pid:
        return warning("lock", f"held by pid {pid}; server.json names {told}", "wait until it has started")
    return ok("lock", "free" if pid is None else f"held by the server (pid {pid})")
