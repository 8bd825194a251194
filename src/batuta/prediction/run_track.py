"""The reports of one run, by the clock of one rank, cut into windows."""

from __future__ import annotations

import math
from enum import Enum, auto

from batuta.prediction.sample import Sample
from batuta.prediction.size_record import SHORTEST_WINDOW_S, SizeRecord, Window

WARMUP_S = 30.0
"""After its first report a run is warming up for so long; a window ten times as long hardly feels it."""
SKEW_S = 2.0
"""A clock that goes back by less is only jitter."""
SILENT_S = 60.0
"""After so long without the rank that is followed, another that has got further takes its place."""


class Seen(Enum):
    """What a report meant."""

    NOTHING = auto()
    FIRST = auto()
    SECOND = auto()
    """Now it is known how much lies between two reports."""
    MOVED = auto()
    FELL_BACK = auto()
    """The script started again by itself, from an older checkpoint."""


class RunTrack:
    """Follows one run at one size. All ranks do the same steps: one is enough, and has one clock."""

    __slots__ = (
        "_doubt",
        "_first_s",
        "_first_units",
        "_open",
        "_open_s",
        "_open_units",
        "_record",
        "began_s",
        "due_s",
        "gap_s",
        "gap_units",
        "has_reported",
        "last_s",
        "lost_units",
        "rank",
        "units",
    )

    def __init__(self, began_s: float, record: SizeRecord) -> None:
        self.began_s = began_s
        self.rank: int | None = None
        self.has_reported = False
        self.units = 0.0
        """How far it is; reached at `last_s`."""
        self.last_s = math.inf
        self.due_s = -math.inf
        """A report before that only moves the open window's end; the caller may take this short way."""
        self.gap_units = 0.0
        self.gap_s = 0.0
        self.lost_units = 0.0
        """How much has to be done again because of the last fall."""
        self._record = record
        self._first_s = 0.0
        self._first_units = 0.0
        self._open: Sample | None = None
        self._open_s = 0.0
        self._open_units = 0.0
        self._doubt: tuple[Sample, float, float] | None = None
        """A report with a smaller count, that count, and how far the run was then."""

    @property
    def first_s(self) -> float:
        return self._first_s

    @property
    def first_units(self) -> float:
        return self._first_units

    def see(self, sample: Sample, units: float) -> Seen:
        """Takes one report in; `units` is its count."""
        time_s = sample.time_s
        if not self.has_reported:
            self.has_reported, self.rank = True, sample.rank
            self._begin(sample, units)
            return Seen.FIRST
        if sample.rank != self.rank:
            if units <= self.units or time_s - self.last_s < SILENT_S:
                return Seen.NOTHING
            self.rank = sample.rank
        if units > self.units:
            return self._advance(sample, units)
        if units < self.units and time_s > self.last_s:
            return self._doubt_or_fall(sample, units)
        return Seen.NOTHING

    def _begin(self, sample: Sample, units: float) -> None:
        self._first_s, self._first_units = sample.time_s, units
        self.gap_units = self.gap_s = 0.0
        self._anchor(sample, sample.time_s, units)
        self.due_s = -math.inf

    def _anchor(self, sample: Sample, time_s: float, units: float) -> None:
        """Opens a window here."""
        self._open, self._open_s, self._open_units = sample, time_s, units
        self.last_s, self.units = time_s, units
        length_s = SHORTEST_WINDOW_S if self._is_warming_up() else self._record.window_s
        self.due_s = self._open_s + length_s

    def _is_warming_up(self) -> bool:
        return self._open_s < self._first_s + WARMUP_S

    def _advance(self, sample: Sample, units: float) -> Seen:
        if sample.time_s < self.last_s - SKEW_S:
            # The clock was set back, and how long it really took nobody knows.
            if self.gap_units:
                self._first_s += sample.time_s - self.last_s
                self._anchor(sample, sample.time_s, units)
            else:
                self._begin(sample, units)
            return Seen.MOVED
        self.last_s, self.units = max(self.last_s, sample.time_s), units
        is_second = not self.gap_units
        if is_second:
            self.gap_units, self.gap_s = units - self._first_units, self.last_s - self._first_s
            self.due_s = self._open_s + SHORTEST_WINDOW_S
        if self.last_s >= self.due_s:
            self._close(sample)
        return Seen.SECOND if is_second else Seen.MOVED

    def _close(self, sample: Sample) -> None:
        start = self._open
        assert start is not None
        seconds = self.last_s - self._open_s
        self._record.add(
            Window(
                seconds,
                self.units - self._open_units,
                _difference(start.step, sample.step),
                _difference(start.samples, sample.samples),
                _difference(start.epoch, sample.epoch),
                self._is_warming_up() and seconds < 10 * WARMUP_S,
            )
        )
        self._anchor(sample, self.last_s, self.units)

    def _doubt_or_fall(self, sample: Sample, units: float) -> Seen:
        """One smaller count may be a line that came late; a second that goes on from it is a new start."""
        doubt = self._doubt
        if doubt is None or doubt[2] != self.units or units < doubt[1]:
            self._doubt = sample, units, self.units
            return Seen.NOTHING
        start, start_units, before = doubt
        if units == start_units or sample.time_s <= start.time_s:
            return Seen.NOTHING
        self._doubt = None
        self._begin(start, start_units)
        self._advance(sample, units)
        self.lost_units = before - start_units + self.gap_units
        return Seen.FELL_BACK


def _difference(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
