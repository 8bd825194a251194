"""What the API server needs from outside: `ServerDependencies` and its protocols."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from batuta.api.auth import Caller, PeerAuthenticator, TokenAuthenticator
from batuta.api.forecast_cache import ForecastFn
from batuta.api.scheduler_counters import SchedulerCounters
from batuta.api.stream_limit import MAX_STREAMS
from batuta.backends.local.tenants import Tenants
from batuta.core.cluster import NodeName
from batuta.core.decide import SchedulerProfile
from batuta.core.job import Job, JobId
from batuta.engine.health import NodeHealth, NoNodeHealth
from batuta.engine.service import Service
from batuta.engine.shadow import Shadow
from batuta.prediction.application_history import choose_size, settle
from batuta.prediction.duration import Calibration
from batuta.spec.skypilot_keys import ContainerSupport
from batuta.spec.task_paths import PathRules
from batuta.store.store import Store
from batuta.telemetry.exporter import SpanExporter


class JobHistory(Protocol):
    """What past jobs say about new ones. Called in the engine's thread for every submit: it must be quick."""

    def advise(self, job: Job, *, open_up_to: int | None, for_good: bool) -> Job:
        """Return the job with its expected speed and length, and with a size where that is open.

        `open_up_to` is the most GPUs that may be chosen; None where its user gave a size. `for_good`: it
        keeps the size that is chosen now.
        """

    def calibration(self) -> Calibration:
        """Return how well the predicted lengths of jobs came true."""


class NoJobHistory:
    """No history: jobs stay as they are, and an open size becomes the smallest one."""

    def advise(self, job: Job, *, open_up_to: int | None, for_good: bool) -> Job:
        if open_up_to is None:
            return job
        return settle(job, choose_size(job, None, open_up_to), for_good=for_good)

    def calibration(self) -> Calibration:
        return Calibration()


MAX_JOB_SERIES = 50
USER_PRIORITY = 0  # as in Slurm, users may lower the priority of their jobs, and only an admin may raise it
STATIC = Path(__file__).parent / "static"  # where the dashboard is built into


class JobFiles(Protocol):
    """Paths of a job's files. The API reaches them only through this."""

    def log_path(self, job: JobId, rank: int) -> Path: ...

    def ranks(self, job: JobId) -> list[int]:
        """Return the ranks that have, or had, a log; none for a job that has not started."""

    def progress_path(self, job: JobId) -> Path: ...


class NodeFacts(Protocol):
    """What a backend knows about its nodes that the World does not."""

    def address(self, node: NodeName) -> str:
        """Return where its replicas are reached; empty when unknown."""

    def utilisation(self, node: NodeName) -> Mapping[int, float]:
        """Return the utilisation (0 to 1) of each GPU that is measured."""


class NoNodeFacts:
    """Knows nothing about nodes."""

    def address(self, node: NodeName) -> str:
        return ""

    def utilisation(self, node: NodeName) -> Mapping[int, float]:
        return {}


class PolicyKeeper(Protocol):
    """Keeps the choice of a policy outside the journal, as the ConfigMap of an operator does."""

    async def keep(self, caller: Caller, policy: str) -> str:
        """Write a policy down for a caller, and return what the caller should know of it. The engine hears of it.

        Raises HttpProblem when the caller may not change it, or when it cannot be written.
        """


@dataclass(frozen=True, slots=True)
class ServerDependencies:
    """Everything that the API needs from outside. Bootstrap creates it."""

    service: Service
    store: Store
    files: JobFiles
    policy: str  # the policy that the engine was started with; the World has one that was chosen since
    policies: Sequence[tuple[str, str]]
    check_policy: Callable[[str], object]
    """Raises InputError or LookupError, with a sentence for users, for a policy that cannot be used."""
    rules_of: Callable[[str], SchedulerProfile]
    """Creates the scheduler profile of a policy, for decisions on a copy of the World."""
    shutdown: Callable[[bool], None]
    """Begins to shut down, with or without the jobs. It returns soon: a request waits for it."""
    clock: Callable[[], float] = time.time
    nodes: NodeFacts = field(default_factory=NoNodeFacts)
    node_health: NodeHealth = field(default_factory=NoNodeHealth)
    cycles: SchedulerCounters = field(default_factory=SchedulerCounters)
    """Kept by the engine's thread: cycles, commands, events, GPU time."""
    virtual: bool = False
    version: str = ""
    started_s: float = field(default_factory=time.time)
    static: Path = STATIC  # the built dashboard; may be absent
    open_metrics: bool = False
    user_priority: int = USER_PRIORITY
    """The highest priority that users may give jobs of queues that say nothing; admins may give any."""
    metrics_per_job: int = MAX_JOB_SERIES
    max_streams: int = MAX_STREAMS  # streams of events and logs that may be open at once
    paths: PathRules = field(default_factory=lambda: PathRules(None, Path.home()))
    """How paths of submitted tasks are understood; relative ones start where the client says."""
    images: Callable[[], ContainerSupport] | None = None
    """Says which tasks can run in containers here; None where any can."""
    ports_at: str = ""  # the host at which ports of jobs are reached; empty where that is not known here
    account: Callable[[float | None, float | None], dict[str, Any]] | None = None
    """The report of GPU time between two times; None where there is none."""
    account_page: Callable[[Mapping[str, Any]], str] | None = None
    experience: JobHistory = field(default_factory=NoJobHistory)
    shadow: Shadow | None = None  # the shadow policy; None where this server has none
    foresight: ForecastFn | None = None  # computes forecasts beside the engine; None where there are none
    spans: SpanExporter | None = None  # the exporter of traces; None where traces are not sent
    hosts: tuple[str, ...] = ()
    """Names of this server beside those of loopback; 0.0.0.0 or :: stands for all its addresses, .svc for all
    names that end so."""
    policy_keeper: PolicyKeeper | None = None  # None: a policy that is chosen is a request to the engine
    read_only: str = ""  # where jobs, nodes and queues are changed, if that is not here; empty where it is
    prove: Callable[[str], str] | None = None
    """Shows a client that this server is the one of its state directory; None where there is none."""
    take_number: Callable[[int], int] = lambda number: number
    """Makes a job number durable before it is given out, and returns it or a larger one."""
    bearers: TokenAuthenticator | None = None  # authenticates tokens; None: the tokens of the store
    peers: PeerAuthenticator | None = None  # authenticates callers at the unix socket; None where there is none
    tenants: Tenants | None = None
    """Who jobs run as, where that is their own user: then logs and results are for that user, too. None elsewhere."""
    only_submitter: str | None = None
    """The one user whose jobs are taken, where all run as root and nothing says that others may; None: all users."""
    web_url: Callable[[], str] | None = None
    """The address for browsers, where callers may have come another way; None: the one that a request names."""
