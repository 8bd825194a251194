"""Which versions and kinds of an API group a server has."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import msgspec

from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.kinds import segment
from batuta.backends.kube.client.transport import Transport


class _Version(msgspec.Struct):
    version: str = ""


class _Group(msgspec.Struct, rename="camel"):
    versions: list[_Version] = []
    preferred_version: _Version = msgspec.field(default_factory=_Version)


class _Resource(msgspec.Struct):
    name: str = ""


class _Resources(msgspec.Struct):
    resources: list[_Resource] | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What a server has of one API group."""

    preferred: str = ""
    """The version that the server would choose; empty where it does not have the group."""
    resources: Mapping[str, Set[str]] = field(default_factory=dict)
    """By version, in the server's order: the plural names, with subresources as `pods/binding`."""

    def has(self, version: str, plural: str) -> bool:
        return plural in self.resources.get(version, ())

    def version_of(self, plural: str) -> str:
        """The first version, in the server's order, that has this; empty where none does."""
        return next((version for version, plurals in self.resources.items() if plural in plurals), "")


async def discover(transport: Transport, group: str) -> Served:
    """Asks the server; the core group is the empty one."""
    if not group:
        return Served("v1", {"v1": await _plurals(transport, "/api/v1")})
    root = f"/apis/{segment(group)}"
    try:
        got = await transport.request("discover", "GET", root)
        found = msgspec.json.decode(got, type=_Group)
        versions = [version.version for version in found.versions]
        return Served(
            found.preferred_version.version,
            {version: await _plurals(transport, f"{root}/{segment(version)}") for version in versions},
        )
    except NotFound:
        return Served()


async def _plurals(transport: Transport, root: str) -> frozenset[str]:
    got = await transport.request("discover", "GET", root)
    resources = msgspec.json.decode(got, type=_Resources).resources
    return frozenset(resource.name for resource in resources or ())
