"""A real node on this machine: the kubelet, containerd and runc, with pods that are real processes.

It needs root, and Debian's `containerd`, `runc` and `containernetworking-plugins`. There is no kube-proxy;
names of pods are answered by the test itself. It has no GPUs: their number is written into its status, as for
any resource that no device plugin looks after. So what is scheduled is real, the device is not, and the node
says so by a label.
"""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import GPU
from tests.support.kube.programs import program
from tests.support.kube.real_node_config import RUNTIME_SOCKET, NodeConfig
from tests.support.kube.real_node_dns import PodNames
from tests.support.kube.real_node_enclosure import Enclosure, why_no_enclosure

VIRTUAL_GPUS = "tests.batuta.dev/virtual-gpus"
"""The label of a node whose GPUs are a number and nothing else."""
_CNI_FOLDERS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
_CNI_PROGRAMS = ("bridge", "host-local", "loopback")
_ON_PATH = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "ldd": "libc-bin",
}
"""Programs, and the Debian packages that have them."""


def why_no_node() -> str | None:
    """One line that says why this machine can have no real node; None if it can."""
    missing = {package for name, package in _ON_PATH.items() if shutil.which(name) is None}
    if _cni_programs() is None:
        missing.add("containernetworking-plugins")
    return f"it needs apt-get install {' '.join(sorted(missing))}" if missing else why_no_enclosure()


def _cni_programs() -> Path | None:
    return next((path for path in _CNI_FOLDERS if all((path / name).is_file() for name in _CNI_PROGRAMS)), None)


class RealNode:
    """One node of a control plane that listens at the enclosure's gateway, from `with` to the end of it."""

    name = "real-node"

    def __init__(self, cluster: ControlPlane, enclosure: Enclosure, archive: Path, image: str, gpus: int) -> None:
        self._cluster, self._enclosure = cluster, enclosure
        self._archive, self.image, self.gpus = archive, image, gpus
        self.folder = enclosure.folder

    def __enter__(self) -> Self:
        programs = _cni_programs()
        assert programs is not None, why_no_node()
        inside = self._enclosure
        self._config = NodeConfig(
            folder=self.folder,
            network=inside.network,
            address=str(inside.address),
            dns=str(inside.gateway),
            cgroup=inside.cgroup,
            cni_programs=programs,
            image=self.image,
        )
        self._config.write()
        with ExitStack() as stack:
            stack.enter_context(PodNames(self._cluster.api, str(inside.gateway)))
            self._start_runtime()
            self._start_kubelet()
            self._give_gpus()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def restart_kubelet(self) -> None:
        """Kills the kubelet and starts it again; containers go on meanwhile."""
        self._kubelet.stop()
        self._start_kubelet()

    def _start_runtime(self) -> None:
        inside = self._enclosure
        words = ["--config", str(self._config.runtime_path)]
        running = inside.start(_on_path("containerd"), words, self.folder / "containerd.log")

        def is_ready() -> bool:
            running.check()
            return inside.path(RUNTIME_SOCKET).exists()

        wait_until(is_ready, "containerd to listen")
        inside.run("ctr", f"--address={RUNTIME_SOCKET}", "--namespace=k8s.io", "images", "import", self._archive)

    def _start_kubelet(self) -> None:
        user = self._cluster.kubeconfig(f"system:node:{self.name}", ["system:nodes"])
        words = [
            f"--config={self._config.kubelet_path}",
            f"--kubeconfig={user}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._enclosure.address}",
            f"--node-labels={VIRTUAL_GPUS}=true",
        ]
        running = self._enclosure.start(program("kubelet"), words, self.folder / "kubelet.log")
        self._kubelet = running

        def is_ready() -> bool:
            running.check()
            found = self._cluster.api.items("/api/v1/nodes")
            conditions = [each for node in found for each in node["status"].get("conditions", ())]
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

        try:
            wait_until(is_ready, "the node to be ready")
        except AssertionError as error:
            raise AssertionError(f"{error}; {running.last_words()}") from None

    def _give_gpus(self) -> None:
        has = {GPU: str(self.gpus)}
        path = f"/api/v1/nodes/{self.name}/status"
        self._cluster.api.patch(path, {"status": {"capacity": has, "allocatable": has}})


def _on_path(name: str) -> Path:
    found = shutil.which(name)
    assert found is not None, why_no_node()
    return Path(found)
