"""`batuta backup` and `batuta restore`: copies of the journal of a state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from batuta.bootstrap.local_facts import told_state
from batuta.cli.options import HomeOption, Output, OutputOption, argument, flag
from batuta.cli.output import print_result, print_stderr
from batuta.client.address import find_home, show_path


def backup(
    file: Annotated[Path, argument("FILE", "Where the backup is written.")],
    replace: Annotated[bool, flag("--replace", "Replace a file that is there.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Copy the journal to a file, also while the server runs.

    The copy is verified. It has all jobs, events, tasks (with their envs), settings and hashes of tokens; no
    checkpoints, no logs. Only you may read it.

    Example: batuta backup /backups/batuta-monday.db
    """
    folder = find_home(home)
    with told_state():
        from batuta.bootstrap.local_state import back_up_home

        made = back_up_home(folder, file, replace=replace)
    facts = _facts(made) | {"file": str(file)}
    print_result(facts, output, lambda _: typer.echo(f"{show_path(file)}: {_describe(facts)}"))


def restore(
    file: Annotated[Path, argument("FILE", "What batuta backup wrote.")],
    replace: Annotated[bool, flag("--replace", "Set the journal aside that is there; it is not deleted.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Make a backup the journal of this machine's server, which must be stopped.

    It is verified and replayed before anything is changed. Folders of jobs stay where they are.

    Example: batuta restore /backups/batuta-monday.db --replace
    """
    folder = find_home(home)
    with told_state():
        from batuta.bootstrap.local_state import restore_home

        done = restore_home(folder, file, replace=replace)
    facts = _facts(done.backup) | {
        "home": str(folder),
        "set_aside": None if done.aside is None else str(done.aside),
        "unknown_jobs": [stray.job for stray in done.mismatch.strays],
    }
    print_result(facts, output, lambda _: typer.echo(f"{show_path(folder)} has its journal back: {_describe(facts)}"))
    if done.aside is not None:
        print_stderr(f"the journal that was there is in {show_path(done.aside)}")
    for reason in done.mismatch.reasons:
        print_stderr(f"note: {reason}; batuta up --set-aside moves them out of the way, and batuta up alone refuses")


def _facts(made: Any) -> dict[str, Any]:
    return {
        "journal": made.journal,
        "first_seq": made.first_seq,
        "last_seq": made.last_seq,
        "bytes": made.bytes,
    }


def _describe(facts: dict[str, Any]) -> str:
    return (
        f"events {facts['first_seq']:,} to {facts['last_seq']:,} of journal {facts['journal'][:12]}, "
        f"{facts['bytes'] / 2**20:.1f} MiB, verified"
    )
