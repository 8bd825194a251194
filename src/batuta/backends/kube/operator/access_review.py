"""Authenticate tokens and check permissions by asking the API server, so that cluster users and roles apply.

It needs what the role `system:auth-delegator` has: to create TokenReviews and SubjectAccessReviews.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Unreadable
from batuta.backends.kube.client.kinds import CONFIG_MAP


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
    user = await _user(api, token, audiences)
    if user is None:
        return None
    jobs = {"group": names.GROUP, "resource": names.PLURAL}
    may_see = await _may(api, user, "list", jobs)
    return ReviewedUser(user.username, may_see, may_see and await _may(api, user, "patch", jobs))


async def may_patch_config_map(api: Api, token: str, audiences: Sequence[str], namespace: str, name: str) -> bool:
    """Whether the user of a token may patch one ConfigMap, by what the cluster says now."""
    user = await _user(api, token, audiences)
    what = {"resource": CONFIG_MAP.plural, "namespace": namespace, "name": name}
    return user is not None and await _may(api, user, "patch", what)


async def _user(api: Api, token: str, audiences: Sequence[str]) -> _UserInfo | None:
    wanted = {"audiences": list(audiences)} if audiences else {}
    found = await _ask(api, "authentication.k8s.io/v1", "TokenReview", {"token": token, **wanted})
    # An authenticator that knows nothing of audiences names none: it says who, and not for whom.
    is_for_us = not audiences or bool(set(audiences).intersection(found.audiences))
    return found.user if found.authenticated and is_for_us else None


async def _may(api: Api, user: _UserInfo, verb: str, what: Mapping[str, str]) -> bool:
    who = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
    spec = {**who, "resourceAttributes": {"verb": verb, **what}}
    return (await _ask(api, "authorization.k8s.io/v1", "SubjectAccessReview", spec)).allowed


async def _ask(api: Api, version: str, kind: str, spec: dict[str, Any]) -> _Status:
    body = {"apiVersion": version, "kind": kind, "spec": spec}
    got = await api.raw("POST", f"/apis/{version}/{kind.lower()}s", body)
    try:
        return msgspec.json.decode(got, type=_Review).status
    except msgspec.MsgspecError as error:
        raise Unreadable(f"the answer to a review cannot be read: {error}") from error
