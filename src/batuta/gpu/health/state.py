"""Keep the state of the health watch across restarts, with the job restarts that it has ordered."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from batuta.core import event as ev
from batuta.core.cluster import Node
from batuta.core.health import HealthStateMachine, from_plain, to_plain
from batuta.core.health_record import RestartJob, Target
from batuta.core.health_rules import Action, Finding, HealthRules, Source
from batuta.core.health_signals import Seen
from batuta.core.job import JobId
from batuta.engine.ports import Settings
from batuta.engine.requests import RequestFn

SETTING: Final = "health"
_FORM: Final = 1
_MAX_JOBS: Final = 1_000  # the newest jobs whose restarts, log offsets and last fault are remembered
_log = logging.getLogger(__name__)

OrderedRestart: TypeAlias = tuple[RestartJob, float]  # a job restart, and the time of the finding that it answers


@dataclass(slots=True)
class HealthState:
    """What the health watch must know after a restart, so that no finding counts twice."""

    machine: HealthStateMachine
    last_note: int = 0  # lines of the kernel log queue up to this number are in the state machine
    figures: Seen = field(default_factory=dict)  # the metrics of GPUs when they were last read
    restarts: dict[JobId, list[float]] = field(default_factory=dict)  # when jobs were restarted for errors of their own
    ordered: list[OrderedRestart] = field(default_factory=list)
    """Restarts that the engine may not know of yet. It does not repeat one that it knows of."""
    read: dict[str, int] = field(default_factory=dict)  # how far logs of jobs were read, by job and rank: `7/0`
    found: Counter[tuple[Source, Action]] = field(default_factory=Counter)
    """Findings so far, by source and action. Not stored: counters may begin anew."""

    def save(self, store: Settings) -> None:
        """Store everything in one write: a reader finds all of it, or all of the state before."""
        plain = {
            "form": _FORM,
            "book": to_plain(self.machine),
            "last_note": self.last_note,
            "figures": [[node, gpu, values] for (node, gpu), values in sorted(self.figures.items())],
            "restarts": dict(list(self.restarts.items())[-_MAX_JOBS:]),
            "ordered": [
                [order.job, *order.target, order.reason, time_s] for order, time_s in self.ordered[-_MAX_JOBS:]
            ],
            "read": dict(list(self.read.items())[-_MAX_JOBS:]),
        }
        store.put(SETTING, json.dumps(plain))


def load_state(store: Settings, rules: HealthRules, nodes: Sequence[Node]) -> HealthState:
    """Return the stored state for the current nodes. A state that cannot be read is logged and dropped."""
    state = HealthState(HealthStateMachine(rules))
    text = store.get(SETTING)
    if text is not None:
        try:
            state = _from_plain(rules, json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("the stored health of the nodes cannot be read, and is dropped: %s", error)
    machine, there = state.machine, {node.name for node in nodes}
    for gone in [name for name in machine.members if name not in there]:
        machine.remove_node(gone)
    for node in nodes:
        machine.add_node(node.name, node.gpus, node.gpu_type)
    return state


def _from_plain(rules: HealthRules, plain: dict[str, Any]) -> HealthState:
    if plain["form"] != _FORM:
        raise ValueError(f"it is of form {plain['form']!r}, known is {_FORM}")
    return HealthState(
        from_plain(rules, plain["book"]),
        int(plain["last_note"]),
        {Target(str(node), int(gpu)): dict(values) for node, gpu, values in plain["figures"]},
        {str(job): [float(time_s) for time_s in times] for job, times in plain["restarts"].items()},
        [
            (RestartJob(str(job), Target(str(node), int(gpu)), str(reason)), float(time_s))
            for job, node, gpu, reason, time_s in plain.get("ordered", ())
        ],
        {str(rank): int(offset) for rank, offset in plain["read"].items()},
    )


class JobFault(NamedTuple):
    """The last fault that hit a job."""

    time_s: float
    reason: str
    is_excused: bool  # it was the hardware, or the job may be restarted for it once more


class FailureAttribution:
    """Decides whether a failure is the job's or the hardware's. The caller holds the lock of the state."""

    def __init__(self) -> None:
        self._faults: dict[JobId, JobFault] = {}

    def record(self, state: HealthState, finding: Finding) -> None:
        """Put a finding into the state machine. Of its orders only restarts are noted here: the watch carries
        all others out from the machine's state.
        """
        verdict, orders = state.machine.verdict_on(finding), state.machine.found(finding)
        state.found[finding.source, verdict.action] += 1
        is_hardware, limits = verdict.action.takes_out, state.machine.rules.limits
        if is_hardware or verdict.action is Action.RESTART_JOB:
            for job in finding.jobs:
                may = is_hardware or limits.may_restart(state.restarts, job, finding.time_s)
                self._faults[job] = JobFault(finding.time_s, verdict.reason, may)
        for order in orders:
            if isinstance(order, RestartJob):
                if self._faults[order.job].is_excused:
                    state.ordered.append((order, finding.time_s))
                else:
                    _log.warning("job %s has no restarts left: %s", order.job, order.reason)
        for job in list(self._faults)[:-_MAX_JOBS]:
            del self._faults[job]

    def excuse(self, job: JobId, since_s: float) -> str:
        """Return why a job's run since `since_s` failed by no fault of its own, or an empty text."""
        fault = self._faults.pop(job, None)
        return fault.reason if fault is not None and fault.is_excused and fault.time_s >= since_s else ""


class EngineRequests:
    """Requests that the engine has not answered. All methods but `ask` need the state's lock."""

    def __init__(self, ask: Callable[[RequestFn], Future[Sequence[ev.Event]]]) -> None:
        self._ask = ask
        self._requests: list[tuple[Future[Sequence[ev.Event]], Sequence[OrderedRestart]]] = []

    def ask(self, make: RequestFn, ordered: Sequence[OrderedRestart]) -> None:
        """Send a request to the engine; `ordered` are the restarts that it contains."""
        self._requests.append((self._ask(make), ordered))

    def settle(self, state: HealthState) -> bool:
        """Forget restarts that the engine knows of; return whether it failed to do something."""
        over = [one for one in self._requests if one[0].done()]
        self._requests = [one for one in self._requests if one not in over]
        good = [ordered for answer, ordered in over if not answer.cancelled() and answer.exception() is None]
        known = [order for ordered in good for order in ordered]
        state.ordered = [order for order in state.ordered if order not in known]
        return len(good) < len(over)

    def unsent(self, state: HealthState) -> Sequence[OrderedRestart]:
        """Return the restarts that are not on their way to the engine."""
        sent = [order for _, ordered in self._requests for order in ordered]
        return [order for order in state.ordered if order not in sent]
