"""The health state that survives a restart of the operator: one ConfigMap, replaced as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

import msgspec

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, Conflict, NotFound
from batuta.backends.kube.client.kinds import CONFIG_MAP
from batuta.core.cluster import NodeName
from batuta.core.health import HealthStateMachine, from_plain, to_plain
from batuta.core.health_rules import HealthRules, Source
from batuta.core.health_signals import COUNTERS, Figure
from batuta.core.job import JobId

KEY: Final = "health.json"
FORM: Final = 1
MOST_BYTES: Final = 900_000  # the API server takes objects of up to a MiB or so


class Restart(NamedTuple):
    """A job that is to begin again, unless it has since."""

    pods: tuple[str, ...]  # uids of pods that were hit: it has begun again when they are gone
    asked_s: float
    reason: str


class Hit(NamedTuple):
    """A hardware fault that hit a job: a failure soon after it is not the job's own."""

    heard_s: float
    reason: str


@dataclass(slots=True)
class HealthState:
    """The book, and how far everything was read that goes into it."""

    book: HealthStateMachine
    seen: dict[NodeName, int] = field(default_factory=dict)  # by node: the last note of its agent that is dealt with
    conditions: dict[NodeName, dict[str, str]] = field(default_factory=dict)
    """By node and type of a condition: since when that held which is dealt with."""
    boots: dict[NodeName, str] = field(default_factory=dict)
    """By node that is to be rebooted: the boot that it was ill in."""
    restarts: dict[JobId, Restart] = field(default_factory=dict)
    restarted: dict[JobId, list[float]] = field(default_factory=dict)
    """By job: when it was restarted, as long as that counts."""
    figures: dict[NodeName, dict[int, dict[str, int]]] = field(default_factory=dict)
    """By node and GPU: what figures were when they were last heard of."""
    hits: dict[JobId, Hit] = field(default_factory=dict)  # by job: what hit it last, until that has excused a failure
    heeded: dict[str, float] = field(default_factory=dict)
    """By uid: failed pods, and when their termination message was read."""
    is_new: bool = False  # nothing was remembered: what nodes say of themselves is all that is known

    def forget(self, node: NodeName) -> None:
        self.book.remove_node(node)
        for table in (self.seen, self.conditions, self.figures, self.boots):
            table.pop(node, None)


def to_text(memory: HealthState) -> str:
    """As it is stored. Should it be too long, old incidents go first: they only help to judge new ones."""
    plain = to_plain(memory.book)
    ill = {node for node, _, _ in plain["records"]}
    plain["nodes"] = {name: member for name, member in plain["nodes"].items() if name in ill}
    whole = {one.name: getattr(memory, one.name) for one in fields(memory) if one.name != "is_new"}
    whole |= {"form": FORM, "book": plain, "figures": _kept_figures(memory)}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    for most in (16, 4, 1, 0):
        if len(text) <= MOST_BYTES:
            break
        for _, _, record in plain["records"]:
            record["incidents"] = record["incidents"][len(record["incidents"]) - most :] if most else []
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return text


def from_text(rules: HealthRules, text: str) -> HealthState:
    """The same under these rules; nothing remembered is an empty text. A ValueError says what is wrong."""
    if not text:
        return HealthState(HealthStateMachine(rules), is_new=True)
    try:
        form = msgspec.json.decode(text)["form"]
        if form != FORM:
            raise ValueError(f"of form {form!r}, known is {FORM}")
        return msgspec.json.decode(text, type=HealthState, dec_hook=lambda _, plain: from_plain(rules, plain))
    except (KeyError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise ValueError(f"damaged: {error!r}") from error


def _kept_figures(memory: HealthState) -> dict[NodeName, dict[int, dict[str, int]]]:
    """Only what must not be told again, or not be missed: thousands of GPUs have nothing to say.

    A node that was heard of has an entry, be it empty: what is missing in it was 0.
    """
    rules = memory.book.rules

    def matters(figure: str, value: int) -> bool:
        if figure in COUNTERS:
            return figure == Figure.ECC_UNCORRECTED and value > 0
        return rules.find(Source.NVML, value, figure) is not None

    found: dict[NodeName, dict[int, dict[str, int]]] = {}
    for node, known in memory.figures.items():
        kept = {gpu: {k: v for k, v in values.items() if matters(k, v)} for gpu, values in known.items()}
        found[node] = {gpu: values for gpu, values in kept.items() if values}
    return found


class StoredState(NamedTuple):
    """What the ConfigMap holds, and which version of it that is; both empty where there is none."""

    text: str = ""
    version: str = ""


async def load_state(api: Api, namespace: str, name: str) -> StoredState:
    try:
        found = await api.get(CONFIG_MAP, name, namespace)
    except NotFound:
        return StoredState()
    return StoredState(found.data.get(KEY, ""), found.metadata.resource_version)


async def save_state(api: Api, namespace: str, name: str, stored: StoredState) -> StoredState:
    """Replaces the version that was read; raises Conflict when another client has written since."""
    metadata = {"name": name, "namespace": namespace, "resourceVersion": stored.version}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: stored.text}}
    try:
        if stored.version:
            written = await api.update(CONFIG_MAP, name, body, namespace)
        else:
            written = await api.create(CONFIG_MAP, body, namespace)
    except (AlreadyExists, NotFound) as error:
        raise Conflict(f"another client has written {namespace}/{name}: {error.message}") from error
    return StoredState(stored.text, written.metadata.resource_version)
