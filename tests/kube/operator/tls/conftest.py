"""What others see of the certificate that operators share."""

import base64
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.operator_process import NAMESPACE, RELEASE, published_authority

NAME = f"{RELEASE}.{NAMESPACE}.svc"
"""By which operators and Prometheus know the certificate."""


@dataclass(frozen=True)
class Shared:
    """The Secret of the release."""

    cluster: ControlPlane
    folder: Path

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/secrets/{RELEASE}-tls"

    def data(self) -> dict[str, bytes]:
        found = self.cluster.api.get(self.path).get("data") or {}
        return {name: base64.b64decode(text) for name, text in found.items()}

    def write(self, data: dict[str, bytes] | None) -> None:
        """Replaces what is in it."""
        encoded = {name: base64.b64encode(pem).decode() for name, pem in (data or {}).items()}
        self.cluster.api.patch(self.path, {"data": dict.fromkeys(self.data()) | encoded})

    def ca_file(self) -> Path:
        """A file with the published authority."""
        path = self.folder / "ca.crt"
        path.write_text(published_authority(self.cluster))
        return path

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file()))


def shown_by(host: str, port: int, trust: ssl.SSLContext | None = None) -> bytes:
    """The certificate that a server shows; with `trust` an ssl.SSLError if it is not believed to be an operator's."""
    context = trust
    if context is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, port), 5) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as secured,
    ):
        return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"").encode()


@pytest.fixture
def shared(prepared: ControlPlane, tmp_path: Path) -> Shared:
    return Shared(prepared, tmp_path)
