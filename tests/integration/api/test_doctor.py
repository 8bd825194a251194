"""A server that is asked how it is: by HTTP, and by `batuta doctor` as people call it."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli.main import app
from tests.support.served_api import ServedApi, served_api


def by_check(findings: list[dict]) -> dict[str, dict]:
    return {one["check"]: one for one in findings}


def ask(api: ServedApi, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, dict]]:
    """The exit code of `batuta doctor --json` at this server, and what it says."""
    monkeypatch.setenv("BATUTA_SERVER", api.url)
    monkeypatch.setenv("BATUTA_TOKEN", api.live.tokens["vic"])
    monkeypatch.setenv("BATUTA_HOME", str(folder / "nobody"))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    return done.exit_code, by_check(json.loads(done.stdout))


def test_a_server_that_is_well(tmp_path, monkeypatch):
    with served_api(tmp_path) as api:
        api.submit()
        answer = api.get("/doctor", "vic")
        found = by_check(answer["findings"])
        code, told = ask(api, tmp_path, monkeypatch)
    assert {one["severity"] for one in found.values()} <= {"ok", "warning"}  # a small disk is no error
    assert {
        "engine",
        "stuck gangs",
        "leaked quota",
        "orphan reservations",
        "journal",
        "server's disk",
    } <= set(found)
    assert abs(answer["now_s"] - time.time()) < 60
    assert (code, told["clock"]["severity"]) == (0, "ok")
    assert told["version"]["found"].endswith("the server is 0.0-test")
    assert {check: told[check]["severity"] for check in found} == {
        check: one["severity"] for check, one in found.items()
    }


def test_books_that_do_not_agree_are_errors(tmp_path, monkeypatch):
    with served_api(tmp_path) as api:
        with api.live.service.reading() as (world, _):
            world.flavors["gone"] = (("nvidia.com/gpu", "default"),)
            world.layout.set_free(0, world.layout.free[0] & ~1)
        code, told = ask(api, tmp_path, monkeypatch)
    assert code == 1
    assert told["leaked quota"]["severity"] == told["orphan reservations"]["severity"] == "error"
    assert "node-0:0" in told["orphan reservations"]["found"]


@pytest.mark.parametrize("skew_s", [-90.0, 90.0])
def test_a_clock_that_differs(tmp_path, monkeypatch, skew_s):
    with served_api(tmp_path, clock=lambda: time.time() + skew_s) as api:
        _, told = ask(api, tmp_path, monkeypatch)
    assert told["clock"]["severity"] == "warning"
    assert "differs by" in told["clock"]["found"]


def test_an_engine_that_has_died(tmp_path, monkeypatch):
    with served_api(tmp_path) as api:
        api.live.service.failure = ZeroDivisionError("no idea")
        code, told = ask(api, tmp_path, monkeypatch)
        api.live.service.failure = None
    assert code == 1
    assert (told["engine"]["severity"], "no idea" in told["engine"]["found"]) == ("error", True)
