"""The certificate that all operators of a release show: in a Secret that they write, its authority in a ConfigMap.

Every operator that finds the Secret empty, or what is in it spoilt or due to be renewed, makes what is missing. The
API server lets the first of them write, and the others take what that one wrote. The chart makes Secret and ConfigMap
without data, so that the rights to two names are all that operators need, and an upgrade takes no data away.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Conflict
from batuta.backends.kube.client.kinds import CONFIG_MAP, SECRET
from batuta.backends.kube.tls.authority import Certificates, KeyPair, up_to_date, utc_now

AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class SharedCertificate:
    """Where it is kept, and the names that it has to be for."""

    api: Api
    namespace: str
    secret: str
    config_map: str
    names: Sequence[str]
    now: Callable[[], datetime] = utc_now

    async def read(self) -> Certificates:
        """Return what all operators show from now on, made, renewed and published where it has to be.

        Raises ApiError.
        """
        shared = await self._agreed()
        await self._publish(shared.authority.certificate.decode())
        return shared

    async def _agreed(self) -> Certificates:
        tries = 0
        while True:
            found = await self.api.get(SECRET, self.secret, self.namespace)
            known = _certificates(found.data)
            wanted = up_to_date(known, self.names, self.now())
            if wanted is known:
                return wanted
            tries += 1
            body = {"metadata": {"resourceVersion": found.metadata.resource_version}, "data": _data(wanted)}
            try:
                await self.api.patch(SECRET, self.secret, body, self.namespace)
            except Conflict:  # another operator was first
                if tries == _TRIES:
                    raise
            else:
                return wanted

    async def _publish(self, authority: str) -> None:
        """Tells clients, and whoever scrapes metrics, which authority to believe in."""
        found = await self.api.get(CONFIG_MAP, self.config_map, self.namespace)
        if found.data.get(AUTHORITY) != authority:
            await self.api.patch(CONFIG_MAP, self.config_map, {"data": {AUTHORITY: authority}}, self.namespace)


def _certificates(data: Mapping[str, bytes]) -> Certificates | None:
    if not data.keys() >= {AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY}:
        return None
    return Certificates(KeyPair(data[AUTHORITY], data[AUTHORITY_KEY]), KeyPair(data[SERVER], data[SERVER_KEY]))


def _data(made: Certificates) -> dict[str, str]:
    pairs = {
        AUTHORITY: made.authority.certificate,
        AUTHORITY_KEY: made.authority.key,
        SERVER: made.server.certificate,
        SERVER_KEY: made.server.key,
    }
    return {name: base64.b64encode(pem).decode() for name, pem in pairs.items()}
