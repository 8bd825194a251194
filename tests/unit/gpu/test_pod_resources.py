"""The kubelet's podresources interface: over a real unix socket, with a server of the same protocol."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batuta.gpu.pod_owners import (
    LIST_METHOD,
    ContainerDevices,
    ContainerResources,
    KubeletUnavailable,
    PodResources,
    PodResourcesList,
    assigned_gpus,
    query_kubelet,
)
from batuta.gpu.protobuf import encode

grpc = pytest.importorskip("grpc")


def pod(name: str, *devices: str, resource: str = "nvidia.com/gpu") -> PodResources:
    own = (ContainerDevices(resource, devices),) if devices else ()
    return PodResources(name, "team", (ContainerResources("main", own), ContainerResources("sidecar")))


class Kubelet:
    """Answers List with whatever bytes it is given."""

    def __init__(self, socket: Path) -> None:
        self.answer = b""
        self.asked: list[bytes] = []
        self._server = grpc.server(ThreadPoolExecutor(1))
        service, method = LIST_METHOD.strip("/").split("/")
        handler = grpc.unary_unary_rpc_method_handler(self._list)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self._server.add_insecure_port(f"unix://{socket}")
        self._server.start()

    def _list(self, request: bytes, context: Any) -> bytes:
        self.asked.append(request)
        return self.answer

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def kubelet(socket: Path) -> Iterator[Kubelet]:
    running = Kubelet(socket)
    yield running
    running.stop()


def test_the_kubelet_tells_who_has_which_gpu(kubelet: Kubelet, socket: Path):
    kubelet.answer = encode(PodResourcesList((pod("a", "GPU-1", "GPU-2"), pod("b", "GPU-3"), pod("c"))))
    assert query_kubelet(socket) == {
        "GPU-1": ("team", "a"),
        "GPU-2": ("team", "a"),
        "GPU-3": ("team", "b"),
    }
    assert kubelet.asked == [b""]


def test_an_answer_that_is_none_is_said_so(kubelet: Kubelet, socket: Path):
    kubelet.answer = b"\x0a\xff"
    with pytest.raises(KubeletUnavailable, match="cannot be read"):
        query_kubelet(socket)


def test_without_a_kubelet_that_is_said(socket: Path):
    with pytest.raises(KubeletUnavailable, match="does not answer"):
        query_kubelet(socket, within_s=1.0)


def test_a_gpu_that_several_pods_share_belongs_to_none_of_them():
    shared = PodResourcesList((pod("a", "GPU-1::0"), pod("b", "GPU-1::1"), pod("c", "GPU-2::0", "GPU-2::1")))
    assert assigned_gpus(shared) == {"GPU-2": ("team", "c")}


def test_other_devices_are_no_gpus():
    assert assigned_gpus(PodResourcesList((pod("a", "mlx5_0", resource="rdma/hca"), pod("b", "MIG-7")))) == {}
