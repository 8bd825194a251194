"""A plain, blocking client of an API server for tests: JSON in, JSON out, many requests at once."""

import http.client
import json
import select
import ssl
import threading
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from tests.support.kube.certificates import KeyPair

Json = dict[str, Any]

_JSON = "application/json"
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(Exception):
    """The API server said no: its status code, reason and message."""

    def __init__(self, status: int, method: str, path: str, text: str) -> None:
        super().__init__(f"{status} for {method} {path}: {text[:500]}")
        self.status = status
        self.text = text


class Api:
    """Requests as one user. Safe to use from several threads: each has a connection of its own."""

    def __init__(self, host: str, port: int, ca: Path, user: KeyPair, timeout_s: float = 60.0) -> None:
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._tls.load_cert_chain(user.certificate, user.key)
        self._own = threading.local()
        self._open: list[http.client.HTTPSConnection] = []

    def get(self, path: str, **query: str | int) -> Json:
        return self.request("GET", path + (f"?{urlencode(query)}" if query else ""))

    def items(self, path: str, **query: str | int) -> list[Json]:
        """The objects of a list."""
        return self.get(path, **query)["items"]

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        return self.request("POST", path, body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, Any], kind: str = "merge") -> Json:
        return self.request("PATCH", path, body, _PATCH_TYPES[kind])

    def apply(self, body: Mapping[str, Any]) -> str:
        """Applies an object as `kubectl apply --server-side` does, without force; its path."""
        path = f"{self._collection(body)}/{body['metadata']['name']}"
        self.request("PATCH", f"{path}?fieldManager=kubectl", body, _PATCH_TYPES["apply"])
        return path

    def delete(self, path: str, **query: str | int) -> Json:
        return self.request("DELETE", path + (f"?{urlencode(query)}" if query else ""))

    def create_all(self, path: str, bodies: Iterable[Mapping[str, Any]], threads: int = 8) -> list[Json]:
        """Creates many objects at once; raises the first refusal."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda body: self.create(path, body), bodies))

    def watch(self, path: str, version: str, timeout_s: int = 30) -> Generator[Json]:
        """The events of a watch from a version on, as they come, until the server or the caller ends it."""
        query = urlencode({"watch": "true", "resourceVersion": version, "timeoutSeconds": timeout_s})
        with closing(self._connect()) as connection:
            connection.request("GET", f"{path}?{query}", headers={"Accept": _JSON})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise ApiError(answer.status, "GET", path, answer.read().decode(errors="replace"))
            for line in answer:
                yield json.loads(line)

    def text(self, path: str) -> str:
        """An answer that is not JSON: /readyz, /metrics."""
        return self._send("GET", path, None, _JSON).decode()

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, content_type: str = _JSON) -> Json:
        return json.loads(self._send(method, path, body, content_type))

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._own = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _collection(self, body: Mapping[str, Any]) -> str:
        """Where objects of this kind are, as the API server says itself."""
        version = body["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        kind = next(one for one in self.get(root)["resources"] if one["kind"] == body["kind"])
        space = f"namespaces/{body['metadata'].get('namespace', 'default')}/" if kind["namespaced"] else ""
        return f"{root}/{space}{kind['name']}"

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, content_type: str) -> bytes:
        content = None if body is None else json.dumps(body)
        connection = self._connection()
        try:
            connection.request(method, path, content, {"Content-Type": content_type, "Accept": _JSON})
            answer = connection.getresponse()
            text = answer.read()
        except BaseException:
            connection.close()
            raise
        if answer.status >= 400:
            raise ApiError(answer.status, method, path, text.decode(errors="replace"))
        return text

    def _connection(self) -> http.client.HTTPSConnection:
        """This thread's connection. One that the server has ended is opened again by the next request."""
        connection: http.client.HTTPSConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._connect()
            self._open.append(connection)
        # The server ends what was idle for 90 s, and all when it stops. There is nothing else to be read now.
        elif connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
            connection.close()
        return connection

    def _connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
