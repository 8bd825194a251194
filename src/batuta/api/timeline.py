"""How many GPUs each job had when: a bounded record of the journal, for a Gantt chart."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batuta.api.event_text import type_of
from batuta.api.picture import Picture
from batuta.core.job_table import JobTable

MOST_JOBS = 20_000
MOST_CHANGES = 2_000
"""Of one job; older ones are forgotten."""
_LAST_START, _LAST_RESIZE = JobTable.F["last_start_s"], JobTable.F["last_resize_s"]


@dataclass(slots=True)
class _Track:
    """One job. A change is a time and the GPUs from then on."""

    name: str
    changes: list[tuple[float, int]] = field(default_factory=list)
    held: list[tuple[str, int]] = field(default_factory=list)
    """GPUs by node and number, to know what a lost node takes away."""

    def hold(self, time_s: float, held: list[tuple[str, int]]) -> None:
        if len(held) != (self.changes[-1][1] if self.changes else 0):
            self.changes.append((time_s, len(held)))
            del self.changes[:-MOST_CHANGES]
        self.held = held


class TimelineRecord:
    """Fed with events in their order; one thread at a time."""

    def __init__(self) -> None:
        self._tracks: OrderedDict[str, _Track] = OrderedDict()
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "JobSubmitted": self._submitted,
            "Planned": self._planned,
            "JobFound": self._found,
            "JobInterrupted": self._released,
            "JobEnded": self._released,
            "NodeChanged": self._changed,
            "NodeLost": self._lost,
            "GpuFailed": self._lost,
        }

    def feed(self, text: str) -> None:
        """Takes in an event, as stored or as told."""
        handler = self._handlers.get(type_of(text))
        if handler is not None:
            handler(json.loads(text))

    def _track(self, job: str, name: str = "") -> _Track:
        track = self._tracks.get(job)
        if track is None:
            track = self._tracks[job] = _Track(name)
            while len(self._tracks) > MOST_JOBS:
                self._tracks.popitem(last=False)
        return track

    def _submitted(self, event: dict[str, Any]) -> None:
        job = event["job"]
        self._track(job["id"], job["name"]).name = job["name"]

    def _planned(self, event: dict[str, Any]) -> None:
        for command in event["plan"]["commands"] if "plan" in event else event["commands"]:
            held = []
            for span in _spans(command.get("placement") or []):
                held += [(span[0], gpu) for gpu in span[1]]
            self._track(command["job"]).hold(event["time_s"], held)

    def _found(self, event: dict[str, Any]) -> None:
        held = [(node, gpu) for node, gpus in _spans(event["placement"]) for gpu in gpus]
        self._track(event["job"]).hold(event["time_s"], held)

    def _released(self, event: dict[str, Any]) -> None:
        self._track(event["job"]).hold(event["time_s"], [])

    def _lost(self, event: dict[str, Any]) -> None:
        node, gpu = event["node"], event.get("gpu")
        self._drop(event["time_s"], lambda own: own[0] == node and gpu in (None, own[1]))

    def _changed(self, event: dict[str, Any]) -> None:
        """A node that has fewer GPUs than before takes the others away."""
        node, gpus = event["node"]["name"], event["node"]["gpus"]
        self._drop(event["time_s"], lambda own: own[0] == node and own[1] >= gpus)

    def _drop(self, time_s: float, is_gone: Callable[[tuple[str, int]], bool]) -> None:
        for track in self._tracks.values():
            left = [own for own in track.held if not is_gone(own)]
            if len(left) < len(track.held):
                track.hold(time_s, left)

    def show(self, picture: Picture, since_s: float, now_s: float, limit: int) -> list[dict[str, Any]]:
        """Jobs that had GPUs since a time, the first to start first; the newest when there are too many."""
        found = []
        for job, track in reversed(list(self._tracks.items())):
            segments = _segments(track.changes, since_s, now_s)
            if segments:
                found.append({"id": job, "name": self._name(picture, job, track), "segments": segments})
            if len(found) == limit:
                break
        found += self._unseen(picture, since_s, now_s)[: limit - len(found)]
        return sorted(found, key=lambda shown: shown["segments"][0]["from_s"])

    def _unseen(self, picture: Picture, since_s: float, now_s: float) -> list[dict[str, Any]]:
        """Jobs that have had their GPUs since before the record begins."""
        found = []
        for row, (job, placement) in enumerate(zip(picture.jobs, picture.placements, strict=True)):
            track = self._tracks.get(job.id)
            if placement is None or (track is not None and track.changes):
                continue
            begun = [s for s in picture.floats[(_LAST_START, _LAST_RESIZE), row].tolist() if s == s]  # noqa: PLR0124
            segments = _segments([(max(begun, default=job.submit_s), placement.size)], since_s, now_s)
            if segments:
                found.append({"id": job.id, "name": job.name, "segments": segments})
        return found

    @staticmethod
    def _name(picture: Picture, job: str, track: _Track) -> str:
        if track.name:
            return track.name
        row, past = picture.rows.get(job), picture.past_by_id.get(job)
        if row is not None:
            return picture.jobs[row].name
        return job if past is None else past.job.name


def _spans(placement: list[Any]) -> list[tuple[str, list[int]]]:
    """Of a placement as it is stored (`[[[node, gpus], …]]`), or as it is told."""
    if placement and isinstance(placement[0], dict):
        return [(span["node"], span["gpus"]) for span in placement]
    return [(node, gpus) for node, gpus in placement[0]] if placement else []


def _segments(changes: list[tuple[float, int]], since_s: float, now_s: float) -> list[dict[str, Any]]:
    ends = [time_s for time_s, _ in changes[1:]] + [now_s]
    return (
        [
            {"from_s": max(begin_s, since_s), "to_s": end_s, "gpus": gpus}
            for (begin_s, gpus), end_s in zip(changes, ends, strict=True)
            if gpus and end_s > since_s and end_s > begin_s
        ]
        if changes
        else []
    )
