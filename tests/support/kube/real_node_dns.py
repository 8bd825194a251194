"""The names of pods behind headless Services, for pods of a real node: a name server of a few lines.

What CoreDNS does with EndpointSlices: `HOSTNAME.SERVICE.NAMESPACE.svc.DOMAIN` is the address of a pod. It
asks the API server for each question, so it needs no state; it is asked a few times per job.
"""

import socket
import struct
import threading
from contextlib import suppress
from typing import Self

from tests.support.kube.api import Api, ApiError
from tests.support.kube.real_node_config import DOMAIN

_HEADER = struct.Struct("!HHHHHH")
_ANSWER = struct.Struct("!HHHIH4s")
_IS_RESPONSE, _NO_SUCH_NAME = 0x8180, 0x8183
_POINTER_TO_QUESTION = 0xC00C
_TYPE_A, _CLASS_IN, _TTL_S = 1, 1, 0
_PORT = 53


class PodNames:
    """Answers at one address, from `with` to the end of its block."""

    def __init__(self, api: Api, address: str) -> None:
        self._api, self._address = api, address

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self._address, _PORT))
        self._thread = threading.Thread(target=self._serve, name="pod-names", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing does not wake a thread that reads; a message of no length does.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", (self._address, _PORT))
        self._thread.join(30)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, asker = self._socket.recvfrom(512)
            if not query:
                return
            with suppress(struct.error, IndexError, UnicodeDecodeError, OSError):
                self._socket.sendto(self._answer(query), asker)

    def _answer(self, query: bytes) -> bytes:
        number, *_ = _HEADER.unpack_from(query)
        name, end = _question(query)
        kind, _ = struct.unpack_from("!HH", query, end)
        addresses = self._look_up(name)
        flags = _IS_RESPONSE if addresses else _NO_SUCH_NAME
        # The name is there although it has no address of another kind: an answer without any.
        told = addresses if kind == _TYPE_A else []
        answers = [
            _ANSWER.pack(_POINTER_TO_QUESTION, _TYPE_A, _CLASS_IN, _TTL_S, 4, socket.inet_aton(each)) for each in told
        ]
        head = _HEADER.pack(number, flags, 1, len(answers), 0, 0)
        return head + query[_HEADER.size : end + 4] + b"".join(answers)

    def _look_up(self, name: str) -> list[str]:
        match name.removesuffix(f".svc.{DOMAIN}").split("."):
            case [host, service, namespace] if name.endswith(f".svc.{DOMAIN}"):
                return self._addresses(namespace, service, host)
        return []

    def _addresses(self, namespace: str, service: str, host: str) -> list[str]:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        try:
            slices = self._api.items(path, labelSelector=f"kubernetes.io/service-name={service}")
        except ApiError:
            return []
        return [
            address
            for each in slices
            for endpoint in each["endpoints"] or ()
            if endpoint.get("hostname") == host
            for address in endpoint["addresses"]
        ]


def _question(query: bytes) -> tuple[str, int]:
    """The name that is asked for, and where it ends."""
    labels, at = [], _HEADER.size
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1
