"""What happened to a job, in sentences, from the journal."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from batuta.api.event_text import shown_plan, type_of
from batuta.api.held_up_text import told_held_up
from batuta.api.trials import tell_measured
from batuta.core.held_up import CAUSE
from batuta.store.journal_reader import JournalReader

LONGEST = 500
_PAGE = 1_000
_MOST_PAGES = 200
_REMEMBERED = 256


@dataclass(slots=True)
class _Story:
    seq: int = 0
    sentences: list[dict[str, Any]] = field(default_factory=list)


class Stories:
    """Remembers what it has read: the past does not change, so only what is new is read again."""

    def __init__(self, journal: JournalReader) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Story] = OrderedDict()

    def of(self, job: str) -> list[dict[str, Any]]:
        """The last sentences about a job, the oldest first."""
        with self._lock:
            story = self._known.pop(job, None) or _Story()
            self._known[job] = story
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            for _ in range(_MOST_PAGES):
                page = self._journal.texts_of_job(job, story.seq, _PAGE)
                for text in page:
                    story.sentences += sentences_of(text.json, job)
                    story.seq = text.seq
                del story.sentences[:-LONGEST]
                if len(page) < _PAGE:
                    break
            return list(story.sentences)


def sentences_of(text: str, job: str) -> Iterator[dict[str, Any]]:
    """What one event says about a job; progress is no story."""
    kind = type_of(text)
    if kind == "JobProgressed":
        return
    event = json.loads(text)
    if kind == "Planned":
        plan = shown_plan(event)
        for command in plan["commands"]:
            if command["job"] == job:
                yield {"time_s": event["time_s"], "sentence": _command(command)}
        if job in plan["found_idle"]:
            yield {"time_s": event["time_s"], "sentence": "holds GPUs and does not use them"}
    elif kind in _TELLERS and (sentence := _TELLERS[kind](event)):
        yield {"time_s": event["time_s"], "sentence": sentence}


def _command(command: dict[str, Any]) -> str:
    places = _places([(span["node"], span["gpus"]) for span in command["placement"]])
    return f"{command['sentence']}, on {places}" if places else command["sentence"]


def _places(spans: list[tuple[str, list[int]]]) -> str:
    more = ", …" if len(spans) > 8 else ""
    return ", ".join(f"{node}:{_listed(gpus)}" for node, gpus in spans[:8]) + more


def _listed(gpus: list[int]) -> str:
    return "+".join(map(str, gpus))


def _submitted(event: dict[str, Any]) -> str:
    job = event["job"]
    span = "" if job["min"] == job["max"] else f", {job['min']} to {job['max']} will do"
    by = f" by {job['user']}" if job["user"] else ""
    return f"is submitted{by} to queue {job['queue']} and asks for {_gpus(job['size'])}{span}"


def _gpus(count: int) -> str:
    return f"{count} GPUs" if count != 1 else "1 GPU"


def _interrupted(event: dict[str, Any]) -> str:
    wait_s = event.get("not_before_s", 0.0) - event["time_s"]
    told = "(restart " in event.get("detail", "")
    later = f"; it is not tried again for {wait_s:.0f} s" if wait_s > 0 and not told else ""
    return f"stops before it is done{_how(event)}{later}"


def _found(event: dict[str, Any]) -> str:
    spans = event["placement"][0]
    if not spans:
        return f"is found without GPUs{_how(event)}"
    wait_s = event.get("not_before_s", 0.0) - event["time_s"]
    later = f"; it is not resized for {wait_s:.0f} s" if wait_s > 0 else ""
    does = "runs" if event.get("running", True) else "has its place"
    return f"{does} on {_places(spans)}, as was found{_how(event)}{later}"


def _ended(event: dict[str, Any]) -> str:
    return f"is over: {event['state']}{_how(event)}"


def _how(event: dict[str, Any]) -> str:
    code = event.get("exit_code")
    detail = event.get("detail") or ""
    facts = [f"exit code {code}"] if code is not None and f"exited with code {code}" not in detail else []
    facts += [detail] if detail else []
    return f" ({'; '.join(facts)})" if facts else ""


def _changed(event: dict[str, Any]) -> str:
    job = event["job"]
    span = "" if job["min"] == job["max"] else f" ({job['min']} to {job['max']})"
    by = "after its trial runs" if event["cause"] == "trial" else "by its user"
    return f"is changed {by}: {_gpus(job['size'])}{span}, priority {job['priority']}, queue {job['queue']}"


def _timed(event: dict[str, Any]) -> str:
    names = (("checkpoint_s", "checkpoint"), ("stop_s", "stop"), ("start_s", "start"))
    steps = [f"{name} {event[key]:.1f} s" for key, name in names if event.get(key) is not None]
    return f"the change took: {', '.join(steps)}" if steps else ""


_WISHED = {
    "RUN": "its user wants it to run",
    "PARK": "its user parks it",
    "CANCEL": "its user cancels it",
    "EVICT": "has to leave its GPUs, for a node is drained",
}


def _wished(event: dict[str, Any]) -> str:
    if event["cause"] == CAUSE:
        return "leaves its GPUs for others, because of what holds it up"
    if event["cause"] == "trial":
        return (
            "is queued, with what its trial runs showed"
            if event["wish"] == "RUN"
            else "is measured and ended"
        )
    if event["cause"] == "health":
        return "has to leave its GPUs, because of an error there"
    return _WISHED.get(event["wish"], "")


_TELLERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "JobSubmitted": _submitted,
    "JobStarted": lambda _: "runs",
    "JobFound": _found,
    "JobInterrupted": _interrupted,
    "JobEnded": _ended,
    "JobForgotten": lambda _: "is no longer kept in mind",
    "JobChanged": _changed,
    "JobWished": _wished,
    "TrialMeasured": lambda event: f"trial run {tell_measured(event['measured'])}",
    "JobHeldUp": told_held_up,
    "TransitionTimed": _timed,
}
