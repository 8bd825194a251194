"""How the benchmarks measure and print: CPU time of this process, medians, ratios, tables."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
REPO = Path(__file__).resolve().parents[1]


class DataMissing(Exception):
    """A benchmark needs public data that is not there; the message is the one line that says so."""


def shared_data() -> Path:
    """The folder of public traces, beside the repository or where BATUTA_SHARED_DATA says."""
    named = os.environ.get("BATUTA_SHARED_DATA")
    folder = Path(named) if named else REPO.parent / "shared" / "data"
    if not folder.is_dir():
        raise DataMissing("needs the shared data: put it at ../shared/data or set BATUTA_SHARED_DATA")
    return folder


@contextmanager
def no_collection() -> Iterator[None]:
    """Collects garbage now and not within: in one of two timings it would spoil their ratio."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this process for doing it once."""
    with no_collection():
        begun = time.process_time()
        work()
        return time.process_time() - begun


def median_cpu_s(work: Callable[[], object], repeat: int = 5, least_s: float = 0.02) -> float:
    """CPU seconds for doing it once: the median of several measurements, each of at least `least_s`.

    The first run is not measured: it fills caches that every later cycle finds filled.
    """
    work()
    once = cpu_s(work)
    inner = max(1, int(least_s / max(once, 1e-7)))

    def several() -> None:
        for _ in range(inner):
            work()

    return statistics.median(cpu_s(several) / inner for _ in range(repeat))


def in_turns_cpu_s(works: Sequence[Callable[[], object]], repeat: int = 5, least_s: float = 0.05) -> list[list[float]]:
    """CPU seconds of each, measured in turns, so that a slow moment of the machine hits all alike.

    Row k holds the measurements of work k; each lasts at least `least_s`, by doing the work several times.
    """
    inner = []
    for work in works:
        work()
        inner.append(max(1, int(least_s / max(cpu_s(work), 1e-7))))
    found: list[list[float]] = [[] for _ in works]
    for _ in range(repeat):
        for own, work, count in zip(found, works, inner, strict=True):
            with no_collection():
                begun = time.process_time()
                for _ in range(count):
                    work()
                own.append((time.process_time() - begun) / count)
    return found


def ratio_of(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios of neighbouring measurements."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()) -> None:
    """Prints a table: the first column to the left, the others to the right."""
    cells = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        print(
            "  "
            + "  ".join(
                f"{c:<{w}}" if k == 0 else f"{c:>{w}}" for k, (c, w) in enumerate(zip(row, widths, strict=True))
            )
        )
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    for note in notes:
        print(f"  {note}")
    sys.stdout.flush()


def _text(cell: object) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def times(ratio: float, bar: float | None = None, at_least: bool = False) -> str:
    """A ratio as people read it, marked where it misses its bar."""
    text = f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.1f}×" if ratio < 100 else f"{ratio:,.0f}×"
    if bar is None:
        return text
    met = ratio >= bar if at_least else ratio <= bar
    return text if met else f"{text} !"
