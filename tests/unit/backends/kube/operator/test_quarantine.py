"""An object that the operator cannot understand is set aside; all others are served."""

import asyncio
import math
import time
from typing import Any, cast

import msgspec

from batuta.backends.kube import names
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Invalid
from batuta.backends.kube.operator.quarantine import CONDITION
from batuta.backends.kube.operator.workqueue import Changed, Inbox, WriteWorkers, Written
from batuta.backends.kube.unified_job.model import UNIFIED_JOB
from batuta.bootstrap.operator_api import operator_metrics
from tests.support.kube.object_fuzz import NAMESPACE
from tests.support.kube.offline_cluster import OfflineCluster, leading, run_jobs
from tests.support.kube.pods import make_pod
from tests.support.kube.unified import manifest

DIGITS = "1" * 4_301


def raw(body: dict[str, Any], **metadata: Any) -> bytes:
    own = {"namespace": NAMESPACE, "uid": body["metadata"]["name"], "creationTimestamp": "2026-01-01T00:00:00Z"}
    return msgspec.json.encode(body | {"metadata": body["metadata"] | own | metadata})


def test_annotations_that_make_no_sense_end_no_engine_and_not_the_next_one(tmp_path):
    """Pods with GPUs of thousands of digits, and jobs that save every 1e999 seconds, beside jobs that want to run."""
    pods = []
    for number, said in enumerate((DIGITS, f"0,{DIGITS}", "1,2,3,4,5,6,7", "²")):
        pod = make_pod(f"odd-{number}", annotations={names.GPUS: said})
        pod["spec"]["nodeName"] = "node-0"
        pods.append(raw(pod))
    odd = ("1e999", "1e300", "-1", "9" * 400)
    for start in range(2):
        cluster = OfflineCluster(tmp_path, nodes=1)
        cluster.show(kinds.POD, pods)
        with leading(cluster, tmp_path) as leader:
            for number, said in enumerate(odd):
                cluster.submit(f"odd-{start}-{number}", annotations={names.CHECKPOINT: said})
            # Four pods of one GPU each leave four, whatever they say.
            run_jobs(cluster, leader, [f"good-{start}"], within_s=60, gpus=4)
            ended = leader.cycles.schedule.ended
            wait(lambda ended=ended: ended["SUCCEEDED"] >= len(odd) + 1)


def test_an_object_that_cannot_be_decoded_has_an_event_a_condition_and_is_counted(tmp_path):
    cluster = OfflineCluster(tmp_path, nodes=1)
    with leading(cluster, tmp_path) as leader:
        cluster.show(kinds.POD, [raw(make_pod("bad"), labels={"a": 7})])
        run_jobs(cluster, leader, ["good"], within_s=60)
        wait(lambda: cluster.events and cluster.conditions)
        event = next(one for one in cluster.events if one["reason"] == "NotUnderstood")
        assert event["regarding"]["name"] == "bad"
        assert "Expected `str`, got `int`" in event["note"]
        assert (cluster.conditions[0]["type"], cluster.conditions[0]["object"]) == (CONDITION, "bad")
        assert 'batuta_quarantined_objects{kind="Pod"} 1.0' in operator_metrics(leader, 0)


def test_an_object_that_is_understood_again_is_counted_no_longer(tmp_path, caplog):
    cluster = OfflineCluster(tmp_path, nodes=1)
    with leading(cluster, tmp_path) as leader:
        for _ in range(3):
            cluster.show(kinds.POD, [raw(make_pod("bad"), labels={"a": 7})])
        run_jobs(cluster, leader, ["good"], within_s=60)
        told = [one for one in caplog.records if "fuzz/bad is not understood" in one.message]
        assert len(told) == 1  # and not with every list
        cluster.show(kinds.POD, [raw(make_pod("bad"), labels={"a": "7"})])
        quarantine = leader.backend.reconciler.quarantine
        wait(lambda: not quarantine)
        assert dict(quarantine.total()) == {"Pod": 1}


class Picky:
    """A controller that fails at one pod, as one with a fault of ours would, and counts the others."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def take(self, changed: Changed, now_s: float) -> None:
        for change in changed.changes:
            if change.object.metadata.name == "bad":
                raise ZeroDivisionError("one of ours")
            self.taken.add(change.object.metadata.name)

    def heard(self, written: Written, now_s: float) -> None: ...

    def drive(self, now_s: float) -> None: ...

    def next_s(self) -> float:
        return math.inf


def test_a_fault_of_ours_with_one_object_costs_no_other_its_turn(tmp_path):
    """Pods come in one message; one of them cannot be taken in, and is set aside; the others behind it are taken."""
    cluster, picky = OfflineCluster(tmp_path, nodes=1), Picky()
    with leading(cluster, tmp_path) as leader:
        leader.backend.reconciler.controllers.insert(0, picky)
        cluster.show(kinds.POD, [raw(make_pod(name)) for name in ("a", "bad", "z")])
        run_jobs(cluster, leader, ["good"], within_s=60)
        wait(lambda: {"a", "z", "good-0"} <= picky.taken)
        wait(lambda: any(one["regarding"]["name"] == "bad" for one in cluster.events))
        assert 'batuta_quarantined_objects{kind="Pod"} 1.0' in operator_metrics(leader, 0)


def test_an_object_that_is_too_deep_costs_no_other_its_turn(tmp_path):
    cluster = OfflineCluster(tmp_path, nodes=1)
    deep: Any = {}
    for _ in range(400):  # more than recursion over its template can stand, and less than a decoder refuses
        deep = {"a": deep}
    with leading(cluster, tmp_path) as leader:
        bodies = [manifest("deep", "Pods", pod={}, replica_spec={"template": {"spec": {"containers": [{"x": deep}]}}})]
        bodies += [manifest("good", "Pods")]
        cluster.show(UNIFIED_JOB, [raw(body) for body in bodies])
        run_jobs(cluster, leader, ["beside"], within_s=60)


def test_a_write_that_cannot_be_encoded_fails_alone():
    """A template may be too deep for the operator's encoder: the same worker does the next write."""

    async def too_deep(api: Api) -> None:
        body: Any = []
        for _ in range(5_000):
            body = [body]
        msgspec.json.encode(body)

    async def sound(api: Api) -> None:
        """Does nothing."""

    async def write() -> list[Any]:
        inbox = Inbox(gather_s=0.0)
        workers = WriteWorkers(cast(Api, None), inbox, hands=1)
        running = asyncio.create_task(workers.run())
        await asyncio.sleep(0)
        workers.post([("deep", too_deep), ("sound", sound)])
        answers: list[Any] = []
        while len(answers) < 2:
            answers += await asyncio.to_thread(inbox.take, 0.1)
            assert not running.done()
        running.cancel()
        return answers

    deep, done = asyncio.run(write())
    assert isinstance(deep.error, Invalid)
    assert (done.key, done.error) == ("sound", None)


def wait(look: Any, within_s: float = 30.0) -> None:
    give_up_s = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
