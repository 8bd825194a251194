"""What jobs of this machine would run with: the Python on the PATH, and the SDK in it."""

from __future__ import annotations

import shutil
import subprocess
import sys

from batuta import __version__
from batuta.cli.checks.finding import Finding, note, ok, warning

_ASK = "import batuta, sys; sys.stdout.write(batuta.__version__)"
_WITHIN_S = 10.0


def check_sdk(python: str | None = None) -> Finding:
    """The version of `batuta.sdk` that a script would import, unless it has an environment of its own."""
    python = python or shutil.which("python3") or shutil.which("python")
    if python is None:
        return note("SDK", "no python3 is on the PATH", "jobs in Python need one")
    try:
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return warning("SDK", f"{python} does not run: {trouble}", "repair it, or its folder on the PATH")
    if done.returncode:
        return note(
            "SDK",
            f"{python} has no batuta: scripts that import batuta.sdk need it",
            f"{python} -m pip install batuta=={__version__}",
        )
    if done.stdout != __version__:
        return warning(
            "SDK",
            f"{python} has batuta {done.stdout[:40]}, this is {__version__}",
            f"{python} -m pip install batuta=={__version__}",
        )
    return ok("SDK", f"{done.stdout} in {python}" + (" (this one)" if python == sys.executable else ""))
