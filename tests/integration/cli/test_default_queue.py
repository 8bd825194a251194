"""With quota for all GPUs, jobs that name no queue have none left beside it, and everybody is told."""

import re
from collections.abc import Iterator

import pytest

from tests.support.cli_server import Cli

ALL = """
queues:
  - {name: vision, quota: {"*": 4}}
  - {name: speech, quota: {"*": 4}}
"""
SHARED = """
queues:
  - {name: vision, quota: {"*": 4}}
  - {name: speech, quota: {"*": 2}}
"""
WITH_DEFAULT = SHARED + '  - {name: default, quota: {"*": 2}}\n'


@pytest.fixture
def clean(cli: Cli) -> Iterator[Cli]:
    """Without quota, before and after."""
    yield cli
    cli.run("cancel", "--all", "-y")
    cli.until(lambda: cli.json("queue", "--skip-finished"), lambda jobs: not jobs)
    for kind, name in re.findall(r"kind: (\w+)\nmetadata:\n  name: ([\w-]+)", cli.ok("queues", "export")):
        if kind != "ResourceFlavor":
            cli.ok("queues", "delete", kind, name)


def apply(cli: Cli, text: str, *options: str) -> str:
    """What is told of a change of quota."""
    (cli.cwd / "quota.yaml").write_text(text)
    done = cli.run("queues", "apply", "-f", "quota.yaml", *options)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_given_quota_for_all_gpus_jobs_that_name_no_queue_stop_and_are_told_why(clean: Cli) -> None:
    job = clean.launch("--num-nodes", "3", "--", "sleep 300")
    clean.wait(job, "RUNNING")

    told = apply(clean, ALL, "--dry-run")
    assert "quotas leave it none of the 8 GPUs" in told
    assert "1 job of queue default had 3 GPUs" in told
    assert clean.json("status", job)["state"] == "RUNNING", "a dry run changes nothing"
    assert apply(clean, ALL) == told

    waiting = clean.wait(job, "PREEMPTED")
    why = clean.until(lambda: clean.json("status", job)["reason"], lambda reason: reason["code"] == "EXCEEDS_REST")
    assert "quotas leave 0 of 8 GPUs to it: name another queue, or give it quota" in why["sentence"]
    assert waiting["gpus"]["now"] == 0
    explained = clean.ok("explain", job)
    assert "quotas leave 0 of 8 GPUs" in explained
    assert "in queue vision instead of default" in explained

    listed = clean.run("queues")
    assert re.search(r"default\s+active\s+virtual gpu\s+0\s+0", listed.stdout), listed.stdout
    assert "quotas leave it none of the 8 GPUs" in listed.stderr

    refused = clean.run("launch", "-d", "--", "sleep 1")
    assert refused.returncode == 2
    assert "needs at least 1 GPU; queue default can have 0" in refused.stderr
    assert "name a queue (--queue), or give default quota" in refused.stderr
    clean.wait(clean.launch("-q", "vision", "--", "sleep 300"), "RUNNING")


def test_given_quota_for_some_gpus_they_have_the_rest_and_no_more(clean: Cli) -> None:
    told = apply(clean, SHARED)
    assert "it may use the 2 of 8 GPUs that quotas leave" in told
    first = clean.launch("--num-nodes", "2", "--", "sleep 300")
    clean.wait(first, "RUNNING")
    second = clean.launch("--", "sleep 300")
    why = clean.until(lambda: clean.json("status", second)["reason"], bool)
    assert why["code"] == "REST_EXHAUSTED"
    assert "of the 2 of 8 GPUs that quotas leave to it 0 are left" in why["sentence"]
    assert apply(clean, SHARED) == "", "what does not change needs no words"


def test_a_default_queue_with_quota_has_that_and_nothing_is_said(clean: Cli) -> None:
    told = apply(clean, WITH_DEFAULT)
    assert "default" not in told
    job = clean.launch("--num-nodes", "2", "--", "sleep 300")
    clean.wait(job, "RUNNING")
    assert clean.json("queues", "describe", "default")["quota"] == {"*": 2}


def test_a_case_that_names_its_cluster_tries_it_out(nobody: Cli) -> None:
    (nobody.cwd / "quota.yaml").write_text(SHARED)
    (nobody.cwd / "case.yaml").write_text(
        "cluster: 2x4\nfiles: [quota.yaml]\nsteps:\n"
        "  - do: {submit: {name: small, queue: default, requests: {batuta.dev/gpus: 2}}}\n"
        "    admitted: [small]\n"
        "  - do: {submit: {name: more, queue: default, requests: {batuta.dev/gpus: 1}}}\n"
        "    pending: {more: {reason: WaitingForQuota}}\n"
    )
    tried = nobody.run("queues", "try", "case.yaml")
    assert tried.returncode == 0, tried.stdout
    assert "queue default has 0 of 2 left" in tried.stdout

    (nobody.cwd / "case.yaml").write_text("cluster: 2y4\nfiles: [quota.yaml]\nsteps: []\n")
    refused = nobody.run("queues", "try", "case.yaml")
    assert (refused.returncode, "case.yaml:1:10: '2y4' is not a group of nodes" in refused.stderr) == (
        2,
        True,
    ), refused.stderr
