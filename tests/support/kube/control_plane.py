"""A real Kubernetes control plane on this machine: etcd, the API server, and what else a test needs."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support.kube.access import ADMINS
from tests.support.kube.api import Api, ApiError, Json
from tests.support.kube.flags import Options
from tests.support.kube.launch import Launch
from tests.support.kube.nodes import NodeShape, node
from tests.support.kube.processes import RunningProgram
from tests.support.kube.programs import program
from tests.support.kube.requests_seen import RequestsSeen

T = TypeVar("T")
ADMIN = "admin"
_KUBECTL_WITHIN_S = 120.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.3


class CommandFailed(Exception):
    """kubectl has ended with an error; what it said."""


class ControlPlane:
    """One control plane in one folder, from `with` to the end of its block. Tests are its administrator:

    with ControlPlane(tmp_path) as cluster:
        cluster.add_nodes(100, NodeShape(gpus=8))
        print(cluster.kubectl("get", "nodes"))
    """

    def __init__(self, folder: Path, options: Options | None = None) -> None:
        self.folder = folder
        self.options = options or Options()
        self._stack = ExitStack()
        self._namespaces = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.programs = Launch(self.folder, self.options)
            stack.callback(self.programs.stop_all)
            self.programs.start_all()
            self.access = self.programs.access
            self.requests = RequestsSeen(self.programs.audit_log)
            self.kubeconfig_path = self.kubeconfig(ADMIN, [ADMINS])
            self.api = stack.enter_context(self.api_as(ADMIN, [ADMINS]))
            self._make_service_account("default")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ----------------------------------------------------------------------------------------------- who asks

    def kubeconfig(self, user: str, groups: Sequence[str] = (), namespace: str = "default") -> Path:
        """A kubeconfig file for a user with these groups, by client certificate. RBAC says what they may."""
        return self.access.kubeconfig(user, groups, namespace)

    def api_as(self, user: str, groups: Sequence[str] = ()) -> Api:
        """A plain client for a user. To be closed."""
        pair = self.access.user(user, groups)
        return Api(self.access.address, self.access.port, self.access.ca, pair)

    def kubectl(self, *words: str | Path, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """What kubectl prints, as the administrator or as the user of another kubeconfig."""
        config = f"--kubeconfig={kubeconfig or self.kubeconfig_path}"
        # Its cache of what the server serves belongs to this control plane: ports are used again.
        cache = f"--cache-dir={self.folder / 'kubectl-cache'}"
        said = subprocess.run(
            [program("kubectl"), config, cache, *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=_KUBECTL_WITHIN_S,
        )
        if said.returncode != 0:
            raise CommandFailed(f"kubectl {' '.join(map(str, words))}:\n{said.stderr.strip()}")
        return said.stdout

    # ------------------------------------------------------------------------------------------ what is there

    def apply(self, what: str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]], *words: str) -> str:
        """Applies a manifest: a file or folder, YAML text, an object or several. Server-side."""
        command = ["apply", "--server-side", *words, "-f"]
        if isinstance(what, Path):
            return self.kubectl(*command, what)
        if not isinstance(what, str):
            objects = [what] if isinstance(what, Mapping) else what
            if not words:
                return "\n".join(map(self.api.apply, objects))  # kubectl takes a second to look around
            what = "".join(f"---\n{json.dumps(each)}\n" for each in objects)
        return self.kubectl(*command, "-", stdin=what)

    def install_crds(self, what: str | Path) -> None:
        """Applies CRDs (`modules.crds("kueue")`, or ours), and returns when their objects can be created."""
        for name in self.apply(what, "--output=name").split():
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name.rpartition('/')[2]}"
            # Not by `kubectl wait`: it gives up on an object that has no conditions yet.
            wait_until(partial(self._is, path, "Established"), f"{name} to be served")

    def new_namespace(self, name: str | None = None) -> str:
        """Makes a namespace that pods can be created in at once; its name."""
        self._namespaces += 1
        name = name or f"test-{self._namespaces}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self._make_service_account(name)
        return name

    def clear_namespace(self, name: str) -> None:
        """Ends all that runs in a namespace at once. It stays itself: to delete it is work for seconds."""
        # Trials first: they make jobs.
        own = ("trialruns", "unifiedjobs")
        for kind in (*(f"batuta.dev/v1alpha1/{{}}/{one}" for one in own), "batch/v1/{}/jobs"):
            path = f"/apis/{kind.format(f'namespaces/{name}')}"
            with suppress(ApiError):  # of a kind that nobody has defined, there is nothing
                self.api.delete(path, propagationPolicy="Background")
        self.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds=0)

    def delete_namespace(self, name: str) -> None:
        """Asks for the end of a namespace; without the controllers, only its pods and Jobs go."""
        self.api.delete(f"/api/v1/namespaces/{name}")
        if not self.options.controllers:
            for path in (f"/apis/batch/v1/namespaces/{name}/jobs", f"/api/v1/namespaces/{name}/pods"):
                self.api.delete(path, gracePeriodSeconds=0)

    def add_nodes(self, count: int, shape: NodeShape | None = None, prefix: str = "node") -> list[str]:
        """Creates fake nodes, ready as they are: `node-0`, `node-1`, … in racks and zones; their names."""
        names = [f"{prefix}-{number}" for number in range(count)]
        self.api.create_all("/api/v1/nodes", [node(name, number, shape) for number, name in enumerate(names)])
        return names

    def delete_nodes(self, names: Sequence[str]) -> None:
        """Takes nodes away as if they had never been."""
        for name in names:
            self.api.delete(f"/api/v1/nodes/{name}")

    def bind(self, namespace: str, pod: str, to: str) -> None:
        """Binds a pod to a node, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": to}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        self.api.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body)

    def pod(self, namespace: str, name: str) -> Json:
        return self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def _is(self, path: str, wanted: str) -> bool:
        """Whether an object has this condition."""
        conditions = self.api.get(path).get("status", {}).get("conditions") or []
        return any(each["type"] == wanted and each["status"] == "True" for each in conditions)

    def _make_service_account(self, namespace: str) -> None:
        """What the controllers would do, and maybe have done: a pod without a ServiceAccount is refused."""
        try:
            account = {"metadata": {"name": "default"}}
            self.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
        except ApiError as error:
            if error.status != 409:
                raise

    # ------------------------------------------------------------------------------------------------ trouble

    def pause(self) -> None:
        """Lets its programs sleep while nobody needs them: idle ones take some hundredths of a core each."""
        self.api.close()  # what is idle for long is closed by the server, at any moment after it wakes up
        self.programs.pause()

    def resume(self) -> None:
        self.programs.resume()

    def stop_api_server(self, gracefully: bool = False) -> None:
        """Takes the API server away; etcd keeps the data."""
        self.programs.stop("kube-apiserver", gracefully)

    def start_api_server(self) -> None:
        """Brings the API server back at the same address; returns when it is ready."""
        self.programs.start("kube-apiserver")

    def compact(self) -> int:
        """Makes etcd forget all revisions but the present one; its number.

        The API server still answers watches from its own memory, which reaches back a while; `forget_history`
        takes that away too.
        """
        revision = int(self._etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"])
        self._etcd("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def forget_history(self) -> None:
        """Compacts etcd and restarts the API server: a watch from any earlier version is 410 Gone."""
        self.compact()
        self.stop_api_server()
        self.start_api_server()

    def describe(self) -> str:
        """Where its logs are, and the last words of a program that has ended by itself."""
        ended = [each.last_words() for each in self.programs.ended()] if hasattr(self, "programs") else []
        return "\n".join([f"logs: {self.folder}/*.log", *ended])

    def run(self, name: str, *words: str) -> RunningProgram:
        """Runs one more program beside the control plane: an operator, say. It ends with it, or before."""
        return self.programs.run(name, words)

    def _etcd(self, path: str, body: Mapping[str, Any]) -> Json:
        request = urllib.request.Request(f"{self.programs.etcd_url}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def wait_until(look: Callable[[], T], what: str, within_s: float = 120.0, pause_s: float = _PAUSE_S) -> T:
    """Looks until there is something, and returns it; what was waited for is in the complaint.

    What takes longer is looked for less often, by a tenth of the time that has passed: a look is work for the server.
    """
    began = time.monotonic()
    while True:
        if found := look():
            return found
        waited_s = time.monotonic() - began
        if waited_s > within_s:
            raise AssertionError(f"waited {within_s} s for {what}; last seen: {found!r}")
        time.sleep(max(pause_s, min(waited_s / 10, _LONGEST_PAUSE_S)))
