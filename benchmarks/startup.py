"""CPU time of `batuta --help` in a fresh process, against a bare Python.

User and system time of the child, modules already compiled. Bar: less than 0.3 s.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import show, times

BAR_S = 0.3
REPEAT = 7
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import typer'": [sys.executable, "-c", "import typer"],
    "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
    "batuta --help": [str(Path(sys.executable).with_name("batuta")), "--help"],
    "batuta policies": [str(Path(sys.executable).with_name("batuta")), "policies"],
}


def child_cpu_s(command: list[str]) -> float:
    """User and system seconds of one run; its output is of no interest."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    spent: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        child_cpu_s(command)
    for _ in range(REPEAT):
        # In turns, so that a slow moment of the machine hits all alike.
        for name, command in COMMANDS.items():
            spent[name].append(child_cpu_s(command))
    median = {name: statistics.median(values) for name, values in spent.items()}
    bare_s = median["python -c pass"]
    rows = [
        (
            name,
            f"{cpu_s * 1e3:.0f}{' !' if name == 'batuta --help' and cpu_s >= BAR_S else ''}",
            times(cpu_s / bare_s),
        )
        for name, cpu_s in median.items()
    ]
    show(f"CPU time of a fresh process, median of {REPEAT}", ("command", "CPU (ms)", "to bare Python"), rows)


if __name__ == "__main__":
    main()
