"""How to reach a cluster: by a named kubeconfig, KUBECONFIG, ~/.kube/config, or the pod's service account.

Several kubeconfig files are merged as kubectl merges them; one context of the result becomes an `Access`: the
server's address, the certificates it is trusted by, and the client's credentials.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import yaml

from batuta import __version__
from batuta.backends.kube.client.credentials import (
    RefreshingToken,
    TokenFile,
    exec_login,
    load_client_certificate,
    oidc_login,
    tls_context,
)
from batuta.backends.kube.client.errors import AccessError, Unauthorized

USER_AGENT = f"batuta/{__version__}"
Part: TypeAlias = dict[str, Any]
_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Credentials(Protocol):
    """Who we are, as the Authorization header says it."""

    async def authorization(self) -> str:
        """The header's value, empty for none; renewed when it is about to expire, and cheap when not."""

    def reject(self, value: str) -> None:
        """Notes that the API server did not accept this value: the next `authorization` looks for another."""


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """A value that does not change: a token in a file of settings, or none because a certificate says it."""

    value: str = ""

    async def authorization(self) -> str:
        return self.value

    def reject(self, value: str) -> None:
        """Nothing to be done: there is no other."""


@dataclass(frozen=True, slots=True)
class Access:
    """The way to one API server."""

    server: str  # its URL, without a slash at the end
    ssl: ssl.SSLContext | None = None
    credentials: Credentials = FixedCredentials()
    namespace: str = "default"  # the namespace of objects where the caller names none
    headers: Mapping[str, str] = field(default_factory=dict)  # sent with every request: whom we act for
    proxy: str | None = None
    tls_server_name: str | None = None
    source: str = ""  # where this comes from, for messages to people


@dataclass(frozen=True, slots=True)
class NamedEntry:
    """One entry of a file: a cluster, a user or a context."""

    name: str
    file: Path
    part: Part


@dataclass(frozen=True, slots=True)
class SelectedContext:
    """One context, with the cluster and the user that it names."""

    name: str
    cluster: NamedEntry
    user: NamedEntry
    namespace: str

    def __str__(self) -> str:
        return f"context {self.name!r} in {self.cluster.file}"

    @property
    def whose(self) -> str:
        return f"user {self.user.name!r} in {self.user.file}" if self.user.name else "the user (there is none)"


def select_context(paths: Sequence[Path], context: str | None = None) -> SelectedContext:
    """The context of this name, or the current one, of several files: for each name, the first file counts."""
    contents = {path: _load(path) for path in paths}
    clusters, contexts, users = (_entries(contents, section) for section in ("clusters", "contexts", "users"))
    files = ", ".join(map(str, paths))
    known = ", ".join(sorted(contexts)) or "none"
    name = context or next((str(one["current-context"]) for one in contents.values() if one.get("current-context")), "")
    if not name:
        raise AccessError(f"{files}: no current context; choose one with --context (there are: {known})")
    if name not in contexts:
        raise AccessError(f"{files}: no context {name!r} (there are: {known})")
    part = contexts[name].part
    cluster = clusters.get(str(part.get("cluster", "")))
    if cluster is None or not cluster.part.get("server"):
        raise AccessError(f"{files}: context {name!r} names no cluster with a server")
    user_name = str(part.get("user") or "")
    user = users.get(user_name)
    if user_name and user is None:
        raise AccessError(f"{files}: context {name!r} names the user {user_name!r}, who is not there")
    return SelectedContext(
        name, cluster, user or NamedEntry("", cluster.file, {}), str(part.get("namespace") or "default")
    )


def keep_tokens(user: NamedEntry) -> Callable[[Mapping[str, str]], None]:
    def keep(tokens: Mapping[str, str]) -> None:
        content = _load(user.file)
        for entry in content.get("users") or ():
            if entry.get("name") == user.name:
                entry["user"]["auth-provider"]["config"].update(tokens)
        written = user.file.with_name(f".{user.file.name}.{os.getpid()}")
        try:
            with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                yaml.safe_dump(content, file, sort_keys=False)
            written.replace(user.file)
        finally:
            written.unlink(missing_ok=True)

    return keep


def _load(path: Path) -> Part:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise AccessError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise AccessError(f"{path}: not a kubeconfig: it should be a mapping with clusters, users and contexts")
    return content


def _entries(contents: Mapping[Path, Part], section: str) -> dict[str, NamedEntry]:
    """The clusters, contexts or users of all files; their relative paths are made absolute."""
    found: dict[str, NamedEntry] = {}
    inner = section.removesuffix("s")
    for path, content in contents.items():
        entries = content.get(section) or []
        if not isinstance(entries, list):
            raise AccessError(f"{path}: {section} should be a list")
        for position, entry in enumerate(entries):
            if not isinstance(entry, dict) or not entry.get("name") or not isinstance(entry.get(inner), dict):
                # What is in it is not shown: it may be a secret.
                raise AccessError(f"{path}: {section}[{position}] should have a name and a {inner}")
            name = str(entry["name"])
            found.setdefault(name, NamedEntry(name, path, _absolute(entry[inner], path.absolute().parent)))
    return found


def _absolute(part: Part, folder: Path) -> Part:
    """A copy whose files are found from wherever we are: relative ones lie beside the kubeconfig."""
    found = dict(part)
    for name in _PATHS:
        if found.get(name):
            found[name] = str(folder / os.path.expanduser(str(found[name])))
    plugin = found.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command", "")):
        found["exec"] = {**plugin, "command": str(folder / str(plugin["command"]))}
    return found


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
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise AccessError("this is not a pod: KUBERNETES_SERVICE_HOST is not set")
    if not (folder / "token").exists():
        raise AccessError(f"this pod has no service account token in {folder}: see automountServiceAccountToken")
    namespace = folder / "namespace"
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ssl=tls_context(_text(folder / "ca.crt", "this pod")),
        credentials=TokenFile(folder / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        source="this pod's service account",
    )


async def from_kubeconfig(paths: list[Path], context: str | None = None) -> Access:
    chosen = select_context(paths, context)
    cluster = chosen.cluster.part
    server = str(cluster["server"]).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise AccessError(f"{chosen}: the server should be a URL that begins with https://")
    user = chosen.user.part
    if user.get("as-groups") or user.get("as-user-extra"):
        raise AccessError("as-groups and as-user-extra in a kubeconfig are not supported; `as` alone is")
    tls = _tls(chosen) if server.startswith("https://") else None
    access = Access(
        server=server,
        ssl=tls,
        credentials=_credentials(chosen, tls),
        namespace=chosen.namespace,
        headers={"Impersonate-User": str(user["as"])} if user.get("as") else {},
        proxy=cluster.get("proxy-url"),
        tls_server_name=cluster.get("tls-server-name"),
        source=str(chosen),
    )
    try:
        await access.credentials.authorization()  # a login that does not work is told now
    except Unauthorized as error:
        raise AccessError(error.message) from error
    return access


def _tls(chosen: SelectedContext) -> ssl.SSLContext:
    authorities = _data(chosen.cluster, "certificate-authority")
    context = tls_context(
        authorities.decode() if authorities else None, verify=not chosen.cluster.part.get("insecure-skip-tls-verify")
    )
    certificate, key = _data(chosen.user, "client-certificate"), _data(chosen.user, "client-key")
    if certificate and key:
        load_client_certificate(context, certificate, key, chosen.whose)
    elif certificate or key:
        missing = "client-key" if certificate else "client-certificate"
        raise AccessError(f"{chosen.whose} has no {missing}")
    return context


def _credentials(chosen: SelectedContext, tls: ssl.SSLContext | None) -> Credentials:
    """How this user logs in. A token file counts before a token: it is the fresher one."""
    user = chosen.user.part
    if isinstance(plugin := user.get("exec"), dict):
        return RefreshingToken(exec_login(plugin, chosen.whose, tls))
    if isinstance(provider := user.get("auth-provider"), dict):
        if provider.get("name") != "oidc":
            raise AccessError(
                f"{chosen.whose} logs in by the auth-provider {provider.get('name')!r}, "
                "which Kubernetes removed; use its exec plugin"
            )
        return RefreshingToken(oidc_login(provider.get("config") or {}, chosen.whose, keep_tokens(chosen.user)))
    if path := user.get("tokenFile"):
        return TokenFile(Path(path))
    if token := user.get("token"):
        return FixedCredentials(f"Bearer {str(token).strip()}")
    if user.get("username") and user.get("password"):
        pair = f"{user['username']}:{user['password']}".encode()
        return FixedCredentials(f"Basic {base64.b64encode(pair).decode()}")
    return FixedCredentials()


def _data(entry: NamedEntry, name: str) -> bytes | None:
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
