"""What an API server refuses, as the errors that the command line knows how to say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from batuta.backends.kube.client import errors as kube
from batuta.client.errors import ApiError, ClientError, NoServerError
from batuta.spec.problem import Problem

NO_DEFINITION = "this cluster does not know UnifiedJobs: `batuta install --apply` installs Batuta there"


@contextmanager
def said_plainly() -> Iterator[None]:
    """One clear sentence for whatever goes wrong between here and the API server."""
    try:
        yield
    except kube.AccessError as error:
        raise NoServerError(str(error)) from error
    except kube.Unavailable as error:
        raise NoServerError(error.message) from error
    except kube.Forbidden as error:
        raise ApiError(403, "forbidden", _forbidden(error)) from error
    except kube.NotFound as error:
        raise ClientError(_missing(error)) from error
    except kube.Invalid as error:
        raise ApiError(422, "refused", error.message, _problems(error)) from error
    except kube.Conflict as error:
        raise ClientError(f"somebody else changed it meanwhile, try again: {error.message}") from error
    except kube.ApiError as error:
        raise ClientError(error.message) from error


def _forbidden(error: kube.Forbidden) -> str:
    """The server's sentence names the user, the verb and the place; the way out is ours."""
    where = "-n NAMESPACE names one where you may, or " if "cluster scope" in error.message else ""
    return f"{error.message} ({where}ask for the role batuta-view or batuta-edit)"


def _missing(error: kube.NotFound) -> str:
    if not error.details.kind:
        return NO_DEFINITION  # no such path at all
    if error.details.kind == "namespaces":
        return f"there is no namespace {error.details.name}"
    return error.message


def _problems(error: kube.Invalid) -> list[Problem]:
    return [
        Problem(f"{cause.field}: {cause.message}" if cause.field else cause.message)
        for cause in error.causes
        if cause.message
    ]
