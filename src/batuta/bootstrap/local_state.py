"""The state directory of a local server with its jobs' folders: opened if it is whole, backed up, restored."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from batuta.backends.local.files import read_stamp, write_stamp
from batuta.backends.local.job_files import JobFiles, job_folders
from batuta.backends.local.job_manager import stop_runs
from batuta.store.backup import Backup, Restored, back_up, restore
from batuta.store.errors import StateDirError
from batuta.store.identity import JobFolder, Mismatch, StateMark, adopt, find_mismatch, set_aside
from batuta.store.state_dir import StateDir
from batuta.store.store import SqliteStore


def open_own_store(state: StateDir, mark: StateMark, *, check: bool, strays_aside: bool) -> SqliteStore:
    """The store of a state directory, which is locked. OtherStateError, and all stays as it is, if it is another's.

    With `strays_aside`, folders that are not of the journal's jobs are moved out of the way instead.
    """
    folders = _found_folders(state)
    if not state.journal.exists():
        if not strays_aside:
            # Before one is made.
            _refuse(find_mismatch(mark.found, None, 0, folders, lambda _: False), state)
        # SQLite would take a log that is left of another file for this one's.
        elif left := [path for end in ("-wal", "-shm") if (path := Path(f"{state.journal}{end}")).exists()]:
            set_aside(state, left)
    store = SqliteStore(state.journal, check=check)
    try:
        own, seq = store.journal.id, store.journal.durable_seq
        found = find_mismatch(mark.found, own, seq, folders, store.tasks.has)
        if not strays_aside:
            _refuse(found, state)
        strays = {stray.path for stray in found.strays}
        if strays:
            for stray in found.strays:
                files = JobFiles(state.path, stray.job)
                stop_runs(files, files.run_numbers())
            set_aside(state, strays)
        adopt(mark, own, seq, found.strays)
        for folder in folders:
            if folder.journal is None and folder.path not in strays:
                with suppress(OSError):  # it is tried again at the next start
                    write_stamp(folder.path, own)
    except BaseException:
        store.close()
        raise
    store.on_durable = mark.reached
    return store


def _found_folders(state: StateDir) -> list[JobFolder]:
    try:
        return [JobFolder(job, path, read_stamp(path)) for job, path in job_folders(state.path)]
    except OSError as error:
        raise StateDirError(f"cannot tell whose folders are in {state.jobs}: {error}") from error


def _refuse(found: Mismatch, state: StateDir) -> None:
    if found.reasons:
        raise found.error(state.path)


def back_up_home(home: Path, target: Path, *, replace: bool) -> Backup:
    """Copy the journal of a state directory, which may be in use, to a file."""
    return back_up(StateDir(home).journal, target.absolute(), replace=replace)


def restore_home(home: Path, source: Path, *, replace: bool) -> Restored:
    """Make a file the journal of a state directory. AlreadyRunningError while a server uses it."""
    state = StateDir(home)
    state.prepare()
    with state.lock:
        return restore(source.absolute(), state, _found_folders(state), replace=replace)
