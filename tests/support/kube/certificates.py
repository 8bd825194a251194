"""A certificate authority of one control plane, by the `openssl` program: servers, users, token keys."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CURVE = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
_DAYS = "30"


class NoOpenSsl(Exception):
    """There is no `openssl` on this machine."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates that one API server believes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self.pair = KeyPair(folder / "ca.crt", folder / "ca.key")
        new_key(self.pair.key)
        subject = ["-days", _DAYS, "-subj", "/CN=batuta-tests"]
        _openssl("req", "-x509", "-new", "-key", self.pair.key, *subject, "-out", self.pair.certificate)

    def server(self, name: str, addresses: Sequence[str], names: Sequence[str]) -> KeyPair:
        """A certificate for a server at these IP addresses and DNS names."""
        alternatives = [f"IP:{each}" for each in addresses] + [f"DNS:{each}" for each in names]
        facts = f"extendedKeyUsage=serverAuth\nsubjectAltName={','.join(alternatives)}\n"
        return self._sign(name, f"/CN={name}", facts)

    def user(self, name: str, groups: Sequence[str] = (), number: int = 0) -> KeyPair:
        """A client certificate: Kubernetes reads the user from CN and the groups from O."""
        subject = "".join(f"/O={_escaped(group)}" for group in groups) + f"/CN={_escaped(name)}"
        readable = "".join(letter if letter.isalnum() else "-" for letter in name)
        return self._sign(f"{number}-{readable}", subject, "extendedKeyUsage=clientAuth\n")

    def _sign(self, name: str, subject: str, facts: str) -> KeyPair:
        pair = KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        wish, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text("basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n" + facts)
        new_key(pair.key)
        _openssl("req", "-new", "-key", pair.key, "-subj", subject, "-out", wish)
        ours: list[str | Path] = [
            "-CA",
            self.pair.certificate,
            "-CAkey",
            self.pair.key,
            "-CAcreateserial",
            "-days",
            _DAYS,
        ]
        _openssl("x509", "-req", "-in", wish, *ours, "-sha256", "-extfile", extensions, "-out", pair.certificate)
        return pair


def new_key(path: Path) -> None:
    """Writes a new private key to the file, for its owner's eyes only."""
    path.touch(mode=0o600)
    _openssl("genpkey", *_CURVE, "-out", path)


def public_key(private: Path, public: Path) -> None:
    _openssl("pkey", "-in", private, "-pubout", "-out", public)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("/", "\\/")


def _openssl(*words: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise NoOpenSsl("the control plane's certificates are made by `openssl`, which is not on PATH")
    said = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=60)
    if said.returncode != 0:
        raise RuntimeError(f"openssl {' '.join(map(str, words))}:\n{said.stderr}")
