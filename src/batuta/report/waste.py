"""Where the GPU time went: used, lost, idle; by queue and by day. What `batuta report` tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

DAY_S = 86_400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Spent:
    """What jobs did with GPU time, in GPU-seconds; `waiting` is what they asked for and did not have."""

    used_gpu_s: float = 0.0
    """Held by jobs that made progress, and kept it."""
    restarting_gpu_s: float = 0.0
    """Held by jobs that were starting, being resized, or had lost a part of their GPUs."""
    lost_gpu_s: float = 0.0
    """Held by jobs that made progress, which was lost with what came after the last checkpoint."""
    waiting_gpu_s: float = 0.0

    @property
    def held_gpu_s(self) -> float:
        return self.used_gpu_s + self.restarting_gpu_s + self.lost_gpu_s

    def add(self, other: Spent) -> None:
        for one in fields(Spent):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class Left:
    """What became of GPU time that no job held, in GPU-seconds, and of how much there was in all."""

    capacity_gpu_s: float = 0.0
    """GPUs of all nodes that were there."""
    idle_gpu_s: float = 0.0
    """Free, and nobody waited who could have used it, or it was about to be given."""
    fragmented_gpu_s: float = 0.0
    """Free, and of no use to the smallest job that waited for such GPUs: too few of them in one place."""
    unavailable_gpu_s: float = 0.0
    """Ill, cordoned, or used by others."""

    @property
    def free_gpu_s(self) -> float:
        return self.idle_gpu_s + self.fragmented_gpu_s + self.unavailable_gpu_s

    def add(self, other: Left) -> None:
        for one in fields(Left):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True, slots=True)
class Day:
    """One day, UTC."""

    day: str
    left: Left
    spent: Spent
    queues: Mapping[str, Spent]


@dataclass(frozen=True, slots=True)
class Waste:
    """The whole account: on every day, what jobs held and what was left are the capacity."""

    from_s: float
    to_s: float
    days: tuple[Day, ...]
    notes: tuple[str, ...] = ()
    """What people should know of it."""

    def left(self) -> Left:
        total = Left()
        for day in self.days:
            total.add(day.left)
        return total

    def spent(self) -> Spent:
        return _sum(day.spent for day in self.days)

    def queues(self) -> dict[str, Spent]:
        """By queue, over all days."""
        found: dict[str, Spent] = {}
        for day in self.days:
            for queue, spent in day.queues.items():
                found.setdefault(queue, Spent()).add(spent)
        return dict(sorted(found.items()))

    def plain(self) -> dict[str, Any]:
        """As it is written in JSON."""
        return {
            "from_s": self.from_s,
            "to_s": self.to_s,
            "total": _plain(self.left(), self.spent()),
            "queues": [{"queue": queue, **_plain(spent)} for queue, spent in self.queues().items()],
            "days": [
                {
                    "day": day.day,
                    **_plain(day.left, day.spent),
                    "queues": [{"queue": queue, **_plain(spent)} for queue, spent in day.queues.items()],
                }
                for day in self.days
            ],
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Account:
    """Collects amounts by day and queue, as long as they lie within a span of time."""

    from_s: float
    to_s: float
    _left: dict[int, Left] = field(default_factory=dict)
    _spent: dict[tuple[int, str], Spent] = field(default_factory=dict)

    def spend(self, queue: str, what: str, from_s: float, to_s: float, gpus: float) -> None:
        """Books GPUs of a queue's job, from one time to another, under a field of `Spent`."""
        for day, seconds in self._parts(from_s, to_s):
            own = self._spent.setdefault((day, queue), Spent())
            setattr(own, what, getattr(own, what) + gpus * seconds)

    def leave(self, from_s: float, to_s: float, gpus: Left) -> None:
        """Books what no job held; `gpus` has numbers of GPUs in place of GPU-seconds."""
        for day, seconds in self._parts(from_s, to_s):
            own = self._left.setdefault(day, Left())
            own.capacity_gpu_s += gpus.capacity_gpu_s * seconds
            own.idle_gpu_s += gpus.idle_gpu_s * seconds
            own.fragmented_gpu_s += gpus.fragmented_gpu_s * seconds
            own.unavailable_gpu_s += gpus.unavailable_gpu_s * seconds

    def close(self, notes: tuple[str, ...] = ()) -> Waste:
        days = sorted({*self._left, *(day for day, _ in self._spent)})
        return Waste(self.from_s, self.to_s, tuple(self._day(day) for day in days), notes)

    def _day(self, number: int) -> Day:
        queues = {queue: own for (day, queue), own in sorted(self._spent.items()) if day == number}
        return Day(
            f"{_EPOCH + timedelta(days=number):%Y-%m-%d}",
            self._left.get(number, Left()),
            _sum(queues.values()),
            queues,
        )

    def _parts(self, from_s: float, to_s: float) -> Iterable[tuple[int, float]]:
        """Days and the seconds that a stretch has of each, within the span."""
        at_s, end_s = max(from_s, self.from_s), min(to_s, self.to_s)
        while at_s < end_s:
            day = int(at_s // DAY_S)
            until_s = min(end_s, (day + 1) * DAY_S)
            yield day, until_s - at_s
            at_s = until_s


def _sum(parts: Iterable[Spent]) -> Spent:
    total = Spent()
    for part in parts:
        total.add(part)
    return total


def _plain(*parts: Left | Spent) -> dict[str, float]:
    return {one.name: getattr(part, one.name) for part in parts for one in fields(part)}
