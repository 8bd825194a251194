"""`batuta up -d`: a server in the background, and what it said while it started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import subprocess

NOTE = "note: "
"""How a line begins that people should see, whoever has started the server."""
READY_WITHIN_S = 60.0
_SHOWN_LINES = 20


def start_detached(home: Path, words: list[str]) -> None:
    """Starts `batuta up` in a session of its own, and returns when it is ready or has said why not."""
    import subprocess

    from batuta.bootstrap.local_facts import prepare_home, server_pid
    from batuta.cli.terminal import say, spinner
    from batuta.client.address import show_path
    from batuta.client.errors import ClientError

    prepare_home(home)
    if (pid := server_pid(home)) is not None:
        # Before its log is begun anew.
        raise ClientError(f"a server (pid {pid}) has {show_path(home)} already; batuta down ends it")
    log = home / "up.log"
    asked = [word for word in words if word not in ("-d", "--detach")]
    command = [sys.executable, "-m", "batuta", *asked]
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"BATUTA_HOME": str(home)},
        )
    with spinner("the server starts"):
        url = _wait_until_ready(home, child, log)
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(NOTE):
            typer.echo(line, err=True)
    say(f"the server runs at {url} (pid {child.pid}); its log is {show_path(log)}")
    if not sys.stdout.isatty():  # a script wants it; who reads has just seen it
        typer.echo(url)


def _wait_until_ready(home: Path, child: subprocess.Popen[bytes], log: Path) -> str:
    from batuta.client.address import read_server_file
    from batuta.client.client import Client
    from batuta.client.errors import ClientError

    give_up = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up:
        code = child.poll()
        if code is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
            for line in lines or [f"error: the server ended at once with exit code {code}"]:
                typer.echo(line, err=True)
            raise typer.Exit(code if code > 0 else 1)
        if read_server_file(home).get("pid") == child.pid:
            try:
                with Client(home=home, timeout_s=5.0) as client:
                    if client.is_ready() and client.address is not None:
                        return client.address.url
            except ClientError:
                pass  # it is still on its way
        time.sleep(0.05)
    raise ClientError(f"the server (pid {child.pid}) is not ready after {READY_WITHIN_S:.0f} s: see {log}")
