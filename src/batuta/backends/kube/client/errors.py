"""Errors of the API server and of the way to it: one hierarchy, told apart by class, not by text."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

_INVALID: Final = frozenset({400, 405, 406, 413, 415, 422})
_LONGEST_TEXT = 500


class AccessError(Exception):
    """There is no way to the cluster yet: nothing is configured, or it is wrong. Says the fix."""


class Cause(msgspec.Struct):
    """One of several reasons for a refusal, with the field that it is about."""

    reason: str = ""
    message: str = ""
    field: str = ""


class Details(msgspec.Struct, rename="camel"):
    """What a refusal is about."""

    name: str = ""
    kind: str = ""
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int = 0


class Status(msgspec.Struct):
    """How the API server says that something did not work."""

    reason: str = ""
    message: str = ""
    details: Details | None = None
    code: int = 0


class ApiError(Exception):
    """The API server did not do what it was asked to.

    `status` is the HTTP status (0: there was no answer), `reason` the server's own word for it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        details: Details | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.details = details or Details()
        self.retry_after_s = retry_after_s

    @property
    def causes(self) -> tuple[Cause, ...]:
        return self.details.causes or ()

    def has_cause(self, reason: str) -> bool:
        return any(cause.reason == reason for cause in self.causes)


class Unauthorized(ApiError):
    """The API server does not know who we are: no credentials, or expired ones."""


class Forbidden(ApiError):
    """The API server knows who we are, and its rules do not allow this."""


class NotFound(ApiError):
    """No such object, or no such kind of object."""


class Conflict(ApiError):
    """The object changed meanwhile, or is not in a state for this; with `apply`, others own fields in it."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(c.field for c in self.causes if c.reason == "FieldManagerConflict")


class AlreadyExists(Conflict):
    """An object of this name is there."""


class Gone(ApiError):
    """The resource version is older than what the API server remembers: list again."""


class Invalid(ApiError):
    """The API server does not accept the object or the request."""


class Unreadable(ApiError):
    """It was done, but the object in the answer does not look like its kind."""


class TooManyRequests(ApiError):
    """The API server is busy, or (for an eviction) a disruption budget does not allow it now."""


class Unavailable(ApiError):
    """No answer, or one that says that the API server cannot work: worth another try later."""


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooManyRequests,
}
_status_decoder: Final = msgspec.json.Decoder(Status)


def error_of(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error that an answer stands for: the server's own words where it has some."""
    try:
        said = _status_decoder.decode(body)
    except msgspec.MsgspecError:
        said = Status(message=body[:_LONGEST_TEXT].decode(errors="replace").strip())
    return error_from(said, status, retry_after)


def error_from(said: Status, status: int = 0, retry_after: str | None = None) -> ApiError:
    """The error that a Status stands for, as an answer or in the middle of a watch."""
    status = status or said.code
    retry_after_s: float | None = None
    if said.details and said.details.retry_after_seconds:
        retry_after_s = float(said.details.retry_after_seconds)
    with suppress(ValueError):  # a date in the header is not worth reading, the back-off does as well
        retry_after_s = max(0.0, float(retry_after)) if retry_after else retry_after_s
    return _class_of(status, said.reason)(
        said.message or said.reason or f"the API server answered {status}",
        status=status,
        reason=said.reason,
        details=said.details,
        retry_after_s=retry_after_s,
    )


def _class_of(status: int, reason: str) -> type[ApiError]:
    if reason == "AlreadyExists":
        return AlreadyExists
    if status >= 500 or status == 408:
        return Unavailable
    if status in _INVALID:
        return Invalid
    return _BY_STATUS.get(status, ApiError)
