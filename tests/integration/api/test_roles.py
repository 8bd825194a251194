"""Who may do what: every route of the OpenAPI document, for everybody."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.served_api import SLEEPER, ServedApi, served_api, until

EVERYBODY, VIEWER, USER, ADMIN = "everybody", "viewer", "user", "admin"
ROLES = {None: 0, "vic": 1, "ben": 2, "ana": 3}
OBJECT = {"kind": "Cohort", "name": "nobody"}
NEEDED = {EVERYBODY: 0, VIEWER: 1, USER: 2, ADMIN: 3}


class Route(NamedTuple):
    role: str
    method: str
    path: str
    """As the document has it."""
    body: Any = None


ROUTES = (
    Route(EVERYBODY, "get", "/healthz"),
    Route(EVERYBODY, "get", "/readyz"),
    Route(VIEWER, "get", "/metrics"),
    Route(VIEWER, "get", "/api/v1/jobs"),
    Route(USER, "post", "/api/v1/jobs", {"task": SLEEPER}),
    Route(VIEWER, "get", "/api/v1/jobs/{job}"),
    Route(USER, "patch", "/api/v1/jobs/{job}", {"priority": -1}),
    Route(USER, "delete", "/api/v1/jobs/{job}"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/logs"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/logs/search"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/task"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/gpu-use"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/explain"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/suggestions"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/events"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/progress"),
    Route(VIEWER, "get", "/api/v1/jobs/{job}/result"),
    Route(VIEWER, "get", "/api/v1/timeline"),
    Route(VIEWER, "get", "/api/v1/cluster"),
    Route(VIEWER, "get", "/api/v1/nodes"),
    Route(ADMIN, "post", "/api/v1/nodes/{node}/cordon"),
    Route(ADMIN, "post", "/api/v1/nodes/{node}/uncordon"),
    Route(ADMIN, "post", "/api/v1/nodes/{node}/drain"),
    Route(ADMIN, "post", "/api/v1/nodes/{node}/mended", {}),
    Route(VIEWER, "get", "/api/v1/queues"),
    Route(VIEWER, "get", "/api/v1/queues/{queue}"),
    Route(ADMIN, "put", "/api/v1/queues/{queue}", {}),
    Route(VIEWER, "get", "/api/v1/quota"),
    Route(ADMIN, "patch", "/api/v1/quota", {"files": [{"text": "queues: [{name: team}]"}]}),
    Route(ADMIN, "delete", "/api/v1/quota/{kind}/{name}"),
    Route(VIEWER, "get", "/api/v1/policy"),
    Route(ADMIN, "put", "/api/v1/policy", {"name": "fifo"}),
    Route(VIEWER, "get", "/api/v1/shadow"),
    Route(ADMIN, "put", "/api/v1/shadow", {"policy": "fifo"}),
    Route(VIEWER, "get", "/api/v1/report"),
    Route(VIEWER, "get", "/api/v1/doctor"),
    Route(VIEWER, "get", "/api/v1/eta"),
    Route(USER, "post", "/api/v1/whatif", {"policy": "fifo"}),
    Route(VIEWER, "get", "/api/v1/events"),
    Route(ADMIN, "get", "/api/v1/tokens"),
    Route(ADMIN, "post", "/api/v1/tokens", {"user": "new", "role": "viewer"}),
    Route(ADMIN, "delete", "/api/v1/tokens/{hash}"),
    Route(VIEWER, "post", "/api/v1/session-links"),
    Route(VIEWER, "get", "/api/v1/session"),
    Route(EVERYBODY, "get", "/api/v1/server-proof"),
    Route(ADMIN, "get", "/api/v1/audit"),
    Route(VIEWER, "delete", "/api/v1/session"),
    Route(ADMIN, "post", "/api/v1/shutdown", {"keep_jobs": True}),
)
OPEN_DOCUMENT = "/api/v1/openapi.json"


def ask(api: ServedApi, route: Route, headers: dict[str, str]) -> int:
    """The status of the answer; each needs a job of ben's, which may be gone afterwards."""
    job = api.submit(user="ben")["id"] if "{job}" in route.path else ""
    path = route.path.format(job=job, node="node-0", queue="default", hash="0" * 64, **OBJECT)
    params = {"follow": "false"} if path.endswith("/events") else {}
    params |= {"text": "x"} if path.endswith("/search") else {}
    params |= {"nonce": "0" * 32} if path.endswith("/server-proof") else {}
    more = {} if route.body is None else {"json": route.body}
    return api.http.request(route.method, path, headers=headers, params=params, **more).status_code


def test_every_route_is_in_the_table(shared_api: ServedApi) -> None:
    document = shared_api.http.get(OPEN_DOCUMENT).json()
    documented = {(method, path) for path, item in document["paths"].items() for method in item}
    assert documented == {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_each_role_does_what_it_may_and_nothing_else(shared_api: ServedApi, route: Route) -> None:
    for user, rank in ROLES.items():
        headers = shared_api.live.headers(user) if user else {}
        status = ask(shared_api, route, headers)
        if rank >= NEEDED[route.role]:
            # 404: there is no result, and no token with such a hash. 409: no node is ill.
            assert status < 300 or status in {404, 409}, f"{user}: {status}"
        else:
            assert status == (403 if user else 401), f"{user}: {status}"


WRONG = ("Bearer batuta_wrong", "Bearer", "Basic YW5hOmFuYQ==", "batuta_wrong", "Bearer a b")


@pytest.mark.parametrize("route", [one for one in ROUTES if one.role != EVERYBODY], ids=lambda one: one.path)
def test_a_wrong_token_gets_nowhere(shared_api: ServedApi, route: Route) -> None:
    path = route.path.format(job="1", node="node-0", queue="default", hash="0" * 64, **OBJECT)
    for header in WRONG:
        answer = shared_api.http.request(route.method, path, headers={"Authorization": header}, json=route.body)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_user_changes_only_their_own_jobs(api: ServedApi) -> None:
    own = api.submit(user="ben")["id"]
    for method, body in (("PATCH", {"priority": 5}), ("DELETE", None)):
        refused = api.ask(method, f"/jobs/{own}", "eva", json=body)
        assert refused.status_code == 403
        assert "ben" in refused.json()["detail"]
    assert api.job(own)["priority"] == 0
    assert api.ask("PATCH", f"/jobs/{own}", "ben", json={"priority": -5}).json()["priority"] == -5
    assert api.ask("DELETE", f"/jobs/{own}", "ana").status_code == 202
    api.wait_for(own, "CANCELLED")
    assert api.ask("DELETE", f"/jobs/{own}", "eva").status_code == 403


@pytest.mark.parametrize(("reader", "value"), [("ben", "k-123"), ("ana", "k-123"), ("eva", None), ("vic", None)])
def test_values_of_envs_are_for_the_jobs_user_and_admins(shared_api: ServedApi, reader: str, value: str | None) -> None:
    """Given a job with a key in its envs, other users and viewers see the name of the variable alone."""
    job = shared_api.submit(SLEEPER + "envs: {WANDB_API_KEY: k-123}\n", user="ben")["id"]
    assert shared_api.get(f"/jobs/{job}", reader)["task"]["envs"] == {"WANDB_API_KEY": value or "<hidden>"}
    file = shared_api.ask("GET", f"/jobs/{job}/task", reader).text
    assert yaml.safe_load(file)["envs"] == {"WANDB_API_KEY": value}
    told = [
        shared_api.ask("GET", path, reader).text for path in (f"/jobs/{job}/events", f"/jobs/{job}/explain", "/jobs")
    ]
    assert "k-123" not in "".join(told)
    shared_api.ask("DELETE", f"/jobs/{job}")


def test_a_user_may_not_raise_a_priority_above_what_the_role_or_the_queue_allows(api: ServedApi) -> None:
    queue = {"quota": {"*": 2}, "max_priority": 50}
    assert api.ask("PUT", "/queues/urgent", json=queue).json()["max_priority"] == 50
    own = api.submit(user="ben")["id"]
    refused = api.ask("PATCH", f"/jobs/{own}", "ben", json={"priority": 5})
    assert (refused.status_code, "priority 5 is above 0" in refused.json()["detail"]) == (403, True)
    moved = api.ask("PATCH", f"/jobs/{own}", "ben", json={"priority": 50, "queue": "urgent"})
    assert (moved.status_code, moved.json()["priority"]) == (200, 50)
    back = api.ask("PATCH", f"/jobs/{own}", "ben", json={"queue": "default"})
    assert (back.status_code, "priority 50 is above 0" in back.json()["detail"]) == (403, True)
    assert api.ask("PATCH", f"/jobs/{own}", "ben", json={"wish": "park"}).status_code == 200
    trial, kind = "run: x\ntrial: {sizes: [1], priority: 500}\n", {"Content-Type": "application/yaml"}
    tried = api.ask("POST", "/jobs", "ben", content=trial, headers=kind)
    assert (tried.status_code, "priority 500 is above 0" in tried.json()["detail"]) == (403, True)
    assert api.ask("PATCH", f"/jobs/{own}", "ana", json={"priority": 900}).json()["priority"] == 900


def test_a_revoked_token_is_refused_at_once(api: ServedApi) -> None:
    made = api.ask("POST", "/tokens", json={"user": "max", "role": "user"}).json()
    mine = {"Authorization": f"Bearer {made['token']}"}
    assert api.ask("GET", "/session", None, headers=mine).json() == {"user": "max", "role": "user"}
    assert made["token"] not in api.ask("GET", "/tokens").text
    assert api.ask("DELETE", f"/tokens/{made['hash']}").status_code == 204
    assert api.ask("GET", "/session", None, headers=mine).status_code == 401


def test_a_token_ends_after_90_days_unless_it_was_made_for_another_time(api: ServedApi) -> None:
    before_s = time.time()
    kinds: tuple[dict[str, float | None], ...] = ({}, {"valid_s": 60}, {"valid_s": None})
    made = [api.ask("POST", "/tokens", json={"user": "max", "role": "user", **own}).json() for own in kinds]
    lasts = [None if one["expires_s"] is None else one["expires_s"] - before_s for one in made]
    assert lasts == [pytest.approx(90 * 86_400, abs=60), pytest.approx(60, abs=60), None]
    assert [one["expires_s"] for one in api.ask("GET", "/tokens").json()["tokens"] if one["user"] == "max"] == [
        one["expires_s"] for one in made
    ]
    assert api.ask("POST", "/tokens", json={"user": "max", "role": "user", "valid_s": 0}).status_code == 422


def test_a_token_that_has_expired_is_refused_and_so_are_its_sessions(api: ServedApi) -> None:
    made = api.ask("POST", "/tokens", json={"user": "max", "role": "user", "valid_s": 1.0}).json()
    mine = {"Authorization": f"Bearer {made['token']}"}
    url = api.ask("POST", "/session-links", None, headers=mine).json()["url"]
    cookie = {"Cookie": api.http.get(url).headers["set-cookie"].partition(";")[0]}
    give_up = time.monotonic() + 20.0
    while any(api.ask("GET", "/session", None, headers=own).status_code == 200 for own in (mine, cookie)):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert time.time() >= made["expires_s"]
    assert api.ask("GET", "/session", None, headers=mine).status_code == 401


def test_the_last_admin_keeps_a_token(api: ServedApi) -> None:
    refused = api.ask("DELETE", f"/tokens/{api.live.hash_of('ana')}")
    assert refused.status_code == 409
    api.ask("POST", "/tokens", json={"user": "second", "role": "admin"})
    assert api.ask("DELETE", f"/tokens/{api.live.hash_of('ana')}").status_code == 204


def test_metrics_may_be_opened(tmp_path: Path) -> None:
    with served_api(tmp_path, open_metrics=True) as api:
        assert api.ask("GET", "/metrics", None).status_code == 200
        assert api.ask("GET", "/cluster", None).status_code == 401


def test_shutdown_tells_whether_jobs_go_on(api: ServedApi) -> None:
    bodies: tuple[Any, ...] = ({}, {"keep_jobs": True}, {"keep_jobs": False})
    assert api.ask("POST", "/shutdown").status_code == 202
    for body in bodies:
        assert api.ask("POST", "/shutdown", json=body).status_code == 202
    until(lambda: len(api.live.shutdowns) == 4)
    assert api.live.shutdowns == [True, True, True, False]
