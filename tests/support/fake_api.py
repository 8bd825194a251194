"""A server for clients to talk to without a socket: a list of answers, and what was asked."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2

from batuta.client.address import Address
from batuta.client.client import Client
from batuta.client.transport import Transport

Answer = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]


class Script:
    """Answers in order; the last one for ever. Keeps the requests."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx2.Response) else answer(request)


class Routes:
    """Answers by path, below /api/v1; several for one path come in order, the last one for ever."""

    def __init__(self, **routes: Any) -> None:
        self._routes = {"/" + path.replace("__", "/"): answer for path, answer in routes.items()}
        self.asked: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self._routes.get(request.url.path.removeprefix("/api/v1"))
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        return problem(404, "there is no such thing") if answer is None else json_answer(answer)

    def paths(self) -> list[str]:
        return [request.url.path.removeprefix("/api/v1") for request in self.asked]


def json_answer(value: Any, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, json=value)


def problem(status: int, detail: str, **more: Any) -> httpx2.Response:
    body = {"type": "about:blank", "title": "x", "status": status, "detail": detail} | more
    return httpx2.Response(status, json=body, headers={"content-type": "application/problem+json"})


def streaming(*chunks: bytes | Exception, headers: dict[str, str] | None = None) -> httpx2.Response:
    """An answer that comes in pieces and may break off."""

    def pieces() -> Iterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    return httpx2.Response(200, headers=headers, content=pieces())


def transport_to(handler: Callable[[httpx2.Request], httpx2.Response], tries: int = 3) -> Transport:
    """A transport that does not wait between tries."""
    return Transport(
        lambda: Address("http://127.0.0.1:9", "secret"),
        over=httpx2.MockTransport(handler),
        pauses_s=(0.0,) * tries,
        long_pauses_s=(0.0,) * tries,
    )


def client_to(handler: Callable[[httpx2.Request], httpx2.Response], tries: int = 3) -> Client:
    client = Client("http://127.0.0.1:9", "secret")
    client._transport = transport_to(handler, tries)
    return client
