"""Authenticate tokens and check permissions by asking the API server, so that cluster users and roles apply.

It needs what the role `system:auth-delegator` has: to create TokenReviews and SubjectAccessReviews.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Unreadable

_TOKENS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReviewedUser:
    """A user whom the cluster knows."""

    user: str
    may_see: bool
    """All UnifiedJobs, in every namespace."""
    may_change: bool
    """The same."""


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _UserInfo = msgspec.field(default_factory=_UserInfo)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


async def review(api: Api, token: str) -> ReviewedUser | None:
    """The user of a token; None if the cluster does not know it. Raises ApiError if the review fails."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    found = _decoded(_TokenReview, await api.raw("POST", _TOKENS, body)).status
    if not found.authenticated:
        return None
    may_see = await _may(api, found.user, "list")
    return ReviewedUser(found.user.username, may_see, may_see and await _may(api, found.user, "patch"))


async def _may(api: Api, user: _UserInfo, verb: str) -> bool:
    spec: dict[str, Any] = {
        "user": user.username,
        "uid": user.uid,
        "groups": user.groups,
        "extra": user.extra,
        "resourceAttributes": {"verb": verb, "group": names.GROUP, "resource": names.PLURAL},
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return _decoded(_AccessReview, await api.raw("POST", _ACCESS, body)).status.allowed


def _decoded(kind: type[T], got: bytes) -> T:
    try:
        return msgspec.json.decode(got, type=kind)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"the answer to a review cannot be read: {error}") from error
