"""HTTP to a Batuta server: requests with retries, server-sent events, and logs that are followed."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx2

from batuta.apitypes.resources import Event, Job
from batuta.apitypes.server_proof import PATH as PROOF_PATH
from batuta.apitypes.server_proof import is_proof
from batuta.client.address import CA_FILE_VARIABLE, SERVER_VARIABLE, Address, no_server, show_path
from batuta.client.errors import (
    AnswerError,
    ApiError,
    ClientError,
    NoServerError,
    UnprovenServerError,
    UntrustedServerError,
    WaitTimeoutError,
)
from batuta.spec.problem import Problem

PREFIX = "/api/v1"
TIMEOUT_S = 30.0
PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)  # between tries. Together they are longer than a restart of the server takes.
LONG_PAUSES_S = (*PAUSES_S, *[2.0] * 26)
"""For streams: a minute, for a server that was killed and is started again by hand."""
_PROOF_HOLDS_S = 1.0  # after its last answer a server may have ended, and another program may have its port
_HINTS = {
    401: "the token is missing or unknown: see $BATUTA_TOKEN, or the file `token` of the state directory",
    413: "the request is larger than the server takes (1 MiB)",
}
_WRONG_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
_WRONG_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
_FETCH_AUTHORITY = "kubectl -n batuta-system get configmap batuta-ca -o jsonpath='{.data.ca\\.crt}' > batuta-ca.crt"
Params: TypeAlias = Mapping[str, Any]


@dataclass
class Transport:
    """The way to one server. When that is started again at another port, it is found again."""

    find: Callable[[], Address]
    timeout_s: float = TIMEOUT_S
    over: httpx2.BaseTransport | None = None
    pauses_s: tuple[float, ...] = PAUSES_S
    long_pauses_s: tuple[float, ...] = LONG_PAUSES_S
    address: Address | None = field(default=None, init=False)  # of the server that was spoken to last
    _http: httpx2.Client | None = field(default=None, init=False)
    _met: bool = field(default=False, init=False)
    """Whether this server ever answered: one that did is waited for when it goes away."""
    _answered_s: float = field(default=-math.inf, init=False)

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
        params: Params | None = None,
        **request: Any,
    ) -> httpx2.Response:
        """Sends, and sends again where a lost connection leaves open whether the first one arrived."""
        if repeatable is None:
            repeatable = method in ("GET", "PUT", "DELETE")
        for tried, pause_s in enumerate((*(pauses_s or self.pauses_s), None)):
            try:
                http, own = self._client(), {"params": _known(params), **request}
                own["headers"] = {**self._credentials(http), **(own.get("headers") or {})}
                return self._checked(http.request(method, _full(path), **own))
            except (httpx2.ConnectError, httpx2.ConnectTimeout, NoServerError) as error:
                if (refused := _certificate_error(error)) is not None:
                    raise self._untrusted(refused) from None
                # Nothing was sent, so this is safe for all requests. A server that ended properly takes its
                # address with it, and is not waited for as long as one that was killed.
                ended = isinstance(error, NoServerError) and tried >= len(self.pauses_s)
                if pause_s is None or not self._met or ended:
                    self.close()  # the next try may find a server that was started since
                    raise self._unreachable(error) from None
            except httpx2.TransportError as error:
                if pause_s is None or not repeatable:
                    self.close()
                    raise ClientError(f"lost the connection to the server: {error}{self._tls_hint()}") from None
            self.close()
            time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(
        self, path: str, *, quiet_s: float, headers: Mapping[str, str] | None = None, params: Params | None = None
    ) -> Iterator[httpx2.Response]:
        """An answer that goes on. A silence of `quiet_s` raises httpx2.ReadTimeout; nothing is repeated."""
        limits, asked = httpx2.Timeout(self.timeout_s, read=quiet_s), _known(params)
        http = self._client()
        sent = {**self._credentials(http), **(headers or {})}
        with http.stream("GET", _full(path), headers=sent, params=asked, timeout=limits) as response:
            if response.is_error:
                response.read()
            yield self._checked(response)

    def wait_for_server(self) -> None:
        """After a stream broke off: returns when the server answers again, or raises NoServerError."""
        self.close()
        self.send("GET", "/cluster", pauses_s=self.long_pauses_s)

    def close(self) -> None:
        """Forget the connection: the next request looks anew for the server."""
        if self._http is not None:
            self._http.close()
            self._http = None
        self._answered_s = -math.inf

    def _client(self) -> httpx2.Client:
        if self._http is None:
            self.address = self.find()
            self._http = self._open(self.address)
        return self._http

    def _credentials(self, http: httpx2.Client) -> dict[str, str]:
        """The header with the token, for a server that has just shown who it is where it can."""
        address = self.address
        if address is None or not address.token:
            return {}
        # A server somewhere else shows that by its certificate.
        if address.home is not None and time.monotonic() - self._answered_s > _PROOF_HOLDS_S:
            _demand_proof(http, address)
        return {"Authorization": f"Bearer {address.token}"}

    def _open(self, address: Address) -> httpx2.Client:
        parts = urlsplit(address.url)
        local = parts.hostname in ("127.0.0.1", "localhost", "::1")
        over = self.over
        if over is None and address.socket is not None:
            over = httpx2.HTTPTransport(uds=str(address.socket))
        return httpx2.Client(
            base_url=address.url,
            timeout=self.timeout_s,
            transport=over,
            # A proxy is for the world outside; certificates are only loaded where they are needed.
            trust_env=not local,
            verify=parts.scheme == "https" and _trust(address.ca_file),
        )

    def _checked(self, response: httpx2.Response) -> httpx2.Response:
        self._met = True
        self._answered_s = time.monotonic()
        if response.is_error:
            raise read_problem(response)
        return response

    def _untrusted(self, refused: ssl.SSLCertVerificationError) -> UntrustedServerError:
        self.close()
        where = self.address.url if self.address is not None else "the server"
        fix = f"name its authority in ${CA_FILE_VARIABLE}; for an operator: {_FETCH_AUTHORITY}"
        if refused.verify_code in _WRONG_NAME:
            fix = (
                "ask it by a name that its certificate has; of an operator, 127.0.0.1 with kubectl port-forward is one"
            )
        elif refused.verify_code in _WRONG_TIME:
            fix = "compare the clocks of both machines"
        why = refused.verify_message.rstrip(".")
        return UntrustedServerError(
            f"{where} shows a certificate that is not believed: {why}. No token was sent; {fix}"
        )

    def _tls_hint(self) -> str:
        """For servers that end a connection without a word: those that speak TLS do, where they are asked in clear."""
        address = self.address
        if self._met or address is None or address.home is not None or not address.url.startswith("http://"):
            return ""
        return f" (if it speaks TLS, ask https://{address.url.removeprefix('http://')})"

    def _unreachable(self, error: Exception) -> ClientError:
        if isinstance(error, NoServerError):
            return error
        address = self.address
        if address is not None and address.home is not None:
            return no_server(address.home)
        where = address.name if address is not None else "the server"
        why = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        hint = f" (${SERVER_VARIABLE} says to ask there)" if SERVER_VARIABLE in os.environ else ""
        return NoServerError(f"{where} cannot be reached: {why}{hint}")


def _trust(ca_file: Path | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except OSError as error:
        why = "has no certificate in PEM" if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"
        raise ClientError(
            f"${CA_FILE_VARIABLE} {show_path(ca_file)} {why}; for an operator: {_FETCH_AUTHORITY}"
        ) from None


def _certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """What ssl said about the certificate, if that is why there is no connection."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def _demand_proof(http: httpx2.Client, address: Address) -> None:
    """Raise UnprovenServerError unless what listens there knows the secret of the state directory."""
    nonce = secrets.token_hex(32)
    response = http.get(_full(PROOF_PATH), params={"nonce": nonce})
    try:
        answer = response.json()
    except ValueError:
        answer = None
    given = answer.get("proof") if response.is_success and isinstance(answer, dict) else None
    if not is_proof(given, address.secret, nonce, address.url):
        raise UnprovenServerError(
            f"what listens at {address.url} is not the server of {address.name}, or one of an older version: it cannot "
            "show that it knows the secret there. No token was sent. Stop it, and start the server again: batuta up"
        )


def read_problem(response: httpx2.Response) -> ApiError:
    """The refusal in a problem document (RFC 9457), or in whatever else came."""
    try:
        body = response.json()
    except ValueError:
        body = None
    known = body if isinstance(body, dict) else {}
    found = known.get("problems")
    problems = [_problem(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    detail = str(known.get("detail") or _HINTS.get(response.status_code, ""))
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


def _known(params: Params | None) -> Params:
    """Parameters that are None are left out."""
    return {name: value for name, value in (params or {}).items() if value is not None}


def read_events(chunks: Iterable[bytes]) -> Iterator[Event | None]:
    """Events as they come; None for each comment that the server sends to show that it is there."""
    seq, kind = 0, ""
    data: list[str] = []
    for line in _lines(chunks):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if kind or data:
                yield Event(seq, kind or "message", _parse("\n".join(data)))
            kind, data = "", []
        elif not field:
            yield None
        elif field == "id" and value.isdecimal():
            seq = int(value)
        elif field == "event":
            kind = value
        elif field == "data":
            data.append(value)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split at line feeds only: other separators may stand inside of JSON."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def _parse(text: str) -> dict[str, object]:
    try:
        data = json.loads(text) if text else {}
    except ValueError:
        return {"text": text}
    return data if isinstance(data, dict) else {"value": data}


QUIET_S = 40.0  # the server sends a comment every 15 s: a connection that is silent for longer is dead
OFFSET = "Batuta-Log-Offset"
RANKS = "Batuta-Log-Ranks"


def follow_events(transport: Transport, after: int | None, params: Params) -> Iterator[Event]:
    """All events from now on, or after a number, each once, however often the connection breaks."""
    while True:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        try:
            with transport.stream("/events", quiet_s=QUIET_S, headers=headers, params=params) as response:
                for event in read_events(response.iter_bytes()):
                    if event is not None:
                        after = event.seq or after
                        yield event
        except (httpx2.TransportError, NoServerError):
            pass
        transport.wait_for_server()


def read_past(transport: Transport, after: int, last: int, params: Params) -> tuple[Event, ...]:
    """The events after a number, up to and with another one."""
    asked = {**params, "follow": "false"}
    headers = {"Last-Event-ID": str(after)}
    with transport.stream("/events", quiet_s=TIMEOUT_S, headers=headers, params=asked) as response:
        found = tuple(read_events(response.iter_bytes()))
    return tuple(event for event in found if event is not None and after < event.seq <= last)


def wait_for(
    transport: Transport,
    job_id: str,
    look: Callable[[], Job],
    done: Callable[[Job], bool],
    timeout_s: float | None,
    tell: Callable[[Job], None] | None,
) -> Job:
    """Looks at a job whenever something happened to it, until it is done."""
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    params = {"job": job_id}
    while True:
        left_s = QUIET_S if give_up is None else give_up - time.monotonic()
        try:
            # The stream first, the look second: what happens in between is not missed.
            with transport.stream("/events", quiet_s=max(0.05, min(QUIET_S, left_s)), params=params) as response:
                events = read_events(response.iter_bytes())
                while True:
                    job = look()
                    if tell is not None:
                        tell(job)
                    if done(job):
                        return job
                    if not _next_about(job_id, events, give_up):
                        break
        except httpx2.ReadTimeout:
            pass
        except (httpx2.TransportError, NoServerError):
            transport.wait_for_server()
        if give_up is not None and time.monotonic() >= give_up:
            job = look()
            if done(job):
                return job
            raise WaitTimeoutError(f"job {job.label} is {job.state} after {timeout_s:g} s")


def _next_about(job_id: str, events: Iterator[Event | None], give_up: float | None) -> bool:
    """True at the next event of a job; False when the stream ends, or could outlast the deadline."""
    for event in events:
        if event is not None and event.concerns(job_id):
            return True
        if give_up is not None and give_up - time.monotonic() < QUIET_S:
            return False
    return False


def follow_log(transport: Transport, path: str, params: dict[str, Any], is_over: Callable[[], bool]) -> Iterator[bytes]:
    """A log, or from its last lines on, until the job is over; it goes on where a connection broke."""
    asked = params | {"follow": "true"}
    headers: dict[str, str] = {}
    over = False
    while True:
        try:
            with transport.stream(path, quiet_s=QUIET_S, headers=headers, params=asked) as response:
                position = int(response.headers.get(OFFSET, 0))
                for chunk in response.iter_bytes():
                    position += len(chunk)
                    headers = {"Range": f"bytes={position}-"}
                    asked.pop("tail", None)
                    yield chunk
        except httpx2.ReadTimeout:
            continue
        except (httpx2.TransportError, NoServerError):
            transport.wait_for_server()
            continue
        # A server that shuts down ends the stream just as properly as the end of the job does. So the last
        # look is one that began when the job was known to be over.
        if over:
            return
        over = is_over()
