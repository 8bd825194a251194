"""Scripts as Batuta runs them, and what they leave behind."""

import os
import subprocess
import sys
from pathlib import Path

from batuta.spec.progress import ProgressReport, parse_progress


def reports_of(path: Path) -> tuple[ProgressReport, ...]:
    read = parse_progress(path.read_bytes())
    assert (read.garbage, read.consumed) == (0, path.stat().st_size)
    return read.reports


def run_script(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=inherited | env, capture_output=True, text=True, timeout=60, check=False)


def ask(control: Path, number: object) -> None:
    """What a backend does."""
    (control / "draft").write_text(f"{number}\n")
    (control / "draft").rename(control / "checkpoint-request")
