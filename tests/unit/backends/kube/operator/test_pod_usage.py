"""What pods have of their GPUs, by the word of their node's agent: read, told to the World and written on the pods."""

import asyncio
import json
import math
from typing import Any

import pytest

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.errors import Conflict
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.client.kinds import NODE, POD
from batuta.backends.kube.operator.cache import ObjectCache, slim_pod
from batuta.backends.kube.operator.pod_usage import AGAIN_S, MOST_AT_ONCE, PAUSE_S, PodAnnotator, sharers_on
from batuta.backends.kube.operator.workqueue import Changed, WriteQueue, Written, carry_out
from batuta.core.job import Share
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world

WORKS = {"gpus": [0], "utilisation": {"mean": 0.5}, "memoryMib": 500}


def report(time_s: float, pods: dict[str, Any], **job: Any) -> str:
    return json.dumps({"time": time_s, "jobs": [{"job": {"name": "a", "stage": "steady"} | job, "pods": pods}]})


class Cluster:
    """Two nodes and their pods; writes are carried out at once, and seen by the next look."""

    def __init__(self, *namespaces: str) -> None:
        self.observed, self.asked = ObjectCache(), list[Any]()
        self.writes = WriteQueue(self.asked.extend)
        self.written: list[tuple[str, dict[str, str | None]]] = []
        self.annotator = PodAnnotator(self.observed, self._pods_on, self.writes, namespaces)
        self.refuses = False

    def pod(self, name: str, node: str = "n0", namespace: str = "team", **annotations: str) -> None:
        meta = objects.Meta(name=name, namespace=namespace, uid=f"uid-{name}", annotations=annotations)
        self.observed.pods[f"{namespace}/{name}"] = objects.Pod(meta, objects.PodSpec(node_name=node))

    def report(self, text: str, now_s: float = NOW_S, node: str = "n0") -> None:
        found = objects.Node(objects.Meta(name=node, annotations={names.PODS_USAGE: text}))
        self.observed.nodes[node] = found
        self.annotator.take(Changed(NODE, (Change(ChangeType.MODIFIED, found, None),)), now_s)
        self.turn(now_s)

    def turn(self, now_s: float) -> None:
        self.annotator.drive(now_s)
        self.writes.send()
        for key, do in self.asked:
            written = Written(key, asyncio.run(carry_out(do, self)))  # type: ignore[arg-type]
            self.writes.heard(written, now_s)
            self.annotator.heard(written, now_s)
        self.asked.clear()

    async def patch(self, kind: Any, name: str, body: dict[str, Any], namespace: str) -> None:
        meta, key = body["metadata"], f"{namespace}/{name}"
        pod = self.observed.pods[key]
        if self.refuses or meta["uid"] != pod.metadata.uid:
            raise Conflict("another pod has the name")
        self.written.append((key, meta["annotations"]))
        now = {name: text for name, text in (pod.metadata.annotations | meta["annotations"]).items() if text}
        self.pod(name, pod.spec.node_name, namespace, **now)

    def says(self, pod: str) -> dict[str, Any]:
        found = self.observed.pods[pod].metadata.annotations
        return {key: json.loads(text) for key, text in found.items() if key.startswith("batuta.dev/gpu.")}

    def _pods_on(self, node: str) -> list[str]:
        return [key for key, pod in self.observed.pods.items() if pod.spec.node_name in (node, "")]


def test_a_pod_says_what_it_uses_until_it_uses_nothing_any_more():
    cluster = Cluster()
    cluster.pod("p", **{"example.com/mine": "1", names.GPUS: "0"})
    cluster.report(report(NOW_S, {"uid-p": WORKS}))
    assert cluster.says("team/p") == {
        names.POD_USAGE: {"time": NOW_S, **WORKS},
        names.POD_JOB: {"name": "a", "stage": "steady"},
    }
    cluster.report(json.dumps({"time": NOW_S + 30, "jobs": []}), NOW_S + 30)
    assert cluster.observed.pods["team/p"].metadata.annotations == {"example.com/mine": "1", names.GPUS: "0"}


@pytest.mark.parametrize(
    ("then", "job", "later_s", "is_written"),
    [
        (WORKS, {}, 30, False),
        (WORKS | {"utilisation": {"mean": 0.55}, "memoryMib": 600}, {"slowdown": 1.2}, 30, False),
        (WORKS | {"utilisation": {"mean": 0.7}}, {}, 30, True),
        (WORKS | {"gpus": [1]}, {}, 30, True),
        (WORKS, {"stage": "checkpoint"}, 30, True),
        (WORKS, {}, AGAIN_S, True),
    ],
)
def test_what_differs_by_little_is_written_again_only_after_minutes(
    then: Any, job: dict[str, str], later_s: float, is_written: bool
):
    cluster = Cluster()
    cluster.pod("p")
    cluster.report(report(NOW_S, {"uid-p": WORKS}))
    cluster.report(report(NOW_S + later_s, {"uid-p": then}, **job), NOW_S + later_s)
    assert len(cluster.written) == 1 + is_written


def test_an_operator_that_starts_writes_nothing_that_is_there():
    cluster = Cluster()
    for number in range(4):
        cluster.pod(f"p{number}")
    text = report(NOW_S, {f"uid-p{number}": WORKS for number in range(4)})
    cluster.report(text)
    cluster.annotator, cluster.written = PodAnnotator(cluster.observed, cluster._pods_on, cluster.writes), []
    cluster.report(text, NOW_S + 60)
    assert cluster.written == []


def test_an_agent_speaks_of_pods_of_its_node_alone():
    cluster = Cluster()
    cluster.pod("there", "n1")
    cluster.pod("bound-nowhere", "")
    cluster.pod("here")
    forged = {"uid-there": WORKS, "uid-bound-nowhere": WORKS, "uid-of-none": WORKS, "": WORKS, "here": WORKS}
    cluster.report(report(NOW_S, forged))
    assert cluster.written == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "x" * 10_000_000,
        "[" * 100_000,
        '{"time":1,"jobs":' * 5_000 + "1" + "}" * 5_000,
        report(NOW_S, {"uid-p": {"gpus": [0], "utilisation": {"mean": 0.5}}}).replace("0.5", "1e999"),
        report(NOW_S, {"uid-p": {"gpus": [-1]}}),
        report(NOW_S, {"uid-p": {"memoryMib": 10**400}}),
        report(NOW_S, {"uid-p": WORKS}, name="x" * 254),
        report(NOW_S, {"uid-p": {"gpus": [0] * 2000}}),
        report(NOW_S - 91, {}),
    ],
)
def test_a_report_that_is_old_or_beyond_its_bounds_says_nothing_and_holds_up_no_other_node(text: str):
    cluster = Cluster()
    cluster.pod("p", **{names.POD_USAGE: '{"gpus":[3]}'})
    cluster.pod("q", "n1")
    cluster.report(text)
    cluster.report(report(NOW_S, {"uid-q": WORKS}), NOW_S + PAUSE_S, "n1")
    assert [key for key, _ in cluster.written] == ["team/q"]


def test_what_is_written_is_no_more_than_what_was_understood():
    cluster = Cluster()
    cluster.pod("p")
    usage = WORKS | {"time": NOW_S + 1e6, "more": ["x" * 1000]}
    cluster.report(report(NOW_S + 5000, {"uid-p": usage}, more={"a": 1}))
    assert cluster.says("team/p")[names.POD_USAGE] == {"time": NOW_S, **WORKS}
    assert cluster.says("team/p")[names.POD_JOB] == {"name": "a", "stage": "steady"}


def test_what_a_tenant_wrote_instead_is_put_right_with_the_next_report():
    cluster = Cluster()
    cluster.pod("p", **{names.POD_USAGE: "[" * 1000, names.POD_JOB: '{"type":"idle"}'})
    cluster.report(report(NOW_S, {"uid-p": WORKS}))
    assert cluster.says("team/p")[names.POD_USAGE] == {"time": NOW_S, **WORKS}


def test_pods_of_namespaces_that_are_not_served_are_left_alone():
    cluster = Cluster("team")
    cluster.pod("p")
    cluster.pod("q", namespace="other")
    cluster.report(report(NOW_S, {"uid-p": WORKS, "uid-q": WORKS}))
    assert [key for key, _ in cluster.written] == ["team/p"]


def test_a_pod_that_has_ended_loses_them_and_one_that_is_gone_is_not_written():
    cluster = Cluster()
    for name in ("ends", "goes"):
        cluster.pod(name)
    cluster.report(report(NOW_S, {"uid-ends": WORKS, "uid-goes": WORKS}))
    before, cluster.written = dict(cluster.observed.pods), []
    ended = slim_pod(objects.Pod(before["team/ends"].metadata, status=objects.PodStatus(phase="Succeeded")))
    cluster.observed.pods["team/ends"] = ended
    del cluster.observed.pods["team/goes"]
    changes = (
        Change(ChangeType.MODIFIED, ended, before["team/ends"]),
        Change(ChangeType.DELETED, before["team/goes"], before["team/goes"]),
    )
    cluster.annotator.take(Changed(POD, changes), NOW_S + PAUSE_S)
    cluster.turn(NOW_S + PAUSE_S)
    assert cluster.written == [("team/ends", {names.POD_USAGE: None, names.POD_JOB: None})]


def test_thousands_of_pods_are_written_some_at_a_time_each_in_its_turn():
    cluster = Cluster()
    count = 5 * MOST_AT_ONCE
    for number in range(count):
        cluster.pod(f"p{number}", f"n{number % 2}")
    for node in range(2):
        pods = {f"uid-p{number}": WORKS for number in range(count) if number % 2 == node}
        cluster.report(report(NOW_S, pods), node=f"n{node}")
    assert len(cluster.written) == MOST_AT_ONCE
    turns = 1
    while cluster.annotator.next_s() < NOW_S + 60:
        turns += 1
        # Reports that come meanwhile send no pod to the end of the line.
        cluster.report(
            report(NOW_S, {f"uid-p{number}": WORKS for number in range(0, count, 2)}), cluster.annotator.next_s()
        )
    assert turns == 5
    assert len({key for key, _ in cluster.written}) == len(cluster.written) == count


def test_a_write_that_fails_is_made_with_the_next_report():
    cluster = Cluster()
    cluster.pod("p")
    cluster.refuses = True
    cluster.report(report(NOW_S, {"uid-p": WORKS}))
    assert cluster.written == []
    assert cluster.writes.next_s() == cluster.annotator.next_s() == math.inf  # not before: the pod may be gone
    cluster.refuses = False
    cluster.report(report(NOW_S + 30, {"uid-p": WORKS}), NOW_S + 30)
    assert len(cluster.written) == 1


def test_sharers_are_jobs_of_the_world_with_a_share_of_whose_pods_the_agent_tells():
    jobs = [make_job(name, share=Share(100)) for name in ("s", "t", "u")] + [make_job("whole")]
    placed = {"s": "n0:0", "t": "n0:0", "u": "n0:0", "whole": "n0:1"}
    world, cluster = make_world(make_nodes(2), placed, jobs), Cluster()
    pods = ["s", "t", "u", "whole", "stranger", "unseen"]
    for name in pods[:-1]:
        cluster.observed.pods[name] = objects.Pod(objects.Meta(name=name, uid=name))
    used = {"s": 0.3, "u": 7.0, "whole": 0.9, "stranger": 0.5, "unseen": 0.5}
    cluster.report(report(NOW_S, {name: {"utilisation": {"mean": mean}} for name, mean in used.items()}))

    def sharers(now_s: float) -> dict[str, float]:
        return sharers_on(world, cluster.observed, lambda node: pods, lambda pod: pod, "n0", now_s)

    assert sharers(NOW_S) == {"s": 0.3, "u": 1.0}
    assert sharers(NOW_S + 91) == {}
