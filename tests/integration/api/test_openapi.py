"""Whatever the OpenAPI document allows, and much that it does not: no 5xx, and answers are as documented."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from batuta.api.auth import Caller
from batuta.apitypes.server_proof import server_proof
from batuta.backends.sim.forecast.coarse import coarse_forecast
from batuta.backends.sim.forecast.queries import EtaQuery, Query, QueryResult
from batuta.bootstrap.forecast_process import answer
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.engine.shadow import Shadow
from batuta.store.records import Role, hash_of
from tests.integration.api.test_roles import ROUTES, Route
from tests.support.served_api import ELASTIC, ServedApi, served_api

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
EXAMPLES, SLOW_EXAMPLES = 20, 5
SLOW = ("/api/v1/whatif",)  # each answer takes two simulations
ENDLESS = ("/api/v1/events", "/api/v1/jobs/{job}/logs")
"""Streams that go on for ever, if they are told to follow."""


QUERIES = {
    "/api/v1/jobs/{job}/logs/search": {"text": "line"},
    "/api/v1/server-proof": {"nonce": "0" * 64},
}
"""What has to be asked for, where a request without it is refused."""
TOKEN = "batuta_of_an_admin_that_no_request_can_revoke"
NOT_REACHED = {
    ("post", "/api/v1/nodes/{node}/mended"): 409,  # no node is ill here; tests/integration/local mends one
}
"""Operations for which no request here succeeds, and what they answer."""


class Irrevocable:
    """Authenticates one admin, whose token is not in the store."""

    async def bearing(self, token: str) -> Caller | None:
        return await self.find(hash_of(token))

    async def find(self, hash_: str) -> Caller | None:
        return Caller("root", Role.ADMIN, hash_) if hash_ == hash_of(TOKEN) else None


def quick_look(world: World, question: Query) -> QueryResult:
    """Looks ahead with little effort: what is asked for counts here, not the answer."""
    if isinstance(question, EtaQuery):
        return coarse_forecast(world, question.now_s)
    return answer(world, replace(question, budget_s=0.5))


@pytest.fixture(scope="module")
def filled_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """Some jobs to find, running and over."""
    shadow = Shadow(World(), profile_for)
    prove = partial(server_proof, "a secret", url="http://127.0.0.1")
    parts = {"bearers": Irrevocable(), "foresight": quick_look, "shadow": shadow, "prove": prove}
    with served_api(tmp_path_factory.mktemp("openapi"), **parts) as api:
        api.live.tokens["ana"] = TOKEN
        for _ in range(4):
            api.submit(ELASTIC)
        api.ask("DELETE", "/jobs/3")
        api.live.files.write_log("1", "a line\n")
        api.live.files.write_progress("1", '{"step": 1, "loss": 0.5}\n')
        api.live.store.results.stage("4", '{"loss": 0.5}')
        api.live.backend.end("4")
        api.wait_for("4", "SUCCEEDED")
        yield api
    shadow.close()


@pytest.fixture(scope="module")
def document(filled_api: ServedApi) -> Any:
    return schemathesis.openapi.from_url(f"{filled_api.url}/api/v1/openapi.json")


def existing(api: ServedApi, path: str) -> dict[str, str]:
    """What the parts of a path name that are there, made anew where a request removes it."""
    found = {"job": "1", "node": "node-0", "queue": "default", "kind": "Cohort", "name": "team"}
    if path.endswith("/jobs/{job}") or "/jobs/{job}/events" in path:
        found["job"] = api.submit(ELASTIC)["id"]
    elif path.endswith("/result"):
        found["job"] = "4"
    elif "{hash}" in path:
        found["hash"] = hash_of(api.live.store.tokens.create("passing", Role.VIEWER, time.time()))
    elif "{kind}" in path:
        cohort = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "team"}}
        assert api.ask("PATCH", "/quota", json={"files": [{"text": json.dumps(cohort)}]}).status_code == 200
    return {name: value for name, value in found.items() if f"{{{name}}}" in path}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_the_api_answers_as_documented(
    document: Any, filled_api: ServedApi, route: Route, mode: GenerationMode
) -> None:
    """Positive: as documented, half of it about what is there. Negative: something about it is not."""
    operation = document[route.path][route.method.upper()]
    there = existing(filled_api, route.path) if mode is GenerationMode.POSITIVE else {}
    seen = set[int]()

    def call(case: schemathesis.Case) -> None:
        if route.path in ENDLESS:
            case.query = dict(case.query or {}) | {"follow": "false"}
        answer = case.call(headers=filled_api.live.headers(), timeout=20)
        seen.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    examples = SLOW_EXAMPLES if route.path in SLOW else EXAMPLES

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode), about_there=st.booleans())
    def ask(case: schemathesis.Case, about_there: bool) -> None:
        if there and about_there:
            case.path_parameters = there
        call(case)

    if mode is GenerationMode.POSITIVE:
        known = QUERIES.get(route.path, {})
        body = {} if route.body is None else {"body": route.body, "media_type": "application/json"}
        call(operation.Case(path_parameters=there, query=known, **body))
        expected = NOT_REACHED.get((route.method, route.path))
        assert seen == {expected} if expected else max(seen) < 300, f"never reached: {seen}"
    try:
        ask()
    except Unsatisfiable:
        # Only what takes no input cannot be asked for wrongly; that nothing can be asked for is a failure.
        assert mode is GenerationMode.NEGATIVE
        raw = document.raw_schema["paths"][route.path][route.method]
        assert not raw.get("parameters")
        assert "requestBody" not in raw
    assert filled_api.ask("GET", "/session").json()["role"] == "admin", "the token still holds"
