"""Nodes whose GPUs can only be had in shares, as the World knows them."""

from __future__ import annotations

import json
from typing import Any

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.pod_class import read_class
from batuta.backends.kube.operator.gangs import job_of
from batuta.backends.kube.operator.nodes import read_node
from batuta.backends.kube.unified_job.to_job import to_job
from batuta.core.cluster import Node, tolerates
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import Job, Share
from batuta.core.plan import Start
from batuta.placement import TopologyPlacer
from batuta.policies.fifo import ElasticFifo
from tests.support.unified_jobs import unified_job
from tests.support.worlds import NOW_S, make_world

CARDS = json.dumps([{"index": 0, "memory": 60, "compute": 150}, {"index": 1, "memory": 60, "illness": "Xid 79"}])


HAS = {names.SHARE_MEMORY: "120", names.SHARE_COMPUTE: "300", "cpu": "8"}
NOTHING = {"cpu": "8"}


def shared(allocatable: dict[str, str] = HAS, capacity: dict[str, str] = HAS) -> Node | None:
    meta = objects.Meta(name="n", annotations={names.CARDS: CARDS})
    status = objects.NodeStatus(allocatable=allocatable, capacity=capacity)
    return read_node(objects.Node(metadata=meta, status=status), None, names.GPU_RESOURCES)


def pod(**limits: str) -> Any:
    asked = {name.replace("_", "-").replace("batuta-", "batuta.dev/"): n for name, n in limits.items()}
    container = objects.Container(name="main", resources=objects.Resources(requests=asked, limits=asked))
    return objects.Pod(metadata=objects.Meta(name="p"), spec=objects.PodSpec(containers=[container]))


def test_the_world_counts_cards_and_not_units() -> None:
    found = shared()
    assert found is not None
    assert (found.gpus, found.gpu_memory_mib) == (2, 60 * 256)


def test_a_node_whose_plugin_restarts_is_not_lost() -> None:
    """Given a kubelet that offers nothing for a while, what runs there is not thought to be gone."""
    restarting, gone = shared(allocatable=NOTHING), shared(allocatable=NOTHING, capacity=NOTHING)
    assert restarting is not None
    assert restarting.gpus == 2
    assert gone is not None
    assert (gone.gpus, gone.gpu_type) == (0, "")


def test_only_jobs_with_a_share_may_go_there() -> None:
    found = shared()
    assert found is not None
    share, whole = pod(batuta_gpu_memory="4"), pod(cpu="1")
    jobs = [job_of("j", one, read_class(one), 1) for one in (share, whole)]
    (taint,) = found.taints
    assert [tolerates(job.tolerations, taint) for job in jobs] == [True, False]


def test_a_pod_says_itself_whether_its_share_is_soft_and_what_it_runs():
    """Without the annotation a share is hard; its application is that of its label, for its name is new."""
    hard = pod(batuta_gpu_memory="4", batuta_gpu_compute="30")
    soft = pod(batuta_gpu_memory="4", batuta_gpu_compute="30")
    soft.metadata.annotations = {names.SHARE_LIMITS: "soft"}
    soft.metadata.labels = {names.APPLICATION: "notebook"}
    jobs = [job_of("j", one, read_class(one), 1) for one in (hard, soft)]
    assert [job.share for job in jobs] == [Share(1024, 30), Share(1024, 30, soft=True)]
    assert [job.application for job in jobs] == ["", "notebook"]


def test_jobs_with_a_share_go_nowhere_else():
    """Given nodes that have whole GPUs only, a share is not sent there: nobody would hold it to it."""
    shares = shared()
    assert shares is not None
    status = objects.NodeStatus(allocatable={"nvidia.com/gpu": "8"}, capacity={"nvidia.com/gpu": "8"})
    whole = read_node(objects.Node(metadata=objects.Meta(name="w"), status=status), None, names.GPU_RESOURCES)
    assert whole is not None
    jobs = [job_of(str(k), one, read_class(one), 1) for k, one in enumerate((pod(batuta_gpu_memory="4"),) * 2)]
    unified = to_job(unified_job(replicas={"maxReplicas": 1}, sharing={"gpuMemory": "1Gi"}), {})
    assert isinstance(unified, Job)
    world = make_world([whole, shares], {}, [*jobs, unified])
    decided = decide(world, NOW_S, SchedulerProfile(ElasticFifo(), TopologyPlacer())).commands
    assert {one.placement.spans[0].node for one in decided if isinstance(one, Start)} == {"n"}
    assert len(decided) == 3
