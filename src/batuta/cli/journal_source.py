"""A state directory whose server does not run, as the source of an answer."""

from __future__ import annotations

from pathlib import Path


def home_of_stopped(home: Path | None) -> Path:
    """The state directory that is meant, with a word to people that its server does not run.

    NoServerError when nothing was ever stored there, or when the server is somewhere else.
    """
    import os

    from batuta.cli.terminal import say
    from batuta.client.address import SERVER_VARIABLE, find_home, no_server, show_path
    from batuta.client.errors import NoServerError

    folder = find_home(home)
    if home is None and os.environ.get(SERVER_VARIABLE):
        raise NoServerError(f"{os.environ[SERVER_VARIABLE]} cannot be reached")
    if not (folder / "journal.db").is_file():
        raise no_server(folder)
    say(f"no server is running for {show_path(folder)}: this is by its journal, as it was at the last event")
    return folder
