"""Quota from the command line: applied as a whole, exported, removed; with a server, and without one."""

import yaml

FLAVOR = "{apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: all}}\n"
QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: paper}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: all, resources: [{name: nvidia.com/gpu, nominalQuota: 1}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: paper, namespace: lab}
spec: {clusterQueue: paper}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 2000
"""


def test_quota_is_applied_used_exported_and_removed(cli):
    (cli.cwd / "flavor.yaml").write_text(FLAVOR)
    (cli.cwd / "queue.yaml").write_text(QUEUE)
    files = ("-f", "flavor.yaml", "-f", "queue.yaml")
    assert "ClusterQueue paper created (dry run)" in cli.ok("queues", "apply", *files, "--dry-run")
    assert cli.ok("queues", "export") == "", "a dry run changes nothing"
    assert cli.ok("queues", "apply", *files).splitlines() == [
        "ResourceFlavor all created",
        "ClusterQueue paper created",
        "LocalQueue lab/paper created",
        "WorkloadPriorityClass urgent created",
    ]

    first = cli.launch("-q", "paper", "--", "sleep 300")
    cli.wait(first, "RUNNING")
    second = cli.launch("-q", "paper", "--priority", "urgent", "--", "sleep 300")
    waiting = cli.until(lambda: cli.json("status", second), lambda job: job["reason"] is not None)
    assert (waiting["state"], waiting["priority"]) == ("PENDING", 2000)

    exported = cli.ok("queues", "export")
    assert [one["kind"] for one in yaml.safe_load_all(exported)] == [
        "ResourceFlavor",
        "ClusterQueue",
        "LocalQueue",
        "WorkloadPriorityClass",
    ]
    (cli.cwd / "exported.yaml").write_text(exported)
    assert {one["change"] for one in cli.json("queues", "apply", "exported.yaml")["objects"]} == {"unchanged"}

    used = cli.run("queues", "delete", "flavor", "all")
    assert (used.returncode, "used by ClusterQueue paper" in used.stderr) == (1, True)
    assert cli.ok("queues", "delete", "lq", "paper", "-n", "lab") == "LocalQueue lab/paper removed\n"
    gone = cli.run("queues", "delete", "ClusterQueues", "paper")
    assert gone.stdout == "ClusterQueue paper removed\n"
    assert "goes when its last job is done" in gone.stderr


def test_mistakes_need_no_server_and_come_all_at_once(nobody):
    (nobody.cwd / "bad.yaml").write_text(QUEUE.replace("nominalQuota: 1", "nominalQuota: one"))
    refused = nobody.run("queues", "apply", "bad.yaml", "-f", "gone.yaml")
    assert refused.returncode == 2
    missing, wrong = refused.stderr.splitlines()
    assert missing == "error: gone.yaml: no such file"
    assert wrong.startswith("error: bad.yaml:9:78: spec.resourceGroups[0]")
    assert "'one' is not a quantity" in wrong
    unknown = nobody.run("queues", "delete", "quue", "a")
    assert (unknown.returncode, "unknown kind quue" in unknown.stderr) == (2, True)


def test_quota_is_tried_out_without_a_server(nobody):
    (nobody.cwd / "quota.yaml").write_text(f"{FLAVOR}---{QUEUE}")
    (nobody.cwd / "case.yaml").write_text(
        "files: [quota.yaml]\nsteps:\n"
        "- {do: {submit: {name: w1, queue: paper, requests: {nvidia.com/gpu: 1}}}, admitted: [w1]}\n"
        "- {do: {submit: {name: w2, queue: paper, requests: {nvidia.com/gpu: 1}}}, pending: []}\n"
    )
    tried = nobody.run("queues", "try", "case.yaml")
    assert tried.returncode == 1
    assert "differs    w2 is pending, which was not expected" in tried.stdout
    assert tried.stderr == "0 of 1 cases went as expected\n"
