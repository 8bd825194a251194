"""JSON responses, and problem documents (RFC 9457) for every error."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as NoAnswer
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python
from pydantic_core import to_json as encode
from starlette.exceptions import HTTPException
from starlette.responses import Response

from batuta.engine.ports import JournalUnavailable
from batuta.engine.requests import EngineStopped
from batuta.spec.problem import InputError, Problem
from batuta.store.errors import CodecError, StoreCorruptError, StoreError


def to_json(value: Any) -> bytes:
    """Return compact JSON. NaN and infinities are null."""
    try:
        return encode(value, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeEncodeError):
        # A lone surrogate has no UTF-8, but an escape.
        return json.dumps(to_jsonable_python(value, inf_nan_mode="null"), separators=(",", ":")).encode()


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), status, headers, "application/json")


MEDIA_TYPE = "application/problem+json"
_MAX_PROBLEMS = 200
LATER = {"Retry-After": "5"}
_FAULT = "this is a fault of the server; its log has the details"
_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT))
_NO_ANSWER = (
    "the engine did not answer in time; what was asked for may still be done "
    "(with an Idempotency-Key, a submit can be sent again)"
)


class HttpProblem(Exception):
    """A request that is refused or fails: an HTTP status and the reason."""

    def __init__(
        self, status: int, detail: str, *, problems: Sequence[Problem] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.problems = tuple(problems)
        self.headers = dict(headers or {})


def not_found(what: str) -> HttpProblem:
    return HttpProblem(404, f"there is no {what}")


def bad_input(message: str, fix: str = "", *, file: str = "") -> HttpProblem:
    return unprocessable(InputError([Problem(message, file=file, fix=fix)]))


def unprocessable(error: InputError) -> HttpProblem:
    return HttpProblem(422, "; ".join(map(str, error.problems[:3])), problems=error.problems)


def problem_response(problem: HttpProblem) -> Response:
    title = HTTPStatus(problem.status).phrase
    document: dict[str, Any] = {
        "type": f"urn:batuta:problem:{title.lower().replace(' ', '-')}",
        "title": title,
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.problems:
        document["problems"] = problem.problems[:_MAX_PROBLEMS]
    return Response(to_json(document), problem.status, problem.headers, MEDIA_TYPE)


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of the app with a problem document."""
    answers: tuple[tuple[type[Exception], Callable[[Any], HttpProblem]], ...] = (
        (HttpProblem, lambda error: error),
        (InputError, unprocessable),
        (RequestValidationError, _invalid),
        (HTTPException, _http),
        (JournalUnavailable, _store),
        (CodecError, lambda error: HttpProblem(500, str(error))),
        (StoreCorruptError, lambda error: HttpProblem(500, str(error))),
        (StoreError, _store),
        (OSError, _os),
        (EngineStopped, lambda error: HttpProblem(503, str(error))),
        (NoAnswer, lambda _: HttpProblem(504, _NO_ANSWER)),
        (Exception, lambda _: HttpProblem(500, _FAULT)),
    )

    async def handle(problem_of: Callable[[Any], HttpProblem], _: Request, error: Exception) -> Response:
        return problem_response(problem_of(error))

    for kind, problem_of in answers:
        app.add_exception_handler(kind, partial(handle, problem_of))


def _invalid(error: RequestValidationError) -> HttpProblem:
    """Name the place and what was expected, never the value: it may be a secret."""
    problems = [
        Problem(f"{'.'.join(map(str, one['loc'][1:])) or 'the body'}: {one['msg']}", file=str(one["loc"][0]))
        for one in error.errors()
    ]
    return unprocessable(InputError(problems))


def _store(error: StoreError | JournalUnavailable) -> HttpProblem:
    if isinstance(error, JournalUnavailable):
        return HttpProblem(507, f"nothing can be stored now: {error}", headers=LATER)
    return HttpProblem(503, f"what is stored cannot be read now: {error}", headers=LATER)


def _os(error: OSError) -> HttpProblem:
    """Say which resource of the machine has run out: that passes, and is no fault of the server."""
    if error.errno in _SHORTAGES:
        return HttpProblem(503, f"this machine has run short: {os.strerror(error.errno)}", headers=LATER)
    raise error  # an error like any other: it is logged


def _http(error: HTTPException) -> HttpProblem:
    detail = str(error.detail) if error.detail else HTTPStatus(error.status_code).phrase
    return HttpProblem(error.status_code, detail, headers=error.headers)
