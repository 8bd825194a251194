"""What an operator does when its ConfigMap changes: what it applies, records and tells."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.operator.config_controller import ConfigController
from batuta.backends.kube.operator.workqueue import Changed, WriteFn
from batuta.backends.kube.operator_config import CONFIG_FILE, OperatorConfig
from batuta.backends.kube.operator_config_map import OPERATOR_CONFIG, OperatorConfigMap
from batuta.backends.kube.settings import YamlSource
from batuta.core import event as ev
from batuta.core.event import Event
from batuta.spec.problem import InputError


def check(config: OperatorConfig, source: YamlSource) -> None:
    if config.policy == "missing":
        raise InputError.of("there is no such policy")


@dataclass
class Office:
    """A controller, and what came of it."""

    applied: list[tuple[OperatorConfig, list[str], str]] = field(default_factory=list)
    said: list[Event] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = OperatorConfig()
        self.controller = ConfigController(config, config, check, self.apply, self.said.append, self.ask)
        self._version = 0

    def apply(self, config: OperatorConfig, keys: Any, author: str, now_s: float) -> None:
        self.applied.append((config, list(keys), author))

    def ask(self, key: str, do: WriteFn, now_s: float) -> bool:
        self.written.append(key)
        return True

    def shows(self, text: str, did: ChangeType = ChangeType.MODIFIED) -> None:
        self._version += 1
        owner = {"manager": "kubectl-edit", "fieldsV1": {"f:data": {f"f:{CONFIG_FILE}": {}}}}
        metadata = {"name": "config", "uid": "1", "resourceVersion": str(self._version), "managedFields": [owner]}
        found = msgspec.convert({"metadata": metadata, "data": {CONFIG_FILE: text}}, OperatorConfigMap)
        self.controller.take(Changed(OPERATOR_CONFIG, [Change(did, found, None)]), 1.0)
        self.controller.drive(1.0)


@pytest.fixture
def office() -> Office:
    return Office()


def test_all_keys_that_changed_together_are_applied_at_once_and_have_their_author(office: Office):
    office.shows("policy: fifo\nplacement: {shares: spread}\nretention: {jobs: 5}\n")
    ((config, keys, author),) = office.applied
    assert (config.policy, config.placement.shares, config.retention.jobs) == ("fifo", "spread", 5)
    assert (set(keys), author) == ({"policy", "placement", "retention"}, "cluster:kubectl-edit")
    assert office.said == [
        ev.PolicySet(1.0, "fifo", cause="config", actor=author),
        ev.ActionTaken(1.0, "config.set", "placement, retention", cause="config", actor=author),
    ]


def test_a_text_that_says_the_same_is_nothing_new(office: Office):
    for text in ("# nothing\nretention: {}\n", "policy: rent\n", "policy: rent # still\n"):
        office.shows(text)
    assert (office.applied, office.said, office.written) == ([], [], [])


@pytest.mark.parametrize("text", ["policy: missing\n", "polici: fifo\n", "", "policy: fifo\npolicy: srjf\n"])
def test_with_a_fault_nothing_is_applied_until_it_is_mended(office: Office, text: str):
    office.shows(text)
    assert (office.applied, office.said) == ([], [])
    assert len(office.written) == 1
    office.shows("policy: fifo\n")
    assert [config.policy for config, *_ in office.applied] == ["fifo"]


def test_a_configmap_that_is_deleted_changes_nothing(office: Office):
    office.shows("policy: fifo\n")
    office.shows("", ChangeType.DELETED)
    assert len(office.applied) == 1
    office.shows("policy: fifo\n", ChangeType.ADDED)
    assert len(office.applied) == 1


def test_a_key_that_waits_for_a_restart_is_told_once(office: Office):
    office.shows("leaseName: other\n")
    office.shows("leaseName: other # the same\n")
    assert office.applied == []
    assert len(office.written) == 1
