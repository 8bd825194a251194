"""What the engine is told of: objects that say something else than before, and how urgent that is."""

import threading
import time
from typing import Any

import msgspec
import pytest

from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.objects import Node, Pod
from batuta.backends.kube.operator.informers import Relevance, news_of
from batuta.backends.kube.operator.workqueue import Changed, Inbox
from tests.unit.backends.kube.binder import things

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
LONG_S = 20.0


def node(version: int, heartbeat: str = "", **more: Any) -> Node:
    conditions = [READY | {"lastHeartbeatTime": heartbeat}]
    status = {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": conditions, "images": [{"names": ["a"]}]}
    return msgspec.convert(
        {"metadata": {"name": "node", "resourceVersion": str(version)}, "status": status} | more, Node
    )


def pod(**more: Any) -> Pod:
    return things.pod("pod", **more)


def test_a_heartbeat_is_no_news():
    change = Change(ChangeType.MODIFIED, node(2, "2026-01-01T00:00:10Z"), node(1, "2026-01-01T00:00:00Z"))
    assert news_of(change) is Relevance.NONE
    assert change.object.metadata.resource_version == "2"


@pytest.mark.parametrize(
    "more",
    [{"spec": {"unschedulable": True}}, {"status": {}}, {"metadata": {"labels": {"a": "b"}}}],
    ids=lambda more: next(iter(more)),
)
def test_whatever_is_read_is_news_when_it_changes(more):
    assert news_of(Change(ChangeType.MODIFIED, node(2, **more), node(1))) is Relevance.MORE


def test_who_comes_or_goes_is_news():
    assert news_of(Change(ChangeType.ADDED, node(1))) is Relevance.MORE
    assert news_of(Change(ChangeType.DELETED, node(1), node(1))) is Relevance.MORE


@pytest.mark.parametrize(
    ("before", "now", "news"),
    [
        (pod(on="node"), pod(on="node", phase="Running"), Relevance.STATUS),
        (pod(on="node", phase="Running"), pod(on="node", phase="Succeeded"), Relevance.MORE),
        (pod(), pod(on="node"), Relevance.MORE),
        (pod(on="node"), pod(on="node", terminating=True), Relevance.MORE),
        (pod(on="node"), pod(on="node", annotations={"a": "b"}), Relevance.MORE),
    ],
    ids=["begins", "ends", "is bound", "is deleted", "is annotated"],
)
def test_that_a_pod_runs_can_wait_for_a_moment(before, now, news):
    assert news_of(Change(ChangeType.MODIFIED, now, before)) is news


def changed(name: str) -> Changed:
    return Changed(kinds.POD, [Change(ChangeType.ADDED, things.pod(name))])


def test_what_can_wait_is_taken_at_once_when_it_comes_alone():
    inbox, first = Inbox(rest_s=LONG_S), changed("first")
    inbox.put(first, urgent=False)
    assert inbox.take(LONG_S) == [first]


def test_what_can_wait_lies_until_something_comes_that_cannot():
    """Given news that came just after other news, it is taken together with the next that is urgent."""
    inbox, second, third = Inbox(rest_s=LONG_S), changed("second"), changed("third")
    inbox.put(changed("first"), urgent=False)
    inbox.take(LONG_S)
    inbox.put(second, urgent=False)
    begun_s = time.monotonic()
    threading.Timer(0.1, lambda: inbox.put(third)).start()
    assert inbox.take(LONG_S) == [second, third]
    assert 0.05 < time.monotonic() - begun_s < LONG_S


def test_what_can_wait_does_so_no_longer_than_it_may():
    inbox, second = Inbox(rest_s=0.2), changed("second")
    inbox.put(changed("first"), urgent=False)
    inbox.take(LONG_S)
    begun_s = time.monotonic()
    inbox.put(second, urgent=False)
    assert inbox.take(LONG_S) == [second]
    assert 0.1 < time.monotonic() - begun_s < LONG_S


def test_nobody_waits_longer_than_asked_for():
    assert Inbox().take(0.01) == []
