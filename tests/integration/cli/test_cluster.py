"""The cluster by hand: nodes, queues, policies, events, tokens, the whole at a glance."""

import json
import signal

import pytest


@pytest.mark.parametrize(
    "verb",
    [
        *(["queue"], ["status"], ["history"], ["nodes"], ["nodes", "list"], ["gpus"], ["queues"]),
        *(["queues", "list"], ["queues", "list", "--tree"], ["queues", "describe", "default"]),
        *(["policy"], ["policy", "show"]),
        *(["policy", "list"], ["top"], ["doctor"], ["token", "list"], ["dashboard"]),
    ],
    ids=" ".join,
)
def test_all_speak_json_and_words(cli, verb):
    cli.json(*verb)
    words = cli.ok(*verb)
    assert words.strip()
    assert "\x1b[" not in words, "no colours in a pipe"


def test_nodes_are_taken_out_of_service_and_back(cli):
    (node,) = cli.json("nodes", "cordon", "node-1")
    assert node["state"] == "cordoned"
    assert "uncordon node-1" in cli.ok("doctor")
    (node,) = cli.json("nodes", "uncordon", "node-1")
    assert node["state"] == "ready"
    assert "node-1" in cli.ok("nodes", "drain", "node-1")
    cli.ok("nodes", "uncordon", "node-1")
    wrong = cli.run("nodes", "cordon", "nowhere")
    assert (wrong.returncode, "nowhere" in wrong.stderr) == (1, True)


def test_queues_from_a_file(cli):
    (cli.cwd / "queues.yaml").write_text("queues: [{name: team-a, quota: {virtual: 2}, weight: 2}, {name: night}]")
    changed = cli.json("queues", "apply", "queues.yaml")["objects"]
    assert {(one["name"], one["change"]) for one in changed} >= {("team-a", "created"), ("night", "created")}
    assert "ClusterQueue team-a unchanged" in cli.ok("queues", "apply", "-f", "queues.yaml")
    job = cli.launch("-q", "team-a", "--", "sleep 300")
    described = cli.json("queues", "describe", "team-a")
    assert [one["id"] for one in (*described["holding"], *described["waiting"])] == [job]
    wrong = cli.run("queues", "describe", "team-b")
    assert "did you mean team-a?" in wrong.stderr
    (cli.cwd / "bad.yaml").write_text("queues:\n- {name: new, quota: {virtual: -1}}\n- {nme: other}\n")
    refused = cli.run("queues", "apply", "bad.yaml")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 3)
    assert "new" not in {one["name"] for one in cli.json("queues")}, "nothing is half applied"


def test_who_borrows_and_who_is_ahead(cli):
    """One GPU of quota in the whole cohort, which its owner does not use."""
    (cli.cwd / "queues.yaml").write_text(
        'queues: [{name: poor, quota: {"*": 0}, cohort: two}, {name: rich, quota: {"*": 1}, cohort: two}]'
    )
    cli.ok("queues", "apply", "-f", "queues.yaml")
    runs, first, second = (cli.launch("-q", "poor", "--", "sleep 300") for _ in range(3))
    cli.wait(runs, "RUNNING")
    described = cli.json("queues", "describe", "poor")
    assert [one["id"] for one in described["holding"]] == [runs]
    assert [(one["place"], one["id"]) for one in described["waiting"]] == [(1, first), (2, second)]
    tree = cli.ok("queues", "--tree")
    assert "1 of 0, 1 borrowed, 2 waiting" in tree
    assert "0 of 1, 1 lent" in tree
    assert [one["name"] for one in cli.json("queues", "--tree")["cohorts"]] == ["two"]
    told = cli.until(lambda: cli.ok("explain", second), lambda text: "WaitingForQuota" in text)
    assert "QuotaReserved=False, WaitingForQuota; 1 job of its queue is ahead" in told
    assert cli.json("status", runs)["quota_reserved"]["status"] is True
    assert "the next of its queue" in cli.ok("explain", first)


def test_the_policy_is_changed_while_jobs_run(cli):
    cli.launch("--", "sleep 300")
    before = cli.json("policy")["name"]
    assert cli.json("policy", "set", "fifo")["name"] == "fifo"
    assert cli.ok("policy").startswith("fifo: ")
    assert any(line.startswith("*") and "fifo" in line for line in cli.ok("policy", "list").splitlines())
    cli.ok("policy", "set", before)
    wrong = cli.run("policy", "set", "fif")
    assert (wrong.returncode, "did you mean" in wrong.stderr) == (2, True)


def test_events(cli):
    job = cli.launch("-n", "noted", "--", "true")
    cli.wait(job, "SUCCEEDED")
    past = [json.loads(line) for line in cli.ok("events", "--job", "noted", "-o", "json").splitlines()]
    assert [one["type"] for one in past][:2] == ["JobSubmitted", "Planned"]
    assert past[-1]["type"] in ("JobEnded", "TransitionTimed")
    assert f"job {job} is over: SUCCEEDED" in cli.ok("events", "--tail", "5")
    follower = cli.start("events", "--follow", "--tail", "1", "--type", "JobEnded", "-o", "json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["job"] == job
    another = cli.launch("--", "true")
    assert json.loads(follower.stdout.readline())["job"] == another
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=30)
    assert follower.returncode == 0


def test_tokens_and_what_they_may_do(cli):
    made = cli.json("token", "create", "--user", "ana", "--role", "viewer")
    url = cli.json("dashboard")["url"].partition("/login")[0]
    cli.environ = {"BATUTA_SERVER": url, "BATUTA_TOKEN": made["token"]}
    assert cli.json("nodes")
    refused = cli.run("launch", "-d", "--", "true")
    assert (refused.returncode, "needs the role user" in refused.stderr) == (1, True)
    cli.environ = {"BATUTA_SERVER": url, "BATUTA_TOKEN": "wrong"}
    assert cli.run("queue").returncode == 1
    assert cli.run("doctor").returncode == 1
    cli.environ = {}
    assert "token" not in cli.json("token", "list")[0]
    assert "is revoked" in cli.ok("token", "revoke", made["hash"][:12])
    assert cli.run("token", "revoke", made["hash"][:12]).returncode == 1


def test_the_dashboard_link_is_this_server_and_works_once(cli):
    import httpx2

    url = cli.ok("dashboard", "--no-open").strip()
    assert httpx2.get(url, follow_redirects=False).status_code in (302, 303)
    assert httpx2.get(url, follow_redirects=False).status_code == 403
