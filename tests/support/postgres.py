"""A real PostgreSQL server of the tests' own, in a temporary folder: Debian's package `postgresql`."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

MISSING = "needs a PostgreSQL server: apt-get install postgresql"
_PORT = 5432
"""Names the socket only: nothing listens on a network."""
_PATIENCE_S = 30.0
_SETTINGS = (
    "listen_addresses=",
    "max_connections=40",
    "shared_buffers=16MB",
    "max_wal_size=200MB",
    "autovacuum=off",
    "log_min_messages=fatal",
    "log_checkpoints=off",
)
_QUICK = ("fsync=off", "full_page_writes=off")
"""What is killed here is processes, and the kernel keeps what they have written."""


def find_program(name: str) -> Path | None:
    """A program of the server, which Debian does not put on the path; the newest of several."""
    found = shutil.which(name)
    if found:
        return Path(found)
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parts[4]))
    return next((folder / name for folder in reversed(folders) if (folder / name).exists()), None)


class PostgresServer:
    """Started by `start`, ended by `remove`. Connections go through a socket in its folder.

    Only one that is asked to be durable waits for the disk: tests pull no plug, benchmarks count the wait.
    """

    def __init__(self, *, is_durable: bool = False) -> None:
        self._settings = _SETTINGS if is_durable else (*_SETTINGS, *_QUICK)
        self.folder = Path(tempfile.mkdtemp(prefix="batuta-pg-"))
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            # The server refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self._schemas = count(1)

    @property
    def socket_name(self) -> str:
        return f".s.PGSQL.{_PORT}"

    def create(self) -> None:
        initdb = find_program("initdb")
        assert initdb is not None
        options = ("--no-sync", "--auth=trust", "--username=batuta", "--encoding=UTF8", "--locale=C")
        subprocess.run(
            [initdb, *options, self._data],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            **self._user,
        )

    def start(self) -> None:
        """Starts the server and waits until it takes connections."""
        postgres = find_program("postgres")
        assert postgres is not None
        settings = [part for setting in self._settings for part in ("-c", setting)]
        give_up_s = time.monotonic() + _PATIENCE_S
        # A server that was killed leaves processes for an instant, and while they live no other starts.
        while True:
            self._process = subprocess.Popen(
                [postgres, "-D", self._data, "-k", self.folder, "-p", str(_PORT), *settings],
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                **self._user,
            )
            if self.answers():
                return
            assert time.monotonic() < give_up_s, "the server does not start"

    def answers(self) -> bool:
        """Waits until the server takes connections; False when it ends instead."""
        import psycopg

        assert self._process is not None
        give_up_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up_s and self._process.poll() is None:
            try:
                psycopg.connect(self.admin_url).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return True
        return False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9 of the whole server: of its first process, and the others see that and end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_PATIENCE_S)

    def stop(self) -> None:
        """An orderly end that waits for no session."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_PATIENCE_S)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_PATIENCE_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, schema: str | None = None, folder: Path | None = None) -> str:
        """The address of a journal in a schema of its own; through the socket in another folder, if named."""
        schema = schema or f"journal_{next(self._schemas)}"
        return f"postgresql://batuta@/postgres?host={folder or self.folder}&port={_PORT}&schema={schema}"

    @property
    def admin_url(self) -> str:
        """For libpq itself, which knows no schema in a URL."""
        return f"postgresql://batuta@/postgres?host={self.folder}&port={_PORT}"


def started_server() -> PostgresServer:
    """A running server; skips the test, in the same words everywhere, where none is installed."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'batuta[postgres]'")
    if find_program("postgres") is None or find_program("initdb") is None:
        pytest.skip(MISSING)
    server = PostgresServer()
    try:
        server.create()
        server.start()
    except BaseException:
        server.remove()
        raise
    return server
