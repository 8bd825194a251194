"""`batuta operator` as a real process, which a test may kill at any moment and start again."""

import shutil
import ssl
import time
import urllib.request
from pathlib import Path
from typing import Any
from weakref import WeakSet

import yaml

from tests.support.chart import operator_config_of, rights_of, tls_objects_of
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.ports import free_ports
from tests.support.kube.processes import Guard, RunningProgram
from tests.support.server_process import BATUTA

CRD = Path(__file__).parents[3] / "deploy/helm/batuta/crds/unifiedjobs.batuta.dev.yaml"
NAMESPACE = "batuta-system"
RELEASE = "tested"
CALM_S, CALM_REQUESTS, CALM_CPU_S = 2.0, 8, 0.5
"""In so long there are no more requests than this, and no more CPU time is used, …"""
CALM_WITHIN_S = 20.0
"""… after no longer than this: what has just happened may still have to be dealt with."""
USER = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-operator"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")


class OperatorProcess:
    """One operator on a cluster. Its state directory outlives it, unless `forget` is called."""

    def __init__(
        self,
        cluster: ControlPlane,
        folder: Path,
        *,
        kubeconfig: Path | None = None,
        elect: bool = False,
        identity: str = "one",
        tls: bool = False,
        program: Path | None = None,
        descriptors: int | None = None,
        **config: Any,
    ) -> None:
        """`config` is what its configuration file says.

        With `tls` it shares its certificate as the chart says, which `grant` has to have made place for, and looks
        at it every second. It is forked, which saves the seconds of its imports, unless it is to be another `program`
        or to have so many `descriptors`.
        """
        self.cluster = cluster
        self.folder = folder
        (self.port,) = free_ports(1)
        self._kubeconfig = kubeconfig or cluster.kubeconfig("operator", ["system:masters"])
        self._elect = elect
        self._identity = identity
        self._program = program
        self._guard = Guard()
        self._config = folder / f"{identity}.yaml"
        self._descriptors = descriptors
        api: dict[str, Any] = {"listen": "127.0.0.1", "port": self.port}
        if tls:
            chart = yaml.safe_load(operator_config_of({"fullnameOverride": RELEASE}, NAMESPACE))
            api["tls"] = chart["api"]["tls"] | {"refreshSeconds": 1}
        api |= config.pop("api", {})
        self.url = f"http{'s' if tls else ''}://{api['listen']}:{api['port']}"
        own = {
            "api": api,
            "queueFiles": f"{RELEASE}-queues",
            # First come, first served: tests know who runs, whichever policy is the default.
            "policy": "elastic-fifo",
        }
        self._config.write_text(yaml.safe_dump(own | config))
        self.program: RunningProgram | None = None

    def __enter__(self) -> "OperatorProcess":
        self.start(wait=not self._elect)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(gracefully=True)
        self._guard.close()

    @property
    def log(self) -> Path:
        return self.folder / f"{self._identity}.log"

    def start(self, wait: bool = True) -> None:
        """Starts it; returns when it leads."""
        words = ["operator", "--config", str(self._config), "--kubeconfig", str(self._kubeconfig)]
        words += ["--state-dir", str(self.folder / f"{self._identity}-state"), "--namespace", NAMESPACE]
        words += ["--identity", self._identity]
        words += ["--leader-election" if self._elect else "--no-leader-election"]
        if self._program is None and self._descriptors is None:
            self.program = self._guard.fork_batuta(words, self.log)
        else:
            limited = f'ulimit -n {self._descriptors or "$(ulimit -n)"} && exec "$0" "$@"'
            words = ["-c", limited, str(self._program or BATUTA), *words]
            self.program = self._guard.start(Path("/bin/sh"), words, self.log)
        if wait:
            self.wait_until_leading()

    def wait_until_leading(self, within_s: float = 60.0) -> None:
        wait_until(lambda: self.leads, f"{self._identity} to lead; {self.log}", within_s)

    def check(self) -> None:
        """Raises if it has ended by itself."""
        assert self.program is not None
        self.program.check()

    def kill(self, gracefully: bool = False) -> None:
        """Ends it, by SIGKILL unless told otherwise."""
        if self.program is not None:
            self.program.stop(gracefully)
            self.program = None

    def forget(self) -> None:
        """Loses its journal, as a pod does without a volume."""
        shutil.rmtree(self.folder / f"{self._identity}-state", ignore_errors=True)

    @property
    def leads(self) -> bool:
        self.check()
        return self.metrics().get("batuta_operator_leader") == 1

    def assert_calm(self) -> None:
        """Nothing happens, so it soon does next to nothing: few requests, little CPU time."""
        give_up_s = time.monotonic() + CALM_WITHIN_S
        while True:
            self.check()
            assert self.program is not None
            mark, cpu_s = self.cluster.requests.mark(), self.program.cpu_s()
            time.sleep(CALM_S)
            asked, used_s = self.cluster.requests.count(mark, USER), self.program.cpu_s() - cpu_s
            if asked.total() <= CALM_REQUESTS and used_s <= CALM_CPU_S:
                return
            assert time.monotonic() < give_up_s, (asked, used_s)

    def metrics(self) -> dict[str, float]:
        """What it tells Prometheus; empty while nobody answers."""
        try:
            with self.ask("/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        # A label may have blanks in it; the value has none.
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def ask(self, path: str) -> Any:
        """An answer to a request without a token; a URLError for a refusal."""
        context = None
        if self.url.startswith("https"):
            context = ssl.create_default_context(cadata=published_authority(self.cluster) or None)
        return urllib.request.urlopen(self.url + path, timeout=5, context=context)


def published_authority(cluster: ControlPlane) -> str:
    """The certificate of the authority that clients are told of; empty while there is none."""
    found = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{RELEASE}-ca")
    text: str = found.get("data", {}).get("ca.crt", "")
    return text


_prepared: WeakSet[ControlPlane] = WeakSet()


def prepare(cluster: ControlPlane) -> None:
    """What an operator needs of a cluster, once: the definitions of its kinds, and its own namespace."""
    if cluster not in _prepared:
        cluster.install_crds(CRD.parent)
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        _prepared.add(cluster)


def grant(cluster: ControlPlane, **values: Any) -> Path:
    """Gives an account what the chart gives the operator's, and a place for its certificate; its kubeconfig."""
    own = {"fullnameOverride": RELEASE, "rbac": {"userRoles": False}} | values
    cluster.apply([*rights_of(own, NAMESPACE), *tls_objects_of(own, NAMESPACE)])
    # The authorizer watches roles, and hears of them a moment later.
    wait_until(lambda: _may_bind(cluster, values.get("namespaces", [NAMESPACE])[0]), "the rights to hold")
    return cluster.kubeconfig(USER, GROUPS, NAMESPACE)


def _may_bind(cluster: ControlPlane, namespace: str) -> bool:
    """Whether the account has the right that is the last of its rules to be heard of."""
    what = {"verb": "create", "resource": "pods", "subresource": "binding", "namespace": namespace}
    review = {"spec": {"user": USER, "groups": GROUPS, "resourceAttributes": what}}
    answer = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def refused(cluster: ControlPlane, mark: int) -> list[tuple[str, str, str, str]]:
    """What the operator was not allowed to do since a mark.

    Not while an API server starts: before it says that it is ready, it does not know its own rules.
    """
    asked = cluster.requests.since(mark, USER)
    assert asked
    starts = cluster.programs.starts["kube-apiserver"]
    return [
        (one.verb, one.resource, one.namespace, one.name)
        for one in asked
        if one.is_forbidden and not any(begun_s <= one.at_s <= ready_s for begun_s, ready_s in starts)
    ]
