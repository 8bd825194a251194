"""When, what if, and what would have been: from the command line, with a server and without one."""

import time

import pytest

from batuta.client.errors import ApiError, NoServerError
from batuta.spec.problem import InputError
from tests.support.cli_server import Cli

TASK = "name: more\nresources: {accelerators: virtual:4}\nrun: sleep 300\n"
ALL_VERBS = (("eta",), ("whatif", "--policy", "fifo"), ("shadow",))


def test_waiting_jobs_have_expected_starts(cli):
    jobs = [cli.launch("--gpus", "virtual:4", "--", "sleep 300") for _ in range(3)]
    cli.wait(jobs[0], "RUNNING")
    told = cli.json("eta")
    assert [job["id"] for job in told["jobs"]] == jobs
    assert told["jobs"][2]["start"]["p50_s"] > told["now_s"]
    assert cli.json("eta", jobs[2])["jobs"] == told["jobs"][2:]
    assert "started" in cli.ok("eta")


def test_what_if_tells_what_would_change(cli):
    jobs = [cli.launch("--gpus", "virtual:4", "--", "sleep 300") for _ in range(3)]
    cli.wait(jobs[0], "RUNNING")
    (cli.cwd / "task.yaml").write_text(TASK)
    told = cli.json("whatif", "--add-nodes", "2x4:virtual", "--submit", "task.yaml", "--policy", "fifo")
    assert told["wait_s"]["after"] < told["wait_s"]["before"]
    assert [job["id"] for job in told["jobs"]] == [*jobs, "new-1"]
    shown = cli.ok("whatif", "--add-nodes", "2x4:virtual")
    assert "mean completion time" in shown
    assert jobs[2] in shown


def test_a_second_policy_watches_and_tells(cli):
    assert "watches" in cli.ok("policy", "shadow", "afs-l")
    job = cli.launch("--", "true")
    cli.wait(job, "SUCCEEDED")
    told = cli.until(lambda: cli.json("shadow"), lambda report: report["cycles"] > 0)
    assert (told["policy"], told["active_policy"]) == ("afs-l", "rent")
    assert "afs-l, would" in cli.ok("shadow")
    assert "rent, replayed" in cli.ok("shadow", "--outcome")
    assert "no policy watches any more" in cli.ok("policy", "shadow", "off")


def test_explain_and_eta_agree_on_when_a_job_starts(cli):
    holder = cli.launch("--num-nodes", "8", "--", "sleep 300")
    cli.wait(holder, "RUNNING")
    waits = cli.launch("--num-nodes", "8", "--", "sleep 1")
    cli.until(lambda: cli.json("explain", waits), lambda found: found["reason"] is not None)
    explained, foretold = cli.json("explain", waits), cli.json("eta", waits)
    (start,) = [one["start"] for one in foretold["jobs"]]
    assert explained["start"]["p50_s"] == pytest.approx(start["p50_s"], abs=60.0)
    (ends,) = [one for one in explained["suggestions"] if one["code"] == "JOB_ENDS"]
    (holding,) = [one["finish"] for one in cli.json("eta", holder)["jobs"]]
    assert time.time() + ends["within_s"] == pytest.approx(holding["p50_s"], abs=60.0)
    assert "expected to start in" in cli.ok("explain", waits)


def test_the_past_is_replayed_while_the_server_runs(cli):
    job = cli.launch("--", "true")
    cli.wait(job, "SUCCEEDED")
    told = cli.json("replay", "--from", "1h", "--policy", "srjf,afs-l")
    assert [row["policy"] for row in told["rows"]] == ["", "rent", "srjf", "afs-l"]
    assert all(row["missing"] == 0 for row in told["rows"])
    both = cli.json("replay", "--from", "1h", "-p", "srjf", "-p", "afs-l")
    assert [row["policy"] for row in both["rows"]] == ["", "rent", "srjf", "afs-l"], "as with a comma"


BAD = (
    (("whatif",), ["what shall be changed"]),
    (("whatif", "--gpus", "A100:1", "--quota", "none.yaml"), ["--submit", "none.yaml"]),
    (("whatif", "--policy", "nope", "--drain", "n7", "--add-nodes", "x"), ["nope", "n7", "'x'"]),
    (("replay", "--from", "soon", "--to", "never", "--policy", "no"), ["--from", "--to", "'no'"]),
    (("replay", "--from", "1h", "--to", "2h", "--policy", "fifo"), ["--from must be before --to"]),
)


def test_all_that_is_wrong_with_a_question_is_told_at_once(cli):
    for arguments, words in BAD:
        with pytest.raises((InputError, ApiError)) as refused:
            cli.ok(*arguments)
        told = " ".join(map(str, refused.value.problems))  # type: ignore[attr-defined]
        for word in words:
            assert word in told, arguments


@pytest.mark.parametrize("arguments", ALL_VERBS, ids=lambda words: words[0])
def test_without_a_server_and_without_a_journal_there_is_no_answer(nobody: Cli, arguments):
    with pytest.raises(NoServerError, match="no server is running"):
        nobody.ok(*arguments)


def test_a_state_directory_whose_server_has_ended_still_has_answers(tmp_path):
    cli = Cli(tmp_path / "home", tmp_path)
    assert cli.run("up", "--virtual", "--port", "0", "-d").returncode == 0
    try:
        for _ in range(3):
            cli.ok("launch", "-d", "-y", "--gpus", "virtual:4", "--", "sleep 300")
    finally:
        assert cli.run("down").returncode == 0
    told = cli.json("eta")
    assert len(told["jobs"]) == 3
    changed = cli.json("whatif", "--add-nodes", "1x4:virtual")
    assert changed["wait_s"]["after"] < changed["wait_s"]["before"]
    refused = cli.run("whatif", "--policy", "nope", "--drain", "n7")
    assert refused.returncode == 2
    for word in ("nope", "n7", "by its journal"):
        assert word in refused.stderr
