"""What goes wrong, as problem documents (RFC 9457): also what the framework itself refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as NoAnswer
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from batuta.api.plain_json import to_json
from batuta.engine.ports import JournalUnavailable
from batuta.engine.requests import EngineStopped
from batuta.spec.problem import InputError, Problem

MEDIA_TYPE = "application/problem+json"
_MOST_PROBLEMS = 200


class Refusal(Exception):
    """A request that is not carried out, and why."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        problems: Sequence[Problem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.problems = tuple(problems)
        self.headers = dict(headers or {})


def not_found(what: str) -> Refusal:
    return Refusal(404, f"there is no {what}")


def bad_input(message: str, fix: str = "", *, file: str = "") -> Refusal:
    return refused_input(InputError([Problem(message, file=file, fix=fix)]))


def refused_input(error: InputError) -> Refusal:
    """All problems of an input at once."""
    return Refusal(422, "; ".join(map(str, error.problems[:3])), problems=error.problems)


def response_of(refusal: Refusal) -> Response:
    title = HTTPStatus(refusal.status).phrase
    document: dict[str, Any] = {
        "type": f"urn:batuta:problem:{title.lower().replace(' ', '-')}",
        "title": title,
        "status": refusal.status,
        "detail": refusal.detail,
    }
    if refusal.problems:
        document["problems"] = [
            {"message": one.message, "file": one.file, "line": one.line, "column": one.column, "fix": one.fix}
            for one in refusal.problems[:_MOST_PROBLEMS]
        ]
    return Response(to_json(document), refusal.status, refusal.headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Makes every error of the app a problem document."""
    answers: tuple[tuple[type[Exception], Callable[[Any], Refusal]], ...] = (
        (Refusal, lambda error: error),
        (InputError, refused_input),
        (RequestValidationError, _invalid),
        (HTTPException, _http),
        (JournalUnavailable, _unavailable),
        (EngineStopped, lambda error: Refusal(503, str(error))),
        (NoAnswer, _no_answer),
        (Exception, lambda error: Refusal(500, "this is a fault of the server; its log has the details")),
    )
    for kind, refusal_of in answers:
        app.add_exception_handler(kind, _handler(refusal_of))


def _handler(refusal_of: Callable[[Any], Refusal]) -> Callable[[Request, Exception], Any]:
    async def handle(_: Request, error: Exception) -> Response:
        return response_of(refusal_of(error))

    return handle


def _invalid(error: RequestValidationError) -> Refusal:
    """Names the place and what was expected, never the value: it may be a secret."""
    problems = [
        Problem(f"{'.'.join(map(str, one['loc'][1:])) or 'the body'}: {one['msg']}", file=str(one["loc"][0]))
        for one in error.errors()
    ]
    return refused_input(InputError(problems))


def _http(error: HTTPException) -> Refusal:
    detail = str(error.detail) if error.detail else HTTPStatus(error.status_code).phrase
    return Refusal(error.status_code, detail, headers=error.headers)


def _unavailable(error: JournalUnavailable) -> Refusal:
    return Refusal(507, f"nothing can be stored now: {error}", headers={"Retry-After": "5"})


def _no_answer(_: Exception) -> Refusal:
    return Refusal(
        504,
        "the engine did not answer in time; what was asked for may still be done "
        "(with an Idempotency-Key, a submit can be sent again)",
    )
