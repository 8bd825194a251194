"""`batuta down`: the server of this machine ends."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption

GONE_WITHIN_S = 150.0
"""A server gives its jobs two minutes to save and to end."""


def down(
    keep_jobs: Annotated[
        bool, typer.Option("--keep-jobs", help="Let jobs run on; the next server takes them over.")
    ] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Stop the server. Jobs make a checkpoint and stop as well, and go on at the next start.

    Examples:

      batuta down

      batuta down --keep-jobs
    """
    from batuta.bootstrap.local_facts import server_pid
    from batuta.cli.terminal import print_json, spinner
    from batuta.client.address import find_home, show_path
    from batuta.client.client import Client
    from batuta.client.errors import ClientError, NoServerError

    folder = find_home(home)
    pid = server_pid(folder)
    if pid is None:
        _tell_down(output, f"no server is running for {show_path(folder)}", None)
        return
    try:
        with Client(home=folder) as client:
            client.shut_down(keep_jobs=keep_jobs)
    except NoServerError:
        raise ClientError(f"the server (pid {pid}) does not answer; to end it: kill {pid}") from None
    with spinner("the server shuts down"):
        give_up = time.monotonic() + GONE_WITHIN_S
        while server_pid(folder) == pid:
            if time.monotonic() > give_up:
                raise ClientError(f"the server (pid {pid}) still runs after {GONE_WITHIN_S:.0f} s")
            time.sleep(0.05)
    if output is Output.JSON:
        print_json({"stopped": True, "pid": pid})
    else:
        kept = "; its jobs run on" if keep_jobs else ""
        typer.echo(f"the server for {show_path(folder)} (pid {pid}) has stopped{kept}")


def _tell_down(output: Output, message: str, pid: int | None) -> None:
    from batuta.cli.terminal import print_json

    if output is Output.JSON:
        print_json({"stopped": False, "pid": pid})
    else:
        typer.echo(message)
