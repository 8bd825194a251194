"""Runs one function of the benchmarks in a process of its own, to measure its memory and CPU time cleanly."""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import REPO


@dataclass(frozen=True, slots=True)
class Outcome:
    answer: Any
    cpu_s: float
    """User and system time of the whole process, imports included."""
    peak_mib: float


def in_child(function: str, *arguments: object) -> Outcome:
    """Calls `module.function` with arguments that JSON can carry; its answer comes back the same way."""
    command = [sys.executable, "-m", "benchmarks.child", function, json.dumps(arguments)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{function} failed:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Outcome(found["answer"], found["cpu_s"], found["peak_mib"])


def main(function: str, arguments: str) -> None:
    module, _, name = function.rpartition(".")
    answer = getattr(importlib.import_module(f"benchmarks.{module}"), name)(*json.loads(arguments))
    used = resource.getrusage(resource.RUSAGE_SELF)
    kib = used.ru_maxrss / 1024 if sys.platform == "darwin" else used.ru_maxrss
    found = {"answer": answer, "cpu_s": used.ru_utime + used.ru_stime, "peak_mib": kib / 1024}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
