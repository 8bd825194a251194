"""Authenticate tokens and check permissions by asking the API server, so that cluster users and roles apply.

It needs what the role `system:auth-delegator` has: to create TokenReviews and SubjectAccessReviews.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Unreadable


@dataclass(frozen=True, slots=True)
class ReviewedUser:
    """A user whom the cluster knows."""

    user: str
    may_see: bool  # all UnifiedJobs, in every namespace
    may_change: bool  # the same


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct):
    """Of a TokenReview or a SubjectAccessReview."""

    authenticated: bool = False
    user: _UserInfo = msgspec.field(default_factory=_UserInfo)
    audiences: list[str] = []
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


async def review(api: Api, token: str, audiences: Sequence[str] = ()) -> ReviewedUser | None:
    """The user of a token; None if the cluster does not know it, or if it was made for none of the audiences.

    Raises ApiError if the review fails.
    """
    wanted = {"audiences": list(audiences)} if audiences else {}
    found = await _ask(api, "authentication.k8s.io/v1", "TokenReview", {"token": token, **wanted})
    if not found.authenticated:
        return None
    # An authenticator that knows nothing of audiences names none: it says who, and not for whom.
    if audiences and not set(audiences).intersection(found.audiences):
        return None
    may_see = await _may(api, found.user, "list")
    return ReviewedUser(found.user.username, may_see, may_see and await _may(api, found.user, "patch"))


async def _may(api: Api, user: _UserInfo, verb: str) -> bool:
    who = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
    spec = {**who, "resourceAttributes": {"verb": verb, "group": names.GROUP, "resource": names.PLURAL}}
    return (await _ask(api, "authorization.k8s.io/v1", "SubjectAccessReview", spec)).allowed


async def _ask(api: Api, version: str, kind: str, spec: dict[str, Any]) -> _Status:
    body = {"apiVersion": version, "kind": kind, "spec": spec}
    got = await api.raw("POST", f"/apis/{version}/{kind.lower()}s", body)
    try:
        return msgspec.json.decode(got, type=_Review).status
    except msgspec.MsgspecError as error:
        raise Unreadable(f"the answer to a review cannot be read: {error}") from error
