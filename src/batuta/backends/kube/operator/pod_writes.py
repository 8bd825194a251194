"""What is done to pods, on the side that talks to the API server."""

from __future__ import annotations

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.kinds import POD


async def delete_pod(api: Api, *, name: str, namespace: str, uid: str) -> None:
    """Deletes one pod, unless another of the same name is there by now."""
    try:
        await api.delete(POD, name, namespace, uid=uid)
    except NotFound:
        return
