"""The World is told the whole quota when it is another one, soon but not for each object."""

import math
from typing import Any

import pytest

from batuta.backends.kube.client import kinds as core_kinds
from batuta.backends.kube.client.kinds import NAMESPACE, ConfigMap
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.quota_controller import (
    SETTLE_S,
    QuotaController,
    QuotaEventRecorder,
    quota_from_config,
)
from batuta.backends.kube.objects import Batch, Meta
from batuta.backends.kube.operator.workqueue import Changed
from batuta.core.event import QuotaSet
from batuta.core.quota import MILLI, Quota
from tests.unit.backends.kube.kueue.settings import came, queue_spec, setting, went

SHORT_FORM = [{"name": "team-a", "quota": {"*": 4}}]


class Office:
    """A desk, what it says, and the warnings that it writes."""

    def __init__(self, base: Quota | None = None, known: Quota | None = None) -> None:
        self.said: list[QuotaSet] = []
        self.warned: list[str] = []
        self.now_s = 1000.0
        self.priorities: dict[str, int] = {}
        self.desk = QuotaController(
            self.said.append,  # type: ignore[arg-type]
            QuotaEventRecorder(self._ask),
            known=known or Quota(),
            base=base or Quota(),
            priorities=self.priorities,
        )

    def _ask(self, key: str, do: Any, now_s: float) -> bool:
        self.warned.append(do.args[0]["note"])
        return True

    def shows(self, kind: Any, *changes: Any) -> None:
        self.desk.take(Changed(kind, changes), self.now_s)

    def serves_kueue(self) -> None:
        for kind in kinds.SETTINGS:
            self.desk.take(Changed(kind, (), kinds.VERSION), self.now_s)

    def settle(self) -> Quota:
        """The quota when all that was shown has been looked at."""
        self.desk.drive(self.now_s)
        self.now_s += SETTLE_S
        self.desk.drive(self.now_s)
        assert self.desk.next_s() == math.inf
        return self.desk.known


@pytest.fixture
def office() -> Office:
    """On a cluster that knows Kueue, with one flavor."""
    office = Office()
    office.serves_kueue()
    office.shows(kinds.RESOURCE_FLAVOR, came(setting("gpus", {})))
    office.settle()
    return office


def namespace(name: str, **labels: str) -> Batch:
    return Batch(metadata=Meta(name=name, labels=labels))


def test_many_objects_at_once_are_told_once(office):
    told = len(office.said)
    for number in range(20):
        office.shows(kinds.CLUSTER_QUEUE, came(setting(f"queue-{number}", queue_spec(number))))
        office.desk.drive(office.now_s)
    assert len(office.said) == told
    assert len(office.settle().cluster_queues) == 20
    assert len(office.said) == told + 1


def test_what_the_world_knows_already_is_not_told_again():
    office = Office(base=quota_from_config(SHORT_FORM), known=quota_from_config(SHORT_FORM))
    office.settle()
    assert office.said == []


def test_a_status_of_a_queue_is_not_even_looked_at(office):
    before = setting("team-a", queue_spec(4))
    office.shows(kinds.CLUSTER_QUEUE, came(before))
    office.settle()
    office.shows(kinds.CLUSTER_QUEUE, came(setting("team-a", queue_spec(4), status={"x": 1}), before))
    assert office.desk.next_s() == math.inf


def test_a_queue_that_is_being_deleted_counts_as_gone(office):
    before = setting("team-a", queue_spec(4))
    office.shows(kinds.CLUSTER_QUEUE, came(before))
    assert office.settle().queue_of
    going = setting("team-a", queue_spec(4), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    office.shows(kinds.CLUSTER_QUEUE, came(going, before))
    assert not office.settle().queue_of
    office.shows(kinds.CLUSTER_QUEUE, went(going))
    assert not office.settle().queue_of


def test_an_object_that_is_refused_is_warned_of_once_and_the_others_hold(office):
    office.shows(
        kinds.CLUSTER_QUEUE,
        came(setting("good", queue_spec(4))),
        came(setting("bad", queue_spec(4, stopPolicy="Holt"))),
    )
    assert set(office.settle().queue_of) == {"good"}
    office.shows(kinds.CLUSTER_QUEUE, came(setting("more", queue_spec(1))))
    office.settle()
    assert len(office.warned) == 1
    assert "stopPolicy" in office.warned[0]


def test_cohorts_that_go_round_in_a_circle_are_warned_of(office):
    office.shows(kinds.COHORT, came(setting("a", {"parentName": "b"})), came(setting("b", {"parentName": "a"})))
    office.settle()
    assert sorted(office.warned) == [
        "cohorts go round in a circle: a → b → a; take one parent out",
        "cohorts go round in a circle: b → a → b; take one parent out",
    ]


def test_a_namespace_that_a_queue_does_not_select_has_no_way_in_until_it_has_the_label(office):
    selector = {"matchLabels": {"team": "a"}}
    office.shows(kinds.CLUSTER_QUEUE, came(setting("team-a", queue_spec(4, namespaceSelector=selector))))
    office.shows(kinds.LOCAL_QUEUE, came(setting("train", {"clusterQueue": "team-a"}, namespace="space")))
    office.shows(NAMESPACE, came(namespace("space")))
    assert office.settle().door("space", "train") is None
    assert "namespaceSelector" in office.warned[0]
    office.shows(NAMESPACE, came(namespace("space", team="a")))
    assert office.settle().door("space", "train")


def test_a_local_queue_may_come_before_its_cluster_queue(office):
    office.shows(kinds.LOCAL_QUEUE, came(setting("train", {"clusterQueue": "later"}, namespace="space")))
    found = office.settle().door("space", "train")
    assert found is not None
    assert found.cluster_queue == "later"
    assert office.warned == []


def test_files_count_until_all_definitions_are_there():
    office = Office(base=quota_from_config(SHORT_FORM))
    assert set(office.settle().queue_of) == {"team-a"}
    office.desk.take(Changed(kinds.CLUSTER_QUEUE, (), kinds.VERSION), office.now_s)
    assert set(office.settle().queue_of) == {"team-a"}
    office.serves_kueue()
    assert not office.settle()


def test_files_are_added_to_the_configuration_and_a_fault_leaves_all_as_it_was():
    office = Office(base=quota_from_config(SHORT_FORM))

    def files(**data: str) -> None:
        found = ConfigMap(metadata=Meta(name="batuta-queues", uid="files"), data=data)
        office.shows(kinds.QUEUE_FILES, came(found))

    files(b="queues: [{name: team-b, quota: {'*': 2}}]")
    assert set(office.settle().queue_of) == {"team-a", "team-b"}
    files(b="queues: [{nam: team-b}]", c="queues: 7")
    quota = office.settle()
    assert set(quota.queue_of) == {"team-a", "team-b"}
    [warning] = office.warned
    assert "b:1" in warning
    assert "c:1" in warning
    files(b="queues: [{name: team-b, quota: {'*': 3}}]")
    assert office.settle().queue_of["team-b"].groups[0].flavors[0].limits[0].nominal == 3 * MILLI


def test_an_operator_that_starts_with_a_broken_file_keeps_what_the_world_has():
    office = Office(known=quota_from_config(SHORT_FORM))
    broken = ConfigMap(metadata=Meta(name="batuta-queues", uid="files"), data={"a": "queues: 7"})
    office.shows(kinds.QUEUE_FILES, came(broken))
    assert set(office.settle().queue_of) == {"team-a"}
    assert office.said == []


def test_priorities_are_kept_for_those_who_name_them(office):
    office.shows(kinds.WORKLOAD_PRIORITY_CLASS, came(setting("urgent", {}, value=1000)))
    office.settle()
    assert office.priorities == {"urgent": 1000}


def test_other_kinds_are_none_of_its_business(office):
    office.shows(core_kinds.JOB, came(Batch(metadata=Meta(name="a"))))
    assert office.desk.next_s() == math.inf
