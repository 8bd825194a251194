"""Finds the way to a cluster: what the caller names, KUBECONFIG, ~/.kube/config, or this pod's own."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from batuta.backends.kube.client.access import Access, Credentials, FixedCredentials
from batuta.backends.kube.client.credentials import Renewed, TokenFile
from batuta.backends.kube.client.errors import AccessError, Unauthorized
from batuta.backends.kube.client.exec_plugin import login_by
from batuta.backends.kube.client.kubeconfig import Chosen, Named, choose, keep_tokens, read
from batuta.backends.kube.client.oidc import login_with
from batuta.backends.kube.client.tls import show_certificate, trusting

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


async def find_access(
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The way to the cluster that is meant. Logs in where that takes a program; asks the cluster nothing."""
    if kubeconfig is not None:
        return await from_kubeconfig([Path(kubeconfig).expanduser()], context)
    named = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    paths = named or [Path(environ.get("HOME") or Path.home(), ".kube", "config")]
    there = [path for path in paths if path.exists()]
    if there:
        return await from_kubeconfig(there, context)
    if context is None and not named and environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ, service_account)
    raise AccessError(
        f"no kubeconfig: {', '.join(map(str, paths))} does not exist; set KUBECONFIG or give --kubeconfig"
    )


def in_cluster(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Access:
    """The way from a pod to its own cluster, as its service account."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise AccessError("this is not a pod: KUBERNETES_SERVICE_HOST is not set")
    if not (folder / "token").exists():
        raise AccessError(
            f"this pod has no service account token in {folder}: see automountServiceAccountToken"
        )
    namespace = folder / "namespace"
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ssl=trusting(_text(folder / "ca.crt", "this pod")),
        credentials=TokenFile(folder / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        source="this pod's service account",
    )


async def from_kubeconfig(paths: list[Path], context: str | None = None) -> Access:
    """The way that one context of these files describes."""
    chosen = choose(read(paths), context)
    cluster = chosen.cluster.part
    server = str(cluster["server"]).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise AccessError(f"{chosen}: the server should be a URL that begins with https://")
    tls = _tls(chosen) if server.startswith("https://") else None
    access = Access(
        server=server,
        ssl=tls,
        credentials=_credentials(chosen, tls),
        namespace=chosen.namespace,
        headers=_impersonation(chosen.user.part),
        proxy=cluster.get("proxy-url"),
        tls_server_name=cluster.get("tls-server-name"),
        source=str(chosen),
    )
    try:
        await access.credentials.authorization()  # a login that does not work is told now
    except Unauthorized as error:
        raise AccessError(error.message) from error
    return access


def _tls(chosen: Chosen) -> ssl.SSLContext:
    authorities = _data(chosen.cluster, "certificate-authority")
    context = trusting(
        authorities.decode() if authorities else None,
        verify=not chosen.cluster.part.get("insecure-skip-tls-verify"),
    )
    certificate, key = _data(chosen.user, "client-certificate"), _data(chosen.user, "client-key")
    if certificate and key:
        show_certificate(context, certificate, key, chosen.whose)
    elif certificate or key:
        missing = "client-key" if certificate else "client-certificate"
        raise AccessError(f"{chosen.whose} has no {missing}")
    return context


def _credentials(chosen: Chosen, tls: ssl.SSLContext | None) -> Credentials:
    """How this user logs in. A token file counts before a token: it is the fresher one."""
    user = chosen.user.part
    if isinstance(plugin := user.get("exec"), dict):
        return Renewed(login_by(plugin, chosen.whose, tls))
    if isinstance(provider := user.get("auth-provider"), dict):
        return _by_provider(provider, chosen)
    if path := user.get("tokenFile"):
        return TokenFile(Path(path))
    if token := user.get("token"):
        return FixedCredentials(f"Bearer {str(token).strip()}")
    if user.get("username") and user.get("password"):
        pair = f"{user['username']}:{user['password']}".encode()
        return FixedCredentials(f"Basic {base64.b64encode(pair).decode()}")
    return FixedCredentials()


def _by_provider(provider: dict[str, Any], chosen: Chosen) -> Credentials:
    if provider.get("name") != "oidc":
        raise AccessError(
            f"{chosen.whose} logs in by the auth-provider {provider.get('name')!r}, "
            "which Kubernetes removed; use its exec plugin"
        )
    return Renewed(login_with(provider.get("config") or {}, chosen.whose, keep_tokens(chosen.user)))


def _impersonation(user: dict[str, Any]) -> dict[str, str]:
    if user.get("as-groups") or user.get("as-user-extra"):
        raise AccessError("as-groups and as-user-extra in a kubeconfig are not supported; `as` alone is")
    return {"Impersonate-User": str(user["as"])} if user.get("as") else {}


def _data(entry: Named, name: str) -> bytes | None:
    """What stands in the file itself, or in another that it names."""
    if data := entry.part.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error as error:
            raise AccessError(f"{entry.file}: {name}-data of {entry.name!r} is not base64") from error
    if path := entry.part.get(name):
        return _text(Path(path), f"{entry.name!r} in {entry.file}").encode()
    return None


def _text(path: Path, whose: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise AccessError(f"{whose} needs {path}: {error.strerror}") from error
