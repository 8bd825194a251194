"""UnifiedJobs in a namespace of a real cluster: made by a test, and watched from the API server's side."""

from dataclasses import dataclass
from typing import Any

from batuta.backends.kube import names
from tests.support.kube.api import ApiError, Json
from tests.support.kube.control_plane import ControlPlane, wait_until

Places = dict[str, tuple[str, str]]


def manifest(
    name: str,
    job_type: str = "TorchElastic",
    replicas: int | tuple[int, int] = 1,
    gpus: int = 1,
    annotations: dict[str, str] | None = None,
    pod: dict[str, Any] | None = None,
    replica_spec: dict[str, Any] | None = None,
    **spec: Any,
) -> Json:
    """A UnifiedJob; `replicas` is its size, or its smallest and largest. `pod`: how KWOK treats its pods."""
    least, most = replicas if isinstance(replicas, tuple) else (replicas, replicas)
    told = {f"tests.batuta.dev/{key.replace('_', '-')}": str(value) for key, value in (pod or {}).items()}
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": told},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "jobType": job_type,
            "replicaSpec": {
                "minReplicas": least,
                "maxReplicas": most,
                "gpusPerReplica": gpus,
                # Fake pods never say that they save, and most tests are about resizes.
                "restartable": True,
                "template": template,
                **(replica_spec or {}),
            },
            **spec,
        },
    }


class Jobs:
    """The UnifiedJobs of one namespace."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self.cluster, self.namespace, self.api = cluster, namespace, cluster.api
        self.path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"

    def submit(self, name: str, job_type: str = "TorchElastic", **how: Any) -> "Submitted":
        """See `manifest`."""
        return self.create(manifest(name, job_type, **how))

    def create(self, body: Json) -> "Submitted":
        self.api.create(self.path, body)
        return Submitted(self, body["metadata"]["name"])

    def accepts(self, body: Json) -> bool:
        """Whether the API server would take this, which is not stored."""
        head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "accepted"}}
        try:
            self.api.create(f"{self.path}?dryRun=All", head | body)
        except ApiError as error:
            if error.status != 422:
                raise
            return False
        return True

    def pods(self, job: str) -> dict[str, Json]:
        found = self.api.items(self.pods_path, labelSelector=f"{names.JOB_NAME}={job}")
        return {pod["metadata"]["name"]: pod for pod in found}


@dataclass(frozen=True)
class Submitted:
    """One UnifiedJob, and everything that it has in the cluster."""

    jobs: Jobs
    name: str

    @property
    def path(self) -> str:
        return f"{self.jobs.path}/{self.name}"

    def get(self) -> Json:
        return self.jobs.api.get(self.path)

    def patch(self, body: Json) -> Json:
        return self.jobs.api.patch(self.path, body)

    @property
    def status(self) -> Json:
        return self.get().get("status", {})

    @property
    def state(self) -> str:
        return self.status.get("state", "")

    def condition(self, kind: str) -> Json:
        """What is said of one condition; empty when nothing is."""
        return next((one for one in self.status.get("conditions", ()) if one["type"] == kind), {})

    def pods(self) -> dict[str, Json]:
        return self.jobs.pods(self.name)

    def workers(self) -> dict[str, Json]:
        """Pods that hold GPUs and are not on their way out."""
        return {
            name: pod
            for name, pod in self.pods().items()
            if pod["metadata"]["labels"][names.ROLE] == "worker"
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] not in ("Succeeded", "Failed")
        }

    def running(self) -> dict[str, str]:
        """Workers that run: their uids."""
        return _running(self.workers())

    def places(self) -> Places:
        """By worker that has a node: the node, and the GPUs that it was given; none by somebody else."""
        return {
            name: (pod["spec"]["nodeName"], pod["metadata"].get("annotations", {}).get(names.GPUS, ""))
            for name, pod in self.workers().items()
            if pod["spec"].get("nodeName")
        }

    def starts(self) -> set[str]:
        return {pod["metadata"]["labels"][names.START] for pod in self.workers().values()}

    def reaches(self, *states: str, within_s: float = 60.0) -> Json:
        """Waits for one of these states; the status then."""

        def look() -> Json:
            status = self.status
            return status if status.get("state") in states else {}

        try:
            return wait_until(look, f"{self.name} to be {' or '.join(states)}", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status}") from None

    def runs_with(self, replicas: int, within_s: float = 60.0) -> dict[str, str]:
        """Waits until so many workers run, and the job says so; their uids by name."""

        def look() -> dict[str, str]:
            workers = self.workers()
            found = _running(workers)
            if not len(workers) == len(found) == replicas:
                return {}  # the job itself need not be asked
            status = self.status
            return found if status.get("readyReplicas") == replicas and status["state"] == "RUNNING" else {}

        try:
            return wait_until(look, f"{self.name} to run with {replicas}", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status}, pods {self.running()}") from None

    def is_gone(self) -> bool:
        try:
            self.get()
        except ApiError as error:
            return error.status == 404
        return False

    def events(self) -> dict[str, list[str]]:
        """What `kubectl describe` tells people: notes by reason."""
        found: dict[str, list[str]] = {}
        path = f"/apis/events.k8s.io/v1/namespaces/{self.jobs.namespace}/events"
        for event in self.jobs.api.items(path):
            about = event["regarding"]
            if about["kind"] == names.KIND and about["name"] == self.name:
                found.setdefault(event["reason"], []).append(event["note"])
        return found


def _running(workers: dict[str, Json]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in workers.items() if pod["status"]["phase"] == "Running"}
