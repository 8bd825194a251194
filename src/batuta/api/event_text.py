"""Journal events for clients: secrets removed, plans and job histories in sentences.

A stored event begins `{"v":1,"type":"JobStarted",…`: the type is found without parsing the rest, and most
events are passed on as they are.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fastapi.sse import format_sse_event

from batuta.api.views import measurement_sentence
from batuta.core.event import HELD_UP_CAUSE
from batuta.core.reason import Reason
from batuta.store.codec import dumps
from batuta.store.journal import JournalReader, StoredEvent

_MAX_RANKS_LISTED = 16


def held_up_sentence(event: dict[str, Any]) -> str:
    """Return the sentence of a stored `JobHeldUp` event, without its subject."""
    try:
        evidence = tuple((str(name), float(value)) for name, value in event["evidence"])
        what = Reason[event["reason"]].sentence(evidence)
    except (KeyError, ValueError):
        what = "is held up"  # by what a later version knows
    ranks, nodes, avoid = (event.get(key, []) for key in ("ranks", "nodes", "avoid"))
    if len(ranks) > 1:
        more = ", …" if len(ranks) > _MAX_RANKS_LISTED else ""
        what += f" (ranks {', '.join(map(str, sorted(ranks)[:_MAX_RANKS_LISTED]))}{more})"
    blame = f"{', '.join(nodes)} {'is' if len(nodes) == 1 else 'are'} to blame" if nodes else ""
    away = ""
    if avoid:
        minutes = max(1, round((event["until_s"] - event["time_s"]) / 60))
        away = f"; it stays away from {', '.join(avoid)} for {minutes} min"
    return f"{what}; {blame or 'the cause is not known'}{away}"


_HEAD = '{"v":1,"type":"'
_MOVES = frozenset(("Start", "Resize", "Migrate"))


class PublicEvent(NamedTuple):
    """An event as clients see it."""

    seq: int
    type: str
    jobs: frozenset[str]
    data: str
    frame: bytes


def type_of(text: str) -> str:
    if text.startswith(_HEAD):
        return text[len(_HEAD) : text.index('"', len(_HEAD))]
    return str(json.loads(text).get("type", ""))


def public_event(entry: StoredEvent) -> PublicEvent:
    """Return an event as every viewer may see it."""
    kind = type_of(entry.json)
    if kind == "Planned":
        event = public_plan(json.loads(entry.json))
        commanded = (command["job"] for command in event["commands"])
        data, jobs = dumps(event), frozenset((*commanded, *event["found_idle"]))
    elif kind == "JobSubmitted":
        event = json.loads(entry.json)
        # A task has secrets in it.
        event.pop("task", None)
        data, jobs = dumps(event), frozenset((event["job"]["id"],))
    elif kind == "JobHeldUp":
        event = json.loads(entry.json)
        data, jobs = dumps({**event, "sentence": held_up_sentence(event)}), frozenset((event["job"],))
    else:
        data, jobs = entry.json, _jobs_in(entry.json)
    return PublicEvent(entry.seq, kind, jobs, data, format_sse_event(data_str=data, event=kind, id=str(entry.seq)))


def public_plan(event: dict[str, Any]) -> dict[str, Any]:
    plan = event["plan"]
    return {
        "v": event["v"],
        "type": event["type"],
        "time_s": event["time_s"],
        "cause": event["cause"],
        "policy": plan["policy"],
        "commands": [_public_command(command) for command in plan["commands"]],
        "found_idle": plan.get("found_idle", []),
    }


def _public_command(command: dict[str, Any]) -> dict[str, Any]:
    evidence = dict(command["evidence"])
    spans = command["placement"][0] if command["type"] in _MOVES else []
    return {
        "type": command["type"],
        "job": command["job"],
        "reason": command["reason"],
        "sentence": _sentence(command["reason"], evidence),
        "gpus": sum(len(gpus) for _, gpus in spans),
        "evidence": evidence,
        "placement": [{"node": node, "gpus": gpus} for node, gpus in spans],
    }


def _sentence(reason: str, evidence: dict[str, float]) -> str:
    """Return the sentence of a reason; its name, where this version does not know it any more."""
    try:
        return Reason[reason].sentence(tuple((name, float(value)) for name, value in evidence.items()))
    except (KeyError, ValueError):
        return reason.lower().replace("_", " ")


def _jobs_in(text: str) -> frozenset[str]:
    if '"job":' not in text:
        return frozenset()
    job = json.loads(text).get("job")
    name = job.get("id") if isinstance(job, dict) else job
    return frozenset((name,)) if isinstance(name, str) else frozenset()


def with_seq(event: PublicEvent) -> dict[str, Any]:
    return {"seq": event.seq, **json.loads(event.data)}


MAX_SENTENCES = 500
_PAGE = 1_000
_MAX_PAGES = 200
_MAX_STORIES = 256


@dataclass(slots=True)
class _Story:
    seq: int = 0
    saves: bool = False  # whether the story has its first checkpoint
    sentences: list[dict[str, Any]] = field(default_factory=list)


class StoryCache:
    """Histories of jobs in sentences. Recent ones are kept, so that only new events are read."""

    def __init__(self, journal: JournalReader) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Story] = OrderedDict()

    def of(self, job: str) -> list[dict[str, Any]]:
        """Return the last sentences about a job, the oldest first."""
        with self._lock:
            story = self._known.pop(job, None) or _Story()
            self._known[job] = story
            while len(self._known) > _MAX_STORIES:
                self._known.popitem(last=False)
            for _ in range(_MAX_PAGES):
                page = self._journal.texts_of_job(job, story.seq, _PAGE)
                for text in page:
                    story.seq = text.seq
                    if type_of(text.json) == "JobCheckpointed":
                        if story.saves:
                            continue
                        story.saves = True
                    story.sentences += sentences_of(text.json, job)
                del story.sentences[:-MAX_SENTENCES]
                if len(page) < _PAGE:
                    break
            return list(story.sentences)


def sentences_of(text: str, job: str) -> Iterator[dict[str, Any]]:
    """Yield what one event says about a job; nothing for progress."""
    kind = type_of(text)
    if kind == "JobProgressed":
        return
    event = json.loads(text)
    if kind == "Planned":
        plan = public_plan(event)
        for command in plan["commands"]:
            if command["job"] == job:
                places = _places([(span["node"], span["gpus"]) for span in command["placement"]])
                sentence = f"{command['sentence']}, on {places}" if places else command["sentence"]
                yield {"time_s": event["time_s"], "sentence": sentence}
        if job in plan["found_idle"]:
            yield {"time_s": event["time_s"], "sentence": "holds GPUs and does not use them"}
    elif kind in _SENTENCES and (sentence := _SENTENCES[kind](event)):
        yield {"time_s": event["time_s"], "sentence": sentence}


def _places(spans: list[tuple[str, list[int]]]) -> str:
    more = ", …" if len(spans) > 8 else ""
    # Replicas of a CPU-only job have no GPUs to name.
    shown = dict.fromkeys(f"{node}:{'+'.join(map(str, gpus))}" if gpus else node for node, gpus in spans[:8])
    return ", ".join(shown) + more


def _submitted(event: dict[str, Any]) -> str:
    job = event["job"]
    span = "" if job["min"] == job["max"] else f", {job['min']} to {job['max']} will do"
    by = f" by {job['user']}" if job["user"] else ""
    return f"is submitted{by} to queue {job['queue']} and asks for {_asked(job)}{span}"


def _asked(job: dict[str, Any]) -> str:
    count = job["size"]
    if not job.get("gpus_per_replica", 1):
        return f"{count} nodes on CPU" if count != 1 else "1 node on CPU"
    return f"{count} GPUs" if count != 1 else "1 GPU"


def _interrupted(event: dict[str, Any]) -> str:
    wait_s = event.get("not_before_s", 0.0) - event["time_s"]
    has_delay = "(restart " in event.get("detail", "")
    later = f"; it is not tried again for {wait_s:.0f} s" if wait_s > 0 and not has_delay else ""
    return f"stops before it is done{_how(event)}{later}"


def _found(event: dict[str, Any]) -> str:
    spans = event["placement"][0]
    if not spans:
        return f"is found without GPUs{_how(event)}"
    wait_s = event.get("not_before_s", 0.0) - event["time_s"]
    later = f"; it is not resized for {wait_s:.0f} s" if wait_s > 0 else ""
    does = "runs" if event.get("running", True) else "has its place"
    return f"{does} on {_places(spans)}, as was found{_how(event)}{later}"


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
    return f"is changed {by}: {_asked(job)}{span}, priority {job['priority']}, queue {job['queue']}"


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
    if event["cause"] == HELD_UP_CAUSE:
        return "leaves its GPUs for others, because of what holds it up"
    if event["cause"] == "trial":
        return "is queued, with what its trial runs showed" if event["wish"] == "RUN" else "is measured and ended"
    if event["cause"] == "health":
        return "has to leave its GPUs, because of an error there"
    return _WISHED.get(event["wish"], "")


def _checkpointed(event: dict[str, Any]) -> str:
    """Only for the first one: a job may save all the time."""
    if event.get("saved_s") is None:
        return "its script saves when it is asked, so it may be resized"
    return "has saved its first checkpoint, so it may be resized"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "JobSubmitted": _submitted,
    "JobStarted": lambda _: "runs",
    "JobFound": _found,
    "JobInterrupted": _interrupted,
    "JobEnded": lambda event: f"is over: {event['state']}{_how(event)}",
    "JobForgotten": lambda _: "is no longer kept in mind",
    "JobChanged": _changed,
    "JobWished": _wished,
    "TrialMeasured": lambda event: f"trial run {measurement_sentence(event['measured'])}",
    "JobCheckpointed": _checkpointed,
    "JobHeldUp": held_up_sentence,
    "TransitionTimed": _timed,
}
