"""GPUs of each job over time and their utilisation: a bounded record of the journal, for charts."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batuta.api.event_text import type_of
from batuta.api.snapshot import WorldSnapshot

MAX_JOBS = 20_000
MAX_CHANGES = 2_000  # of one job; older ones are forgotten
MAX_POINTS = 1_000  # of the use of one job's GPUs; when there are more, every second one is forgotten


@dataclass(slots=True)
class _Track:
    """One job. A change is a time and the GPUs from then on."""

    name: str
    changes: list[tuple[float, int]] = field(default_factory=list)
    held: list[tuple[str, int]] = field(default_factory=list)
    """GPUs by node and number, to know what a lost node takes away."""
    use: list[tuple[float, float, int]] = field(default_factory=list)
    """A time, how busy its GPUs were, and how many were measured."""

    def hold(self, time_s: float, held: list[tuple[str, int]]) -> None:
        if len(held) != (self.changes[-1][1] if self.changes else 0):
            self.changes.append((time_s, len(held)))
            del self.changes[:-MAX_CHANGES]
        self.held = held

    def measure(self, time_s: float, busy: float, gpus: int) -> None:
        if self.use and self.use[-1][0] >= time_s:
            # One measurement reports one node after the other.
            self.use[-1] = (self.use[-1][0], busy, gpus)
            return
        self.use.append((time_s, busy, gpus))
        if len(self.use) > MAX_POINTS:
            del self.use[-2:0:-2]


class GpuTimeline:
    """Takes events in their order; one thread at a time."""

    def __init__(self) -> None:
        self._tracks: OrderedDict[str, _Track] = OrderedDict()
        self._busy: dict[str, list[float | None]] = {}  # by node: the last utilisation of its GPUs
        self._on: dict[str, set[str]] = {}  # by node: the jobs that hold GPUs of it
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "JobSubmitted": self._submitted,
            "Planned": self._planned,
            "JobFound": self._found,
            "JobInterrupted": self._released,
            "JobEnded": self._released,
            "NodeChanged": self._changed,
            "NodeLost": self._lost,
            "GpuFailed": self._lost,
            "GpusUsed": self._used,
        }

    def feed(self, text: str) -> None:
        """Record an event, as stored or as published."""
        handler = self._handlers.get(type_of(text))
        if handler is not None:
            handler(json.loads(text))

    def _track(self, job: str, name: str = "") -> _Track:
        track = self._tracks.get(job)
        if track is None:
            track = self._tracks[job] = _Track(name)
            while len(self._tracks) > MAX_JOBS:
                old, gone = self._tracks.popitem(last=False)
                for node, _ in gone.held:
                    self._on[node].discard(old)
        return track

    def _hold(self, job: str, time_s: float, held: list[tuple[str, int]]) -> None:
        track = self._track(job)
        for node in {node for node, _ in track.held}:
            self._on[node].discard(job)
        for node in {node for node, _ in held}:
            self._on.setdefault(node, set()).add(job)
        track.hold(time_s, held)

    def _submitted(self, event: dict[str, Any]) -> None:
        job = event["job"]
        self._track(job["id"], job["name"]).name = job["name"]

    def _planned(self, event: dict[str, Any]) -> None:
        for command in event["plan"]["commands"] if "plan" in event else event["commands"]:
            self._hold(command["job"], event["time_s"], _gpus_of(command.get("placement") or []))

    def _found(self, event: dict[str, Any]) -> None:
        self._hold(event["job"], event["time_s"], _gpus_of(event["placement"]))

    def _released(self, event: dict[str, Any]) -> None:
        self._hold(event["job"], event["time_s"], [])

    def _lost(self, event: dict[str, Any]) -> None:
        node, gpu = event["node"], event.get("gpu")
        self._drop(event["time_s"], lambda own: own[0] == node and gpu in (None, own[1]))

    def _changed(self, event: dict[str, Any]) -> None:
        """Release the GPUs that a node no longer has."""
        node, gpus = event["node"]["name"], event["node"]["gpus"]
        self._drop(event["time_s"], lambda own: own[0] == node and own[1] >= gpus)

    def _used(self, event: dict[str, Any]) -> None:
        node, own = event["node"], dict(event.get("jobs") or ())
        self._busy[node] = event["gpus"]
        for job in self._on.get(node, ()):
            track = self._tracks[job]
            if job in own:
                track.measure(event["time_s"], own[job], 1)
            elif known := [busy for name, gpu in track.held if (busy := self._of(name, gpu)) is not None]:
                track.measure(event["time_s"], round(sum(known) / len(known), 4), len(known))

    def _of(self, node: str, gpu: int) -> float | None:
        busy = self._busy.get(node, ())
        return busy[gpu] if gpu < len(busy) else None

    def _drop(self, time_s: float, is_gone: Callable[[tuple[str, int]], bool]) -> None:
        for job, track in self._tracks.items():
            left = [own for own in track.held if not is_gone(own)]
            if len(left) < len(track.held):
                self._hold(job, time_s, left)

    def use(self, job: str) -> list[dict[str, Any]]:
        """Return the utilisation of a job's GPUs over time; empty where it is not measured."""
        track = self._tracks.get(job)
        points = [] if track is None else track.use
        return [{"time_s": time_s, "busy": busy, "gpus": gpus} for time_s, busy, gpus in points]

    def show(self, snapshot: WorldSnapshot, since_s: float, now_s: float, limit: int) -> list[dict[str, Any]]:
        """Return the jobs that had GPUs since a time, by start; the newest when there are too many."""
        found = []
        for job, track in reversed(list(self._tracks.items())):
            segments = _segments(track.changes, since_s, now_s)
            if segments:
                found.append({"id": job, "name": self._name(snapshot, job, track), "segments": segments})
            if len(found) == limit:
                break
        found += self._unseen(snapshot, since_s, now_s)[: limit - len(found)]
        return sorted(found, key=lambda shown: shown["segments"][0]["from_s"])

    def _unseen(self, snapshot: WorldSnapshot, since_s: float, now_s: float) -> list[dict[str, Any]]:
        """Return the jobs that have had their GPUs since before the record begins."""
        found = []
        for row, (job, placement) in enumerate(zip(snapshot.jobs, snapshot.placements, strict=True)):
            track = self._tracks.get(job.id)
            if placement is None or (track is not None and track.changes):
                continue
            begun_s = snapshot.columns.run_start_s(row)
            segments = _segments([(job.submit_s if begun_s is None else begun_s, placement.size)], since_s, now_s)
            if segments:
                found.append({"id": job.id, "name": job.name, "segments": segments})
        return found

    @staticmethod
    def _name(snapshot: WorldSnapshot, job: str, track: _Track) -> str:
        if track.name:
            return track.name
        row, past = snapshot.row_of(job), snapshot.past_by_id.get(job)
        if row is not None:
            return snapshot.jobs[row].name
        return job if past is None else past.job.name


def _gpus_of(placement: list[Any]) -> list[tuple[str, int]]:
    """Return the GPUs of a placement as stored (`[[[node, gpus], …]]`) or as published."""
    spans = placement[0] if placement else []
    if isinstance(spans, dict):
        spans = [(span["node"], span["gpus"]) for span in placement]
    return [(node, gpu) for node, gpus in spans for gpu in gpus]


def _segments(changes: list[tuple[float, int]], since_s: float, now_s: float) -> list[dict[str, Any]]:
    ends = [time_s for time_s, _ in (*changes[1:], (now_s, 0))][: len(changes)]
    return [
        {"from_s": max(begin_s, since_s), "to_s": end_s, "gpus": gpus}
        for (begin_s, gpus), end_s in zip(changes, ends, strict=True)
        if gpus and end_s > since_s and end_s > begin_s
    ]
