"""Requests over httpx2: the token is added, refusals become ApiError, what is safe is repeated."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx2

from batuta.client.address import SERVER_VARIABLE, Address, no_server
from batuta.client.errors import AnswerError, ApiError, ClientError, NoServerError
from batuta.spec.problem import Problem

PREFIX = "/api/v1"
TIMEOUT_S = 30.0
PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Between tries. Together they are longer than a restart of the server takes."""
LONG_PAUSES_S = (*PAUSES_S, *[2.0] * 26)
"""For who follows something: a minute, for a server that was killed and is started again by hand."""
_HINTS = {
    401: "the token is missing or unknown: see $BATUTA_TOKEN, or the file `token` of the state directory",
    413: "the request is larger than the server takes (1 MiB)",
}
Params: TypeAlias = Mapping[str, Any]


class Transport:
    """The way to one server. When that is started again at another port, it is found again."""

    def __init__(
        self,
        find: Callable[[], Address],
        timeout_s: float = TIMEOUT_S,
        over: httpx2.BaseTransport | None = None,
        pauses_s: tuple[float, ...] = PAUSES_S,
        long_pauses_s: tuple[float, ...] = LONG_PAUSES_S,
    ) -> None:
        self._find = find
        self._timeout_s = timeout_s
        self._over = over
        self._pauses_s = pauses_s
        self._long_pauses_s = long_pauses_s
        self._http: httpx2.Client | None = None
        self.address: Address | None = None
        """Of the server that was spoken to last."""
        self._met = False
        """Whether this server ever answered: one that did is waited for when it goes away."""

    def json(self, method: str, path: str, *, repeatable: bool | None = None, **request: Any) -> Any:
        """The parsed answer; None when there is none."""
        response = self.send(method, path, repeatable=repeatable, **request)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            where = self.address.url if self.address else "the server"
            raise AnswerError(f"{where} does not speak Batuta's API (its answer is not JSON)") from None

    def send(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool | None = None,
        pauses_s: tuple[float, ...] | None = None,
        **request: Any,
    ) -> httpx2.Response:
        """Sends, and sends again where a lost connection leaves open whether the first one arrived."""
        if repeatable is None:
            repeatable = method in ("GET", "PUT", "DELETE")
        for tried, pause_s in enumerate((*(pauses_s or self._pauses_s), None)):
            try:
                return self._checked(self._client().request(method, _full(path), **request))
            except (httpx2.ConnectError, httpx2.ConnectTimeout, NoServerError) as error:
                # Nothing was sent, so this is safe for all requests. A server that ended properly takes its
                # address with it, and is not waited for as long as one that was killed.
                ended = isinstance(error, NoServerError) and tried >= len(self._pauses_s)
                if pause_s is None or not self._met or ended:
                    self._leave()  # whoever tries again may find a server that was started since
                    raise self._unreachable(error) from None
            except httpx2.TransportError as error:
                if pause_s is None or not repeatable:
                    self._leave()
                    raise ClientError(f"lost the connection to the server: {error}") from None
            self._leave()
            time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        quiet_s: float,
        headers: Mapping[str, str] | None = None,
        params: Params | None = None,
    ) -> Iterator[httpx2.Response]:
        """An answer that goes on. A silence of `quiet_s` raises httpx2.ReadTimeout; nothing is repeated."""
        limits = httpx2.Timeout(self._timeout_s, read=quiet_s)
        with self._client().stream(
            "GET", _full(path), headers=headers, params=params, timeout=limits
        ) as response:
            if response.is_error:
                response.read()
            yield self._checked(response)

    def wait_for_server(self) -> None:
        """After a stream broke off: returns when the server answers again, or raises NoServerError."""
        self._leave()
        self.send("GET", "/cluster", pauses_s=self._long_pauses_s)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def _client(self) -> httpx2.Client:
        if self._http is None:
            self.address = self._find()
            self._http = self._open(self.address)
        return self._http

    def _open(self, address: Address) -> httpx2.Client:
        parts = urlsplit(address.url)
        local = parts.hostname in ("127.0.0.1", "localhost", "::1")
        headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
        return httpx2.Client(
            base_url=address.url,
            headers=headers,
            timeout=self._timeout_s,
            transport=self._over,
            # A proxy is for the world outside; certificates are only loaded where they are needed.
            trust_env=not local,
            verify=parts.scheme == "https",
        )

    def _leave(self) -> None:
        """Forgets the connection, so that the next request looks anew for the server."""
        self.close()

    def _checked(self, response: httpx2.Response) -> httpx2.Response:
        self._met = True
        if response.is_error:
            raise read_problem(response)
        return response

    def _unreachable(self, error: Exception) -> ClientError:
        if isinstance(error, NoServerError):
            return error
        address = self.address
        if address is not None and address.home is not None:
            return no_server(address.home)
        where = address.url if address is not None else "the server"
        why = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        hint = f" (${SERVER_VARIABLE} says to ask there)" if SERVER_VARIABLE in os.environ else ""
        return NoServerError(f"{where} cannot be reached: {why}{hint}")


def read_problem(response: httpx2.Response) -> ApiError:
    """The refusal in a problem document (RFC 9457), or in whatever else came."""
    try:
        body = response.json()
    except ValueError:
        body = None
    known = body if isinstance(body, dict) else {}
    found = known.get("problems")
    problems = [_problem(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    detail = str(known.get("detail") or "")
    if not detail:
        detail = _HINTS.get(response.status_code, "")
    title = str(known.get("title") or response.reason_phrase)
    return ApiError(response.status_code, title, detail, problems)


def _problem(data: dict[str, Any]) -> Problem:
    return Problem(
        str(data.get("message") or ""),
        str(data.get("file") or ""),
        int(data.get("line") or 0),
        int(data.get("column") or 0),
        str(data.get("fix") or ""),
    )


def _full(path: str) -> str:
    return path if path in ("/healthz", "/readyz", "/metrics") else PREFIX + path
