"""Every event that a user causes says which one, and admins can list them."""

import time
from pathlib import Path
from typing import Any

import pytest

from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.engine.shadow import Shadow
from tests.support.served_api import ServedApi, served_api

TASK = {"run": "sleep 600", "resources": {"accelerators": 1}}


def audit(api: ServedApi, **params: Any) -> list[tuple[str, str, str]]:
    """User, type and object of each, the oldest first."""
    found = api.ask("GET", "/audit", params=params).json()["events"]
    return [(one["actor"], one["type"], _object(one)) for one in reversed(found)]


def _object(event: dict[str, Any]) -> str:
    job = event.get("job")
    named = job["id"] if isinstance(job, dict) else job
    return str(named or event.get("node") or event.get("policy") or event.get("action") or "")


def test_whatever_users_do_is_listed_with_its_user(api: ServedApi) -> None:
    job = api.submit(user="ben")["id"]
    api.ask("PATCH", f"/jobs/{job}", "ben", json={"priority": -1})
    api.ask("DELETE", f"/jobs/{job}", "ana")
    api.ask("POST", "/nodes/node-0/cordon")
    api.ask("POST", "/nodes/node-0/uncordon")
    api.ask("PUT", "/policy", json={"name": "fifo"})
    api.ask("PATCH", "/quota", json={"files": [{"text": "queues: [{name: team}]"}]})
    made = api.ask("POST", "/tokens", json={"user": "new", "role": "viewer"}).json()
    api.ask("DELETE", f"/tokens/{made['hash']}")
    assert audit(api) == [
        ("ben", "JobSubmitted", job),
        ("ben", "JobChanged", job),
        ("ana", "JobWished", job),
        ("ana", "NodeCordoned", "node-0"),
        ("ana", "NodeUncordoned", "node-0"),
        ("ana", "PolicySet", "fifo"),
        ("ana", "QuotaSet", ""),
        ("ana", "ActionTaken", "token.create"),
        ("ana", "ActionTaken", "token.revoke"),
    ]
    assert made["token"] not in api.ask("GET", "/audit").text


def test_a_browser_that_signs_in_and_out_is_listed(api: ServedApi) -> None:
    url = api.ask("POST", "/session-links", "ben").json()["url"]
    cookie = {"Cookie": api.http.get(url).headers["set-cookie"].partition(";")[0], "Origin": api.url}
    api.http.cookies.clear()
    assert api.ask("DELETE", "/session", None, headers=cookie).status_code == 204
    assert audit(api) == [("ben", "ActionTaken", "session.begin"), ("ben", "ActionTaken", "session.end")]


def test_the_list_is_of_one_user_one_job_or_from_a_time_on(api: ServedApi) -> None:
    first, second = api.submit(user="ben")["id"], api.submit(user="ben")["id"]
    api.ask("DELETE", f"/jobs/{first}", "ana")
    assert audit(api, user="ana") == [("ana", "JobWished", first)]
    assert audit(api, user="nobody") == []
    assert audit(api, job=second) == [("ben", "JobSubmitted", second)]
    assert audit(api, job=first, user="ben") == [("ben", "JobSubmitted", first)]
    assert len(audit(api, since_s=time.time() - 3600)) == 3
    assert audit(api, since_s=time.time() + 3600) == []
    assert audit(api, limit=1) == [("ana", "JobWished", first)], "the newest are kept"


def test_which_policy_watches_is_listed(tmp_path: Path) -> None:
    shadow = Shadow(World(), profile_for)
    with served_api(tmp_path, shadow=shadow) as api:
        assert api.ask("PUT", "/shadow", json={"policy": "fifo"}).status_code == 200
        assert audit(api) == [("ana", "ActionTaken", "shadow.set")]
    shadow.close()


def test_it_outlives_a_restart(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        job = api.submit(user="ben")["id"]
    with served_api(tmp_path) as api:
        assert audit(api) == [("ben", "JobSubmitted", job)]


@pytest.mark.parametrize("user", ["ben", "vic"])
def test_it_is_for_admins(api: ServedApi, user: str) -> None:
    assert api.ask("GET", "/audit", user).status_code == 403
