"""What must not work: leaks, tricks with paths, hosts, origins, large bodies."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.served_api import ELASTIC, SLEEPER, ServedApi, served_api

SECRET = "hush-hush"


def raw(api: ServedApi, request: str, body: bytes = b"") -> str:
    """What the server answers to these very bytes."""
    place = urlsplit(api.url)
    with socket.create_connection((place.hostname, place.port), 10) as wire:
        wire.sendall(request.replace("\n", "\r\n").encode() + body)
        wire.settimeout(5)
        found = b""
        while b"\r\n\r\n" not in found:
            piece = wire.recv(65536)
            if not piece:
                break
            found += piece
        return found.decode()


# -------------------------------------------------------------------------------------------------- secrets


def test_secrets_never_appear_in_an_answer(api: ServedApi, tmp_path: Path) -> None:
    api.submit(ELASTIC)
    body = {"task": "run: x\nsecrets: {A: null}\n", "overrides": {"secret": {"A": SECRET}}}
    assert api.ask("POST", "/jobs", json=body).status_code == 201
    bad = {"task": f"run: x\nsecrets: {{A: {SECRET}}}\nnum_nodes: 99\nresources: {{accelerators: 1}}\n"}
    worse = {"task": "run: x\n", "overrides": {"secret": {"A": [SECRET]}}, "extra": SECRET}
    texts = [
        api.ask("POST", "/jobs", json=bad).text,
        api.ask("POST", "/jobs", json=worse).text,
        api.ask("POST", "/jobs?dryrun=true", json=body).text,
        api.ask("PATCH", "/jobs/1", json={"queue": "ok", "extra": SECRET}).text,
        api.ask("GET", "/events?after=0&follow=false").text,
        api.ask("GET", "/metrics").text,
    ]
    paths = ["/jobs", "/cluster", "/timeline", "/nodes", "/queues", "/tokens", "/policy", "/session"]
    for job in ("1", "2"):
        paths += [f"/jobs/{job}{more}" for more in ("", "/explain", "/events", "/progress", "/logs", "/result")]
    texts += [api.ask("GET", path).text for path in paths]
    assert not [text for text in texts if SECRET in text]
    # It is stored all the same: the job needs it.
    assert SECRET in (api.live.store.tasks.get("1") or "")
    assert SECRET in (api.live.store.tasks.get("2") or "")


# ---------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "job",
    [
        "..",
        "%2e%2e",
        "..%2f..%2fjournal.db",
        "%2fetc%2fpasswd",
        "1%00",
        ".hidden",
        "-rf",
        "a" * 200,
        "1%0a",
        "~",
    ],
)
def test_ids_that_are_paths_get_nowhere(shared_api: ServedApi, job: str) -> None:
    head = f"Host: localhost\nAuthorization: Bearer {shared_api.live.tokens['ana']}\nConnection: close\n\n"
    for more in ("", "/logs", "/progress", "/result", "/events", "/explain"):
        answer = raw(shared_api, f"GET /api/v1/jobs/{job}{more} HTTP/1.1\n{head}")
        assert answer.split()[1] in ("404", "422"), answer


def test_static_files_stay_below_their_folder(tmp_path: Path) -> None:
    built = tmp_path / "built"
    (built / "assets").mkdir(parents=True)
    (built / "index.html").write_text("<title>dashboard</title>")
    (built / "assets" / "a.js").write_text("1")
    (tmp_path / "secret.txt").write_text(SECRET)
    with served_api(tmp_path / "home", static=built) as api:
        assert "dashboard" in api.http.get("/").text
        assert "dashboard" in api.http.get("/jobs/17").text
        assert "immutable" in api.http.get("/assets/a.js").headers["cache-control"]
        assert api.http.get("/").headers["cache-control"] == "no-cache"
        assert api.http.get("/assets/b.js").status_code == 404
        for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/assets/..%2f..%2fsecret.txt", "//secret.txt"):
            answer = raw(api, f"GET {path} HTTP/1.1\nHost: localhost\nConnection: close\n\n")
            assert SECRET not in answer
        # A mistake in the path of the API is not answered with a page.
        assert api.http.get("/api/v1/nothing").status_code == 404
        assert api.http.post("/api/v1/nothing").status_code == 404
        assert api.http.put("/api/v1/jobs").status_code == 405


def test_without_a_dashboard_the_page_says_how_to_build_it(shared_api: ServedApi) -> None:
    assert "make web" in shared_api.http.get("/").text
    assert shared_api.http.get("/index.js").headers["content-type"] == "application/problem+json"


def test_paths_of_tasks_stay_within_what_is_allowed(tmp_path: Path) -> None:
    from batuta.spec.task_paths import PathRules

    (tmp_path / "mine").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "mine" / "way-out").symlink_to(tmp_path / "other")
    rules = PathRules(None, tmp_path / "mine", (tmp_path / "mine",))
    with served_api(tmp_path / "home", paths=rules) as api:
        for workdir in ("~", str(tmp_path / "mine")):
            assert api.ask("POST", "/jobs", json={"task": {"run": "x", "workdir": workdir}}).status_code == 201
        for workdir in (str(tmp_path / "other"), "~/../other", "~/way-out", "/etc", "~root"):
            answer = api.ask("POST", "/jobs", json={"task": {"run": "x", "workdir": workdir}})
            assert answer.status_code == 422, workdir
        mounts = {"run": "x", "file_mounts": {"/data": "/etc/passwd"}}
        assert api.ask("POST", "/jobs", json={"task": mounts}).status_code == 422


# -------------------------------------------------------------------------------------- hosts and origins


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:7077", "127.9.9.9", "dash.localhost:1"])
def test_names_of_loopback_are_ours(shared_api: ServedApi, host: str) -> None:
    assert shared_api.ask("GET", "/cluster", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7077",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::2]",
        "a b",
    ],
)
def test_another_name_is_not_ours(shared_api: ServedApi, host: str) -> None:
    """DNS rebinding: a page of evil.example that its DNS leads here."""
    for path in ("/cluster", "/healthz", "/metrics"):
        answer = shared_api.ask("GET", path, headers={"Host": host})
        assert answer.status_code == 421
        assert answer.json()["status"] == 421


def test_a_request_without_a_host(shared_api: ServedApi) -> None:
    assert raw(shared_api, "GET /healthz HTTP/1.0\n\n").split()[1] == "421"


def test_a_server_may_listen_elsewhere(tmp_path: Path) -> None:
    with served_api(tmp_path / "a", hosts=("gpu.example",)) as api:
        assert api.ask("GET", "/cluster", headers={"Host": "GPU.example:7077"}).status_code == 200
        assert api.ask("GET", "/cluster", headers={"Host": "10.0.0.1"}).status_code == 421
    with served_api(tmp_path / "b", hosts=("0.0.0.0",)) as api:
        assert api.ask("GET", "/cluster", headers={"Host": "10.0.0.1:7077"}).status_code == 200
        assert api.ask("GET", "/cluster", headers={"Host": "evil.example"}).status_code == 421


@pytest.fixture(scope="module")
def browser(shared_api: ServedApi) -> dict[str, str]:
    """The cookie of a browser that followed a link of ben's."""
    url = shared_api.ask("POST", "/session-links", "ben").json()["url"]
    assert url.startswith(shared_api.url + "/login?code=")
    answer = shared_api.http.get(url)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    for word in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert word in cookie
    shared_api.http.cookies.clear()
    assert shared_api.http.get(url).status_code == 403, "a link works once"
    return {"Cookie": cookie.partition(";")[0]}


def test_a_session_is_the_user_who_asked_for_the_link(shared_api: ServedApi, browser: dict[str, str]) -> None:
    answer = shared_api.ask("GET", "/session", None, headers=browser)
    assert answer.json() == {"user": "ben", "role": "user"}


def test_changes_with_a_session_come_from_the_same_origin(shared_api: ServedApi, browser: dict[str, str]) -> None:
    def submit(**headers: str) -> int:
        more = browser | {name.replace("_", "-"): value for name, value in headers.items()}
        return shared_api.ask("POST", "/jobs", None, json={"task": SLEEPER}, headers=more).status_code

    assert submit(Origin=shared_api.url) == 201
    assert submit(Origin=shared_api.url, Sec_Fetch_Site="same-origin") == 201
    assert submit() == 403
    assert submit(Origin="null") == 403
    assert submit(Origin="http://evil.example") == 403
    assert submit(Origin="http://127.0.0.1:1") == 403
    assert submit(Origin=shared_api.url, Sec_Fetch_Site="same-site") == 403
    assert submit(Sec_Fetch_Site="cross-site") == 403
    read = browser | {"Sec-Fetch-Site": "cross-site"}
    assert shared_api.ask("GET", "/jobs", None, headers=read).status_code == 403


def test_cookies_that_are_not_ours(shared_api: ServedApi, browser: dict[str, str]) -> None:
    name, _, value = browser["Cookie"].partition("=")
    body, _, mac = value.partition(".")
    for forged in ("x", f"{body}.", f"{body}.{'0' * 64}", f"e30=.{mac}", f"{body}x.{mac}", "é.é"):
        headers = {"Cookie": f"{name}={forged}".encode()}
        assert shared_api.ask("GET", "/session", None, headers=headers).status_code == 401


def test_a_session_survives_a_restart_and_ends_with_its_token(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        made = api.ask("POST", "/tokens", json={"user": "max", "role": "viewer"}).json()
        mine = {"Authorization": f"Bearer {made['token']}"}
        url = api.ask("POST", "/session-links", None, headers=mine).json()["url"]
        cookie = {"Cookie": api.http.get(url).headers["set-cookie"].partition(";")[0]}
    with served_api(tmp_path) as api:
        assert api.ask("GET", "/session", None, headers=cookie).json()["user"] == "max"
        api.ask("DELETE", f"/tokens/{made['hash']}")
        assert api.ask("GET", "/session", None, headers=cookie).status_code == 401


def test_logging_out_ends_the_session_also_for_a_copy_of_the_cookie(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        links = [api.ask("POST", "/session-links").json()["url"] for _ in range(2)]
        ended, other = ({"Cookie": api.http.get(url).headers["set-cookie"].partition(";")[0]} for url in links)
        answer = api.ask("DELETE", "/session", None, headers=ended | {"Origin": api.url})
        assert answer.status_code == 204
        name = ended["Cookie"].partition("=")[0]
        assert f'{name}=""' in answer.headers["set-cookie"]
        assert api.ask("GET", "/session", None, headers=ended).status_code == 401
        assert api.ask("GET", "/session", None, headers=other).status_code == 200
    with served_api(tmp_path) as api:
        assert api.ask("GET", "/session", None, headers=ended).status_code == 401, "a restart has brought it back"
        assert api.ask("GET", "/session", None, headers=other).status_code == 200


def test_two_servers_of_one_host_leave_each_others_cookies_alone(tmp_path: Path) -> None:
    """A browser sends the cookies of a host to all its ports."""
    with served_api(tmp_path / "one") as one, served_api(tmp_path / "two") as two:
        set_by = [
            api.http.get(api.ask("POST", "/session-links").json()["url"]).headers["set-cookie"] for api in (one, two)
        ]
        assert all("Path=/api;" in cookie for cookie in set_by)
        both = {"Cookie": "; ".join(cookie.partition(";")[0] for cookie in set_by)}
        for api in (one, two):
            assert api.ask("GET", "/session", None, headers=both).status_code == 200


def test_no_page_of_another_origin_is_let_in(shared_api: ServedApi) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    preflight = shared_api.http.request("OPTIONS", "/api/v1/jobs", headers=headers)
    assert preflight.status_code == 405
    answer = shared_api.ask("GET", "/jobs", headers={"Origin": "http://evil.example"})
    for one in (preflight, answer):
        assert not [name for name in one.headers if name.startswith("access-control")]


def test_every_answer_has_the_headers_of_safety(shared_api: ServedApi) -> None:
    for path in ("/", "/api/v1/cluster", "/api/v1/nothing", "/healthz", "/login", "/api/v1/openapi.json"):
        headers = shared_api.http.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    assert shared_api.http.get("/api/v1/cluster").headers["cache-control"] == "no-store"


# --------------------------------------------------------------------------------------------------- bodies


def test_large_bodies_are_refused(shared_api: ServedApi) -> None:
    large = b"#" * ((1 << 20) + 1)
    for path, kind in (("/jobs", "application/yaml"), ("/tokens", "application/json")):
        declared = shared_api.ask("POST", path, content=large, headers={"Content-Type": kind})
        assert declared.status_code == 413

        def chunks() -> Iterator[bytes]:
            for _ in range(20):
                yield b"#" * 65536

        counted = shared_api.ask("POST", path, content=chunks(), headers={"Content-Type": kind})
        assert counted.status_code == 413
        assert counted.json()["title"] == "Request Entity Too Large"


def test_a_body_just_small_enough_is_read(shared_api: ServedApi) -> None:
    text = SLEEPER + "#" * ((1 << 20) - len(SLEEPER))
    answer = shared_api.ask("POST", "/jobs", content=text, headers={"Content-Type": "text/yaml"})
    # The reader of task files has limits of its own.
    assert answer.status_code in (201, 422)


def test_a_lie_about_the_length(shared_api: ServedApi) -> None:
    token = shared_api.live.tokens["ana"]
    head = f"Host: localhost\nAuthorization: Bearer {token}\nContent-Type: text/yaml\n"
    for length in ("99999999999999999999999999", str(1 << 30)):
        answer = raw(shared_api, f"POST /api/v1/jobs HTTP/1.1\n{head}Content-Length: {length}\n\n")
        assert answer.split()[1] in ("400", "413")


def test_long_headers_and_paths_are_refused(shared_api: ServedApi) -> None:
    assert raw(shared_api, f"GET /healthz HTTP/1.1\nHost: localhost\nX: {'x' * 200_000}\n\n").split()[1] == "400"
    assert raw(shared_api, f"GET /{'x' * 200_000} HTTP/1.1\nHost: localhost\n\n").split()[1] == "400"


def test_errors_of_the_framework_are_problem_documents(shared_api: ServedApi) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("PUT", "/jobs", 405),
        ("GET", "/jobs?limit=x", 422),
        ("PATCH", "/jobs/1", 422),
    ):
        answer = shared_api.ask(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status
        assert problem["title"]
        assert problem["type"].startswith("urn:batuta:problem:")
    assert json.loads(shared_api.ask("PUT", "/jobs").text)["detail"]
