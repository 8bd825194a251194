"""Who may talk to one API server: kubeconfig files with client certificates, for any user and groups."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from tests.support.kube.certificates import Authority, KeyPair, new_key, public_key

ADMINS = "system:masters"
_SERVER_NAMES = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
_SERVICE_IP = "10.0.0.1"


class Access:
    """The keys of one control plane, and kubeconfig files for whoever a test wants to be."""

    def __init__(self, folder: Path, address: str, port: int) -> None:
        self._folder = folder
        self.address, self.port = address, port
        self._authority = Authority(folder / "pki")
        self._users: dict[tuple[str, tuple[str, ...]], KeyPair] = {}
        self.server = self._authority.server("api-server", [address, "127.0.0.1", _SERVICE_IP], _SERVER_NAMES)
        self.tokens = KeyPair(folder / "pki" / "tokens.pub", folder / "pki" / "tokens.key")
        new_key(self.tokens.key)
        public_key(self.tokens.key, self.tokens.certificate)

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def ca(self) -> Path:
        return self._authority.pair.certificate

    @property
    def ca_key(self) -> Path:
        return self._authority.pair.key

    def user(self, name: str, groups: Sequence[str] = ()) -> KeyPair:
        """The client certificate of a user; the same one when asked again."""
        who = (name, tuple(groups))
        if who not in self._users:
            self._users[who] = self._authority.user(name, groups, number=len(self._users))
        return self._users[who]

    def kubeconfig(self, name: str, groups: Sequence[str] = (), namespace: str = "default") -> Path:
        """A kubeconfig file with everything in it, so that it may be copied anywhere."""
        pair = self.user(name, groups)
        cluster = {"server": self.url, "certificate-authority-data": _base64(self.ca)}
        user = {
            "client-certificate-data": _base64(pair.certificate),
            "client-key-data": _base64(pair.key),
        }
        context = {"cluster": "tests", "user": name, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "tests", "context": context}],
            "current-context": "tests",
        }
        path = self._folder / f"{pair.certificate.stem}.{namespace}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=2))  # JSON is YAML
        return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
