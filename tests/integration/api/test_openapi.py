"""Whatever the OpenAPI document allows, and much that it does not: no 5xx, and answers are as documented."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from tests.integration.api.test_roles import ROUTES, Route
from tests.support.served_api import ELASTIC, ServedApi, served_api

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
EXAMPLES = 20
ENDLESS = ("/api/v1/events", "/api/v1/jobs/{job}/logs")
"""Streams that go on for ever, if they are told to follow."""


@pytest.fixture(scope="module")
def filled_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """Some jobs to find, running and over."""
    with served_api(tmp_path_factory.mktemp("openapi")) as api:
        for _ in range(3):
            api.submit(ELASTIC)
        api.ask("DELETE", "/jobs/3")
        api.live.files.write_log("1", "a line\n")
        api.live.files.write_progress("1", '{"step": 1, "loss": 0.5}\n')
        yield api


@pytest.fixture(scope="module")
def document(filled_api: ServedApi) -> Any:
    return schemathesis.openapi.from_url(f"{filled_api.url}/api/v1/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_the_api_answers_as_documented(
    document: Any, filled_api: ServedApi, route: Route, mode: GenerationMode
) -> None:
    """Positive: as documented. Negative: something about it is not."""

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=document[route.path][route.method.upper()].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        if route.path in ENDLESS:
            case.query = dict(case.query or {}) | {"follow": "false"}
        answer = case.call(headers=filled_api.live.headers(), timeout=20)
        case.validate_response(answer, checks=CHECKS)

    try:
        ask()
    except Unsatisfiable:
        # Only what takes no input cannot be asked for wrongly; that nothing can be asked for is a failure.
        assert mode is GenerationMode.NEGATIVE
        operation = document.raw_schema["paths"][route.path][route.method]
        assert not operation.get("parameters")
        assert "requestBody" not in operation
