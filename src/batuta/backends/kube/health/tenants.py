"""Which jobs are on a node or GPU, and which pods they are made of, as far as health cares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.tenant import is_over
from batuta.backends.kube.operator.gangs import gang_of
from batuta.backends.kube.operator.run import Run
from batuta.core.cluster import NodeName
from batuta.core.job import JobId


class Tenants:
    """Looks at the runs of the floor. For the engine's thread."""

    def __init__(self, runs: Mapping[JobId, Run], pods: Mapping[str, objects.Pod]) -> None:
        self._runs = runs
        self._pods = pods

    def named(self, owners: Iterable[str]) -> tuple[JobId, ...]:
        """The jobs that an agent means by `namespace/job/pod`; those that nobody knows are left out."""
        found: dict[JobId, None] = {}
        for owner in owners:
            namespace, _, rest = owner.partition("/")
            name, _, pod_name = rest.partition("/")
            pod = self._pods.get(f"{namespace}/{pod_name}")
            gang = str(gang_of(pod)) if pod is not None else ""
            job = next((one for one in (f"{namespace}/{name}", gang) if one in self._runs), None)
            if job is not None:
                found[job] = None
        return tuple(found)

    def owner(self, pod: objects.Pod) -> JobId | None:
        """The job that a pod is of; None for a stranger."""
        name = pod.metadata.labels.get(names.JOB_NAME, "")
        job = f"{pod.metadata.namespace}/{name}" if name else str(gang_of(pod))
        return job if job in self._runs else None

    def on(self, node: NodeName, gpu: int | None) -> tuple[JobId, ...]:
        """The jobs that have a GPU by the World's word; None: any of the node's."""
        return tuple(
            job
            for job, run in self._runs.items()
            for span in (run.wanted.spans if run.wanted is not None else ())
            if span.node == node and (gpu is None or gpu in span.gpus)
        )

    def on_nodes(self, nodes: Collection[NodeName]) -> Iterator[Run]:
        """The runs that have a place on one of these nodes, and can have another one."""
        for run in self._runs.values():
            if run.wanted is not None and any(one in nodes for one in run.wanted.nodes) and can_move(run):
                yield run

    def movable(self, job: JobId) -> Run | None:
        """A job that can begin again; None for one that is gone, or whose pods nobody would make again."""
        run = self._runs.get(job)
        return run if run is not None and can_move(run) else None


def can_move(run: Run) -> bool:
    """Whether its pods are made again when they are deleted: a pod that is nobody's would just be gone."""
    return all(
        any(owner.controller for owner in pod.metadata.owner_references) for pod in run.pods().values()
    )


def living_pods(run: Run, most: int) -> tuple[str, ...]:
    """The uids of pods that go on, and no more of them than are needed to know them again."""
    uids = (
        pod.metadata.uid
        for pod in run.pods().values()
        if not is_over(pod) and not pod.metadata.deletion_timestamp
    )
    return tuple(sorted(uids)[:most])
