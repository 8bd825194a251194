"""Takes up changes of the operator's ConfigMap at run time, and tells who made them and what waits for a restart."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from batuta.backends.kube.client.informer import ChangeType
from batuta.backends.kube.operator.workqueue import AskFn, Changed, Written, build_event, create_event, reference
from batuta.backends.kube.operator_config import OperatorConfig, config_from
from batuta.backends.kube.operator_config_map import (
    AT_RUN_TIME,
    OPERATOR_CONFIG,
    OperatorConfigMap,
    at_run_time,
    author_of,
    changed_keys,
    source_of,
)
from batuta.backends.kube.settings import YamlSource
from batuta.core import event as ev
from batuta.core.event import Event
from batuta.engine.fence import sentence
from batuta.spec.problem import InputError

_log = logging.getLogger(__name__)
_PREFIX: Final = "config//"
CheckFn = Callable[[OperatorConfig, YamlSource], None]
"""Raises an InputError for what cannot be seen from the text alone, such as a policy that is not there."""


def read_config_map(config_map: OperatorConfigMap, check: CheckFn) -> OperatorConfig:
    """The configuration of a ConfigMap, or an InputError with all its problems."""
    source = source_of(config_map)
    found = config_from(source)
    check(found, source)
    return found


class ConfigController:
    """For the engine's thread. What does not validate changes nothing; the settings from before go on."""

    def __init__(
        self,
        file: OperatorConfig,
        running: OperatorConfig,
        check: CheckFn,
        apply: Callable[[OperatorConfig, Sequence[str], str, float], None],
        say: Callable[[Event], None],
        ask: AskFn,
    ) -> None:
        """`file`: what the process read at its start. `running`: the same with the keys that were taken up since.

        `apply` is given the configuration, the keys that changed, who changed them, and the time.
        """
        self._file, self._running = file, running
        self._check, self._apply, self._say, self._ask = check, apply, say, ask
        self._found: OperatorConfigMap | None = None
        self._is_due = False
        self._waiting: list[str] = []  # keys that take effect at the next start

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is not OPERATOR_CONFIG:
            return
        for change in changed.changes:
            if change.did is ChangeType.DELETED:
                _log.warning("ConfigMap %s is gone: the settings stay as they are", change.object.metadata.name)
            else:
                self._found, self._is_due = change.object, True

    def heard(self, written: Written, now_s: float) -> None:
        """An Event that could not be written stands in the log."""

    def next_s(self) -> float:
        return math.inf

    def drive(self, now_s: float) -> None:
        if not self._is_due or self._found is None:
            return
        self._is_due = False
        author = author_of(self._found)
        try:
            wanted = read_config_map(self._found, self._check)
        except InputError as error:
            why = "; ".join(map(str, error.problems))
            self._tell("Warning", "Refused", f"the settings stay as they were: {why}", now_s)
            return
        except Exception as error:  # a policy of another package may fail as it is loaded
            self._tell("Warning", "Refused", f"the settings stay as they were: {sentence(error)}", now_s)
            return
        self._take_up(wanted, author, now_s)
        self._note_waiting(wanted, now_s)

    def _take_up(self, wanted: OperatorConfig, author: str, now_s: float) -> None:
        keys = [key for key in changed_keys(self._running, wanted) if key in AT_RUN_TIME]
        if not keys:
            return
        self._running = at_run_time(self._running, wanted)
        self._apply(self._running, keys, author, now_s)
        if "policy" in keys:
            self._say(ev.PolicySet(now_s, wanted.policy, cause="config", actor=author))
        others = [key for key in keys if key != "policy"]
        if others:
            self._say(ev.ActionTaken(now_s, "config.set", ", ".join(others), cause="config", actor=author))
        self._tell("Normal", "ConfigChanged", f"in effect, changed by {author}: {', '.join(keys)}", now_s)

    def _note_waiting(self, wanted: OperatorConfig, now_s: float) -> None:
        waiting = [key for key in changed_keys(self._file, wanted) if key not in AT_RUN_TIME]
        if waiting != self._waiting and waiting:
            said = f"takes effect at the next start of the operator: {', '.join(waiting)}"
            self._tell("Warning", "RestartNeeded", f"{said}; kubectl rollout restart its Deployment", now_s)
        self._waiting = waiting

    def _tell(self, kind: str, reason: str, note: str, now_s: float) -> None:
        if self._found is None:
            return
        meta = self._found.metadata
        _log.log(logging.WARNING if kind == "Warning" else logging.INFO, "ConfigMap %s: %s", meta.name, note)
        # In one minute the same thing may be refused, mended and refused again: each is told.
        said = f"{meta.resource_version} {note}"
        event = build_event(reference(OPERATOR_CONFIG, meta), reason, note, now_s, kind, said=said, action="ReadConfig")
        self._ask(f"{_PREFIX}event/{event['metadata']['name']}", partial(create_event, event), now_s)
