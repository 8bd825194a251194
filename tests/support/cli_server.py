"""`batuta` as people call it, with a server behind it: as a program, forked (quicker), or in this process."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from batuta.cli.main import app
from tests.support.server_process import run_batuta

WITHIN_S = 60.0


@dataclass
class Cli:
    """Calls `batuta` with a state directory and a working directory of its own."""

    home: Path
    cwd: Path
    environ: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """A call that goes on."""
        return subprocess.Popen(
            [sys.executable, "-m", "batuta", *arguments],
            cwd=self.cwd,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A call to its end, whatever the exit code, in a process of its own."""
        return run_batuta(*arguments, cwd=self.cwd, env=self._environ(), within_s=WITHIN_S)

    def _environ(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("BATUTA_")}
        return inherited | {"BATUTA_HOME": str(self.home)} | self.environ

    def ok(self, *arguments: str) -> str:
        """The output of a call that has to succeed; in this process."""
        names = ("BATUTA_SERVER", "BATUTA_TOKEN", "BATUTA_HOME")
        environ = dict.fromkeys(names) | {"BATUTA_HOME": str(self.home)} | self.environ
        with contextlib.chdir(self.cwd):
            done = CliRunner().invoke(app, arguments, env=environ)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, f"exit code {done.exit_code}\n{done.output}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "-o", "json"))

    def launch(self, *arguments: str) -> str:
        """The id of a new job that is not followed."""
        separator = arguments.index("--") if "--" in arguments else len(arguments)
        before, behind = arguments[:separator], arguments[separator:]
        return str(json.loads(self.ok("launch", "-d", "-o", "json", *before, *behind))["job"]["id"])

    def wait(self, job: str, *states: str) -> dict[str, Any]:
        """The job as soon as it is in one of these states."""
        return self.until(lambda: self.json("status", job), lambda found: found["state"] in states)

    def until(self, look: Callable[[], Any], done: Callable[[Any], bool]) -> Any:
        give_up = time.monotonic() + WITHIN_S
        while not done(found := look()):
            assert time.monotonic() < give_up, f"still {found}"
            time.sleep(0.05)
        return found
