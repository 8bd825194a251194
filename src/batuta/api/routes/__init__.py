"""HTTP routes, one module per resource; here, the parameters and problem responses that they share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BeforeValidator

from batuta.api.middleware import decode_slashes
from batuta.api.request_models import JOB_ID, NAME
from batuta.api.responses import MEDIA_TYPE

MAX_LIMIT = 1_000

JobIdPath = Annotated[
    str, BeforeValidator(decode_slashes), Path(pattern=JOB_ID, description="the job's id, a slash as %2F")
]
NodePath = Annotated[str, Path(pattern=NAME, description="the node's name")]
QueuePath = Annotated[str, Path(pattern=NAME, description="the queue's name")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
Seq = Annotated[int, Query(ge=0, le=2**53)]
TimeS = Annotated[float, Query(ge=0, le=1e12, allow_inf_nan=False)]

_REASONS = {
    400: "the request cannot be understood",
    401: "the request has no token, or one that is not known",
    403: "the asker may not do this",
    404: "there is no such thing",
    405: "not with this method",
    409: "not in the state that it is in",
    413: "the body is too large",
    415: "the body is of a kind that is not read here",
    416: "there are no such bytes",
    421: "the request is meant for another server",
    422: "bad input, all problems at once",
    429: "too many of this kind at once",
    500: "a fault of the server",
    501: "this server cannot do that",
    503: "the server is shutting down, or not ready",
    504: "the engine did not answer in time",
    507: "nothing can be stored now",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problem documents that a route may answer with, beside those that every route may."""
    return {
        status: {"description": _REASONS[status], "content": {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}}}
        for status in sorted({*statuses, 401, 403, 421, 422})
    }


PROBLEM_SCHEMA = {"$ref": "#/components/schemas/ProblemDocument"}
CHANGES = (400, 413, 503, 504, 507)  # what may be in the way of every change
