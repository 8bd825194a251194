"""Reading a long log from a Loki page by page: in order, each line once, whatever a page cuts in two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from batuta.client.loki import Direction, Line, Loki

PAGE_LINES: Final = 2_000
"""Well below what a Loki gives at most (5,000, unless it was told otherwise)."""
WINDOW_NS: Final = 7 * 86_400 * 10**9
"""A Loki refuses a question about a month and more."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for: lines of a query, from a time up to and without another."""

    query: str
    from_ns: int
    to_ns: int


def lines(
    loki: Loki,
    asked: Question,
    *,
    newest_first: bool = False,
    page_lines: int = PAGE_LINES,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Line]:
    """Every line once, by time. `note` is told if lines cannot be had."""
    for from_ns, to_ns in _windows(asked, newest_first=newest_first):
        window = Question(asked.query, from_ns, to_ns)
        if newest_first:
            yield from _in_window(loki, window, "backward", page_lines, note)
        else:
            yield from _in_window(loki, window, "forward", page_lines, note)


def _windows(asked: Question, *, newest_first: bool) -> Iterator[tuple[int, int]]:
    starts = range(asked.from_ns, asked.to_ns, WINDOW_NS)
    for from_ns in reversed(starts) if newest_first else starts:
        yield from_ns, min(from_ns + WINDOW_NS, asked.to_ns)


def _in_window(
    loki: Loki, asked: Question, direction: Direction, page_lines: int, note: Callable[[str], None]
) -> Iterator[Line]:
    from_ns, to_ns = asked.from_ns, asked.to_ns
    had: Counter[Line] = Counter()  # lines of the time at which the last page ended
    while from_ns < to_ns:
        page = loki.page(asked.query, from_ns, to_ns, limit=page_lines, direction=direction)
        for line in page:
            if had[line]:
                had[line] -= 1
            else:
                yield line
        if len(page) < page_lines:
            return
        # The page may have ended amid the lines of one time, so the next one begins with all of that time.
        last_ns = page[-1].time_ns
        had = Counter(line for line in page if line.time_ns == last_ns)
        if page[0].time_ns == last_ns:
            note(f"more than {page_lines:,} lines have one time: some of them may be left out")
            had.clear()
            last_ns += 1 if direction == "forward" else -1
        if direction == "forward":
            from_ns = last_ns
        else:
            to_ns = last_ns + 1
