"""Kubeconfig files: several are one, as kubectl sees them, and one context of them is a way to a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from batuta.backends.kube.client.errors import AccessError

Part: TypeAlias = dict[str, Any]

_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_SECTIONS: Final = {"clusters": "cluster", "contexts": "context", "users": "user"}


@dataclass(frozen=True, slots=True)
class Named:
    """One entry of a file: a cluster, a user or a context."""

    name: str
    file: Path
    part: Part


@dataclass(slots=True)
class Kubeconfig:
    """What one or several files say together: for each name, the first file that has it counts."""

    files: list[Path] = field(default_factory=list)
    current: str = ""
    clusters: dict[str, Named] = field(default_factory=dict)
    contexts: dict[str, Named] = field(default_factory=dict)
    users: dict[str, Named] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chosen:
    """One context, with the cluster and the user that it names."""

    context: str
    cluster: Named
    user: Named
    namespace: str

    def __str__(self) -> str:
        return f"context {self.context!r} in {self.cluster.file}"

    @property
    def whose(self) -> str:
        return (
            f"user {self.user.name!r} in {self.user.file}" if self.user.name else "the user (there is none)"
        )


def read(paths: Sequence[Path]) -> Kubeconfig:
    """Reads the files in this order; their relative paths are made absolute."""
    merged = Kubeconfig()
    for path in paths:
        _merge(merged, path, _load(path))
    return merged


def choose(config: Kubeconfig, context: str | None = None) -> Chosen:
    """The context of this name, or the current one."""
    files = ", ".join(map(str, config.files))
    known = ", ".join(sorted(config.contexts)) or "none"
    name = context or config.current
    if not name:
        raise AccessError(f"{files}: no current context; choose one with --context (there are: {known})")
    if name not in config.contexts:
        raise AccessError(f"{files}: no context {name!r} (there are: {known})")
    part = config.contexts[name].part
    cluster = config.clusters.get(str(part.get("cluster", "")))
    if cluster is None or not cluster.part.get("server"):
        raise AccessError(f"{files}: context {name!r} names no cluster with a server")
    user_name = str(part.get("user") or "")
    user = config.users.get(user_name)
    if user_name and user is None:
        raise AccessError(f"{files}: context {name!r} names the user {user_name!r}, who is not there")
    return Chosen(name, cluster, user or Named("", cluster.file, {}), str(part.get("namespace") or "default"))


def keep_tokens(user: Named) -> Callable[[Mapping[str, str]], None]:
    """How to write new tokens of an auth-provider back to the file that they came from."""

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
        raise AccessError(
            f"{path}: not a kubeconfig: it should be a mapping with clusters, users and contexts"
        )
    return content


def _merge(merged: Kubeconfig, path: Path, content: Part) -> None:
    merged.files.append(path)
    merged.current = merged.current or str(content.get("current-context") or "")
    for section, inner in _SECTIONS.items():
        known: dict[str, Named] = getattr(merged, section)
        entries = content.get(section) or []
        if not isinstance(entries, list):
            raise AccessError(f"{path}: {section} should be a list")
        for position, entry in enumerate(entries):
            if not isinstance(entry, dict) or not entry.get("name") or not isinstance(entry.get(inner), dict):
                # What is in it is not shown: it may be a secret.
                raise AccessError(f"{path}: {section}[{position}] should have a name and a {inner}")
            name = str(entry["name"])
            known.setdefault(name, Named(name, path, _absolute(entry[inner], path.absolute().parent)))


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
