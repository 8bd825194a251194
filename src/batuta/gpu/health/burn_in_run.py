"""A burn-in in a process of its own: begun, looked at, ended. It never makes anybody wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

WITHIN_S: Final = 900
_LATE_S: Final = 30.0
"""After its own limit it is killed: a driver that hangs lets no signal through to its program."""
_LONGEST: Final = 500


class BurnInRun:
    """One run of `batuta.gpu.health.burn_in`."""

    def __init__(
        self, gpus: Sequence[str], env: Mapping[str, str], seconds: float, within_s: int = WITHIN_S
    ) -> None:
        words = [word for gpu in gpus for word in ("--gpu", gpu)]
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._give_up_s = time.monotonic() + within_s + _LATE_S
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "batuta.gpu.health.burn_in", *words),
                *("--seconds", f"{seconds:g}", "--within", str(within_s)),
            ],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def poll(self) -> tuple[bool, str] | None:
        """Whether it passed, and what it has to say; None while it runs."""
        code = self._process.poll()
        if code is None:
            if time.monotonic() < self._give_up_s:
                return None
            self.close()
            return False, "it hangs: it could not even be ended in time"
        self._out.seek(0)
        text = self._out.read().decode(errors="replace").strip()
        self._out.close()
        try:
            told = json.loads(text.splitlines()[-1])
            return bool(told["passed"]) and code == 0, str(told["detail"])[:_LONGEST]
        except (IndexError, ValueError, KeyError, TypeError):
            last = text.splitlines()[-1][:_LONGEST] if text else "it said nothing"
            return False, f"it ended with code {code}: {last}"

    def close(self) -> None:
        """Ends it, if it runs."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        self._out.close()
