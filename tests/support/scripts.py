"""Scripts as Batuta runs them, and what they leave behind."""

import os
import subprocess
import sys
from pathlib import Path

from batuta.spec.problem import read_text
from batuta.spec.progress import ProgressReport, parse_line
from batuta.spec.task import Task, parse_task
from batuta.spec.task_env import Overrides

_NO_OVERRIDES = Overrides()


def reports_of(path: Path) -> tuple[ProgressReport, ...]:
    """The reports of a file in which every line is one, and is complete."""
    *lines, rest = path.read_bytes().split(b"\n")
    reports = tuple(report for line in lines if (report := parse_line(line)) is not None)
    assert (len(reports), rest) == (len(lines), b"")
    return reports


def read_task(path: Path, overrides: Overrides = _NO_OVERRIDES) -> Task:
    return parse_task(read_text(path), str(path), overrides)


def run_script(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=inherited | env, capture_output=True, text=True, timeout=60, check=False)


def ask(control: Path, number: object) -> None:
    """What a backend does."""
    (control / "draft").write_text(f"{number}\n")
    (control / "draft").rename(control / "checkpoint-request")
