"""`batuta audit` tells who did what, as the command line is used."""

import getpass

from tests.support.cli_server import Cli


def test_audit_lists_who_did_what_to_a_job(cli: Cli):
    job = cli.launch("--", "sleep", "600")
    cli.ok("cancel", job, "-y")
    found = cli.json("audit", "--job", job, "--user", getpass.getuser(), "--since", "1h")
    assert [(one["type"], one["user"]) for one in found] == [
        ("JobSubmitted", getpass.getuser()),
        ("JobWished", getpass.getuser()),
    ]
    text = cli.ok("audit", "--job", job)
    assert f"job {job}" in text
    assert getpass.getuser() in text
    assert "nothing that a user did" in cli.ok("audit", "--user", "nobody-of-that-name")


def test_a_token_has_a_time_to_live_and_its_making_is_audited(cli: Cli):
    cli.ok("token", "create", "--user", "zoe", "--expires", "12h")
    cli.ok("token", "create", "--user", "yan", "--expires", "never")
    shown = {one["user"]: one for one in cli.json("token", "list")}
    assert 11.9 * 3600 < shown["zoe"]["expires_s"] - shown["zoe"]["created_s"] <= 12 * 3600
    assert shown["yan"]["expires_s"] is None
    made = next(one["what"] for one in cli.json("audit") if "zoe" in one["what"])
    assert made.startswith("a token is made for zoe (user)")
