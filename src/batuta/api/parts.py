"""What the API is made of: everything that it needs from outside, as one value."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from batuta.api.auth import Bearers
from batuta.api.cycle_watch import CycleWatch
from batuta.api.experience import Experience, NoExperience
from batuta.api.foreseen import Foresight
from batuta.core.cluster import NodeName
from batuta.core.decide import Rules
from batuta.core.job import JobId
from batuta.engine.health.seen import NodeHealth, NoNodeHealth
from batuta.engine.service import Service
from batuta.engine.shadow import Shadow
from batuta.spec.task_paths import PathRules
from batuta.store.store import Store
from batuta.telemetry.exporter import SpanExporter

MOST_JOBS = 50
"""Jobs that have metrics of their own unless somebody says otherwise."""
STATIC = Path(__file__).parent / "static"
"""Where the dashboard is built into."""


class JobFiles(Protocol):
    """Where the files of a job lie. Only through this does the API reach a file of a job."""

    def log_path(self, job: JobId, rank: int) -> Path: ...

    def ranks(self, job: JobId) -> list[int]:
        """The ranks that have, or had, a log; empty for a job that has not started."""
        ...

    def progress_path(self, job: JobId) -> Path: ...


class NodeFacts(Protocol):
    """What a backend knows about its nodes that the World does not."""

    def address(self, node: NodeName) -> str:
        """Where its replicas are reached; empty when there is nothing to say."""
        ...

    def utilisation(self, node: NodeName) -> Mapping[int, float]:
        """By GPU: 0 to 1, for those that are measured."""
        ...


class NoFacts:
    """Knows nothing about nodes."""

    def address(self, node: NodeName) -> str:
        return ""

    def utilisation(self, node: NodeName) -> Mapping[int, float]:
        return {}


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy that can be chosen."""

    name: str
    summary: str


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The collaborators of the API. Bootstrap makes it."""

    service: Service
    store: Store
    files: JobFiles
    policy: str
    """The policy that the engine was started with; the World knows of another one that was chosen since."""
    policies: Sequence[PolicyInfo | tuple[str, str]]
    """All that can be chosen, with a sentence on each."""
    check_policy: Callable[[str], object]
    """Raises InputError or LookupError, with a sentence for people, for a policy that cannot be used."""
    rules_of: Callable[[str], Rules]
    """The rules of a policy, made anew: for questions that are answered on a copy of the World."""
    shutdown: Callable[[bool], None]
    """Begins to shut down; whether jobs go on. It returns soon: it is called while a request is answered."""
    clock: Callable[[], float] = time.time
    nodes: NodeFacts = field(default_factory=NoFacts)
    node_health: NodeHealth = field(default_factory=NoNodeHealth)
    cycles: CycleWatch = field(default_factory=CycleWatch)
    """The engine's watcher, or told by it, for the times of cycles."""
    virtual: bool = False
    version: str = ""
    started_s: float = field(default_factory=time.time)
    static: Path = STATIC
    """The built dashboard; may be absent."""
    open_metrics: bool = False
    metrics_per_job: int = MOST_JOBS
    """How many jobs have metrics of their own; 0 for none."""
    paths: PathRules = field(default_factory=lambda: PathRules(None, Path.home()))
    """How paths of submitted tasks are understood; relative ones start where the client says."""
    account: Callable[[float | None, float | None], dict[str, Any]] | None = None
    """Where the GPU time went between two times; None where nobody keeps account."""
    account_page: Callable[[Mapping[str, Any]], str] | None = None
    """The same as a page of HTML."""
    experience: Experience = field(default_factory=NoExperience)
    shadow: Shadow | None = None
    """A second policy that may watch; None where there is no room for one."""
    foresight: Foresight | None = None
    """Who looks ahead, beside the engine; None where nobody does."""
    spans: SpanExporter | None = None
    """Who sends traces away; None where nobody does."""
    hosts: tuple[str, ...] = ()
    """Names of this server beside those of loopback; 0.0.0.0 or :: stands for all its addresses, .svc for all
    names that end so."""
    read_only: str = ""
    """Where jobs, nodes and queues are changed, if that is not here; empty where it is."""
    bearers: Bearers | None = None
    """Who knows whose a token is; None: those of the store."""
