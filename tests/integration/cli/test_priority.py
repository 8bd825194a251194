"""Users put their jobs behind others as they like; how far before others, an admin says."""

import json

from tests.support.cli_server import Cli

QUEUES = """
queues:
  - {name: urgent, quota: {"*": 2}, max_priority: 50}
  - {name: usual, quota: {"*": 2}}
"""
CLASS = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 5000
"""


def user(cli: Cli) -> Cli:
    """The same server, asked by somebody with the role user."""
    token = cli.json("token", "create", "--user", "ben", "--role", "user")["token"]
    url = json.loads((cli.home / "server.json").read_text())["url"]
    return Cli(cli.cwd / "home-of-ben", cli.cwd, {"BATUTA_SERVER": url, "BATUTA_TOKEN": token})


def test_a_user_may_not_go_before_others_unless_the_queue_lets_them(cli: Cli) -> None:
    (cli.cwd / "quota.yaml").write_text(QUEUES)
    (cli.cwd / "class.yaml").write_text(CLASS)
    cli.ok("queues", "apply", "quota.yaml", "class.yaml")
    ben = user(cli)

    refused = ben.run("launch", "-d", "--priority", "1", "--", "sleep 60")
    assert refused.returncode != 0
    assert "priority 1 is above 0, the most that the role user allows ben" in refused.stderr
    assert "max_priority of queue default" in refused.stderr
    assert ben.run("launch", "--dryrun", "--priority", "1", "--", "true").returncode != 0
    by_class = ben.run("launch", "-d", "-q", "usual", "--priority", "high", "--", "sleep 60")
    assert "priority 5000 is above 0" in by_class.stderr

    job = ben.launch("-q", "urgent", "--priority", "50", "--", "sleep 60")
    too_much = ben.run("launch", "-d", "-q", "urgent", "--priority", "51", "--", "sleep 60")
    assert "priority 51 is above 50, the most that queue urgent allows ben" in too_much.stderr
    assert ben.json("status", job)["priority"] == 50

    high = cli.launch("--priority", "1000", "--", "sleep 60")
    assert cli.json("status", high)["priority"] == 1000, "an admin may"


def test_what_a_queue_allows_is_kept_shown_and_written_back(cli: Cli) -> None:
    (cli.cwd / "quota.yaml").write_text(QUEUES)
    cli.ok("queues", "apply", "quota.yaml")
    assert "users may ask for up to 50" in cli.ok("queues", "describe", "urgent")
    exported = cli.ok("queues", "export")
    assert "batuta.dev/max-priority: '50'" in exported
    (cli.cwd / "again.yaml").write_text(exported)
    assert {one["change"] for one in cli.json("queues", "apply", "again.yaml")["objects"]} == {"unchanged"}
    (cli.cwd / "bad.yaml").write_text(exported.replace("'50'", "'a lot'"))
    refused = cli.run("queues", "apply", "bad.yaml")
    assert (refused.returncode, "batuta.dev/max-priority cannot be 'a lot'" in refused.stderr) == (2, True)
