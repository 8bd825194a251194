"""How fast a job computes beside one that forks, fills memory or writes without end, against what it does alone.

Each measure beside a hog stands between two alone, and hogs that are stopped are submitted again at once. A job that
computes as the first one does is a neighbour with every right: what it takes, any other job may take, too. Everything
runs inside a control group that bounds it. Bar: 0.8 of the speed alone, by the median. BATUTA_ROUNDS sets how many
rounds there are. Needs root and control groups of version 1, and says how busy the machine was otherwise.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.measure import show
from tests.support.contained import FILLS, FORKS, WORKS, WRITES, Contained
from tests.support.outer_cgroup import outer_cgroup
from tests.support.server_process import PlainServers

ROUNDS = int(os.environ.get("BATUTA_ROUNDS", "5"))
HOGS = {"a neighbour that computes": WORKS, "a fork bomb": FORKS, "a memory hog": FILLS, "an I/O hog": WRITES}
BAR = 0.8
_WINDOW_S = 4.0
_COUNTS = """exec python3 -S -c '
import os
file, count = os.open("COUNTER", os.O_RDWR | os.O_CREAT, 0o600), 0
while True:
    for _ in range(20000): pass
    count += 1
    os.pwrite(file, count.to_bytes(8, "little"), 0)
'"""


def main() -> None:
    counter = Path(f"/dev/shm/batuta-hogs-{os.getpid()}")
    ratios: dict[str, list[float]] = {name: [] for name in HOGS}
    spread: list[float] = []
    before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="batuta-hogs-") as folder,
        outer_cgroup("hogs") as groups,
        PlainServers(Path(folder)) as servers,
    ):
        job = Contained(servers, Path(folder, "home"), groups, _COUNTS.replace("COUNTER", str(counter)))
        for number in range(ROUNDS):
            alone = _rate(counter)
            for name, run in HOGS.items():
                beside = _rate_beside(job, f"{number}-{name}", run, counter)
                again = _rate(counter)
                ratios[name].append(beside / ((alone + again) / 2))
                spread.append(again / alone)
                alone = again
        job.cancel(job.works)
    counter.unlink()
    show(
        f"{ROUNDS} rounds of {_WINDOW_S:.0f} s; load before {before:.1f}; alone, one to the next: "
        f"{min(spread):.2f} to {max(spread):.2f}",
        ("beside", "median", "worst", "best"),
        [
            (
                name,
                f"{median(found):.2f}{'' if median(found) >= BAR else ' !'}",
                f"{min(found):.2f}",
                f"{max(found):.2f}",
            )
            for name, found in ratios.items()
        ],
    )


def _rate(counter: Path, hold: Contained | None = None, hog: tuple[str, str] = ("", "")) -> float:
    """Return how often it goes round in a second; with a hog, that one is submitted again whenever it has ended."""
    begun_s, begun = time.monotonic(), _count(counter)
    number, alive = 0, None
    while time.monotonic() < begun_s + _WINDOW_S:
        if hold is not None:
            with hold.client as client:
                ended = alive is not None and client.job(alive.id).state in ("SUCCEEDED", "FAILED", "CANCELLED")
            if alive is None or ended:
                number += 1
                alive = hold.submit(f"{hog[0]}-{number}"[:60], hog[1])
        time.sleep(0.25)
    rate = (_count(counter) - begun) / (time.monotonic() - begun_s)
    if hold is not None and alive is not None:
        hold.cancel(alive)
        time.sleep(1.0)  # what it wrote is on its way to the disk still
    return rate


def _rate_beside(job: Contained, name: str, run: str, counter: Path) -> float:
    return _rate(counter, job, (name.replace(" ", "-").replace("/", ""), run))


def _count(counter: Path) -> int:
    return int.from_bytes(counter.read_bytes(), "little")
