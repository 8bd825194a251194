"""Errors of the client. Each message says what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.spec.problem import Problem


class ClientError(Exception):
    """Something a client was asked for did not happen."""


class NoServerError(ClientError):
    """No server answers at the address."""


class UnprovenServerError(NoServerError):
    """Another program listens at the address of the server of a state directory. It was sent no token."""


class UntrustedServerError(ClientError):
    """The certificate that a server shows is not one to believe. It was sent no token."""


class AnswerError(ClientError):
    """The server answered something that this version does not understand."""


class ApiError(ClientError):
    """The server refused. `problems` has everything that is wrong with the input, with places."""

    def __init__(self, status: int, title: str, detail: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__("\n".join(map(str, problems)) or detail or title or f"HTTP {status}")
        self.status = status
        self.title = title
        self.detail = detail
        self.problems = tuple(problems)


class UnknownJobError(ClientError):
    """There is no job with this id or name, or with several of the given ones."""


class AmbiguousJobError(ClientError):
    """Several living jobs have this name. `ids` are theirs, the newest first."""

    def __init__(self, message: str, ids: Sequence[str]) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class OutputGoneError(ClientError):
    """A job has printed something, and the cluster has it no longer."""


class WaitTimeoutError(ClientError, TimeoutError):
    """What was waited for did not happen in time."""
