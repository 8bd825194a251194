"""Who asks an operator is asked of the cluster: not at every request, and not for ever."""

import asyncio
import json
from typing import Any

import pytest

from batuta.api.responses import HttpProblem
from batuta.backends.kube.client.errors import Forbidden, Unavailable
from batuta.bootstrap.token_review import (
    MOST_TOKENS,
    MOST_UNKNOWN,
    TOKEN_FRESH_S,
    TOKEN_REFUSED_S,
    UNKNOWN_AT_ONCE,
    TokenReviewAuthenticator,
)
from batuta.store.records import Role, hash_of


class Cluster:
    """Answers reviews: `rights` has by token what its bearer may do with all UnifiedJobs."""

    def __init__(self, audiences: tuple[str, ...] = (), **rights: tuple[str, ...]) -> None:
        self.rights = rights
        self.made_for: dict[str, list[str]] = {}  # by token; the API server returns those that were asked for, too
        self.reviews = 0
        self.trouble: Exception | None = None
        self.now_s = 0.0
        self.answers = asyncio.Event()  # about tokens that begin with `held-up`, from then on
        self.at_once = self.most_at_once = 0
        self.bearers = TokenReviewAuthenticator(self, audiences, clock=lambda: self.now_s)  # type: ignore[arg-type]

    async def raw(self, method: str, path: str, body: Any) -> bytes:
        if self.trouble is not None:
            raise self.trouble
        spec = body["spec"]
        if path.endswith("tokenreviews"):
            self.reviews += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            if spec["token"].startswith("held-up"):
                await self.answers.wait()
            self.at_once -= 1
            known = spec["token"] in self.rights
            user = {"username": spec["token"], "groups": ["staff"], "extra": {"scopes": ["a"]}}
            status = {"authenticated": known, "user": user if known else {}}
            if "audiences" in spec and spec["token"] in self.made_for:
                status["audiences"] = [one for one in spec["audiences"] if one in self.made_for[spec["token"]]]
            return json.dumps({"status": status}).encode()
        assert spec["groups"] == ["staff"]
        verb = spec["resourceAttributes"]["verb"]
        return json.dumps({"status": {"allowed": verb in self.rights[spec["user"]]}}).encode()

    def ask(self, token: str) -> Role | None:
        who = asyncio.run(self.bearers.bearing(token))
        return None if who is None else who.role


def test_rights_on_all_jobs_become_roles():
    cluster = Cluster(vic=("list",), ana=("list", "patch"), eva=("patch",))
    assert cluster.ask("vic") is Role.USER
    assert cluster.ask("ana") is Role.ADMIN
    assert cluster.ask("nobody") is None
    with pytest.raises(HttpProblem) as refused:
        cluster.ask("eva")
    assert refused.value.status == 403


def test_a_token_has_to_be_made_for_one_of_the_audiences():
    cluster = Cluster(audiences=("batuta", "gpus"), vic=("list",), ana=("list",), old=("list",))
    cluster.made_for = {"vic": ["vault", "gpus"], "ana": ["vault"]}
    assert cluster.ask("vic") is Role.USER
    assert cluster.ask("ana") is None
    # An authenticator that knows nothing of audiences says whose a token is, and not for whom.
    assert cluster.ask("old") is None


def test_the_cluster_is_asked_once_in_a_while():
    cluster = Cluster(vic=("list",))
    for _ in range(3):
        assert cluster.ask("vic") is Role.USER
    assert cluster.reviews == 1
    cluster.rights = {}
    cluster.now_s = TOKEN_FRESH_S
    assert cluster.ask("vic") is None
    cluster.rights = {"vic": ("list",)}
    assert cluster.ask("vic") is None
    cluster.now_s += TOKEN_REFUSED_S
    assert cluster.ask("vic") is Role.USER


def test_a_session_lasts_as_long_as_its_token():
    cluster = Cluster(vic=("list",))
    assert cluster.ask("vic") is Role.USER
    find = cluster.bearers.find
    assert asyncio.run(find(hash_of("vic"))) is not None
    assert asyncio.run(find(hash_of("ana"))) is None
    cluster.rights, cluster.now_s = {}, TOKEN_FRESH_S
    assert asyncio.run(find(hash_of("vic"))) is None


@pytest.mark.parametrize("trouble", [Forbidden("no"), Unavailable("away")])
def test_a_cluster_that_cannot_say_is_no_fault_of_who_asks(trouble: Exception):
    cluster = Cluster(vic=("list",))
    cluster.trouble = trouble
    with pytest.raises(HttpProblem) as refused:
        cluster.ask("vic")
    assert refused.value.status == 503


def test_a_user_without_rights_is_refused_without_asking_again_and_again():
    cluster = Cluster(eva=("patch",))
    for _ in range(3):
        with pytest.raises(HttpProblem) as refused:
            cluster.ask("eva")
        assert refused.value.status == 403
    assert cluster.reviews == 1
    cluster.rights, cluster.now_s = {"eva": ("list",)}, TOKEN_REFUSED_S
    assert cluster.ask("eva") is Role.USER


def test_made_up_tokens_neither_pile_up_nor_displace_those_of_users():
    cluster = Cluster(vic=("list",))

    async def ask_many() -> None:
        await cluster.bearers.bearing("vic")
        for number in range(MOST_TOKENS + 1):
            await cluster.bearers.bearing(f"made-up-{number}")
        await cluster.bearers.bearing("made-up-0")  # forgotten meanwhile

    asyncio.run(ask_many())
    assert cluster.reviews == MOST_TOKENS + 3
    assert asyncio.run(cluster.bearers.find(hash_of("vic"))) is not None
    assert cluster.reviews == MOST_TOKENS + 3


def test_made_up_tokens_make_no_user_wait():
    """Given a flood of made-up tokens and an API server that does not answer for them, users are served."""
    cluster = Cluster(vic=("list",), ana=("list",))

    async def flood() -> list[int]:
        await cluster.bearers.bearing("vic")
        cluster.now_s = TOKEN_FRESH_S  # so that the cluster has to be asked about vic again
        asked = [asyncio.create_task(cluster.bearers.bearing(f"held-up-{number}")) for number in range(1000)]
        await asyncio.sleep(0)
        seen = await asyncio.wait_for(cluster.bearers.bearing("vic"), 5.0)
        assert seen is not None
        cluster.answers.set()
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert await asyncio.wait_for(cluster.bearers.bearing("ana"), 5.0) is not None
        return [one.status for one in ended if isinstance(one, HttpProblem)]

    assert asyncio.run(flood()) == [429] * (1000 - MOST_UNKNOWN)
    assert cluster.most_at_once <= UNKNOWN_AT_ONCE + 1


def test_requests_at_once_with_one_token_are_one_review():
    cluster = Cluster(vic=("list",))

    async def ask_ten() -> None:
        assert all(await asyncio.gather(*(cluster.bearers.bearing("vic") for _ in range(10))))

    asyncio.run(ask_ten())
    assert cluster.reviews == 1
