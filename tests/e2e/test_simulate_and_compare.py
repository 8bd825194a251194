"""The command line as people use it: real processes, real files, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.server_process import run_batuta as batuta

QUOTA = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: gpu}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team}
spec:
  cohortName: all
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: gpu, resources: [{name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 4}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: idle}
spec:
  cohortName: all
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: gpu, resources: [{name: nvidia.com/gpu, nominalQuota: 24}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: default}
spec: {clusterQueue: team}
"""
BATUTA = (sys.executable, "-c", "from batuta.cli.main import run; run()")


def test_simulate_prints_one_json_object_with_the_promised_keys() -> None:
    done = batuta("simulate", "--workload", "sample", "--policy", "elastic-fifo", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {
        *("policy", "workload", "jobs", "finished", "jct_s", "makespan_s", "wait_s", "finish_time_fairness"),
        *("gpu_utilisation", "fragmentation", "restarts", "migrations", "preemptions", "lost_gpu_s"),
        *("decide_ms", "cpu_s"),
    } <= set(told)
    assert set(told["jct_s"]) == {"mean", "p50", "p90", "p99", "max"}
    assert set(told["finish_time_fairness"]) == {"mean", "max", "above_one"}
    assert told["finished"] == told["jobs"] == 120


def test_the_same_command_gives_the_same_results_twice() -> None:
    def results() -> dict[str, object]:
        told = json.loads(batuta("simulate", "-p", "afs-l", "--seed", "3", "-o", "json").stdout)
        return {key: value for key, value in told.items() if key not in ("decide_ms", "cpu_s")}

    assert results() == results()


def test_compare_writes_a_report_and_prints_every_policy(tmp_path: Path) -> None:
    report, jobs = tmp_path / "out.html", tmp_path / "jobs.parquet"
    done = batuta(
        *("compare", "-w", "sample", "-p", "fifo,elastic-fifo", "-p", "afs-l"),
        *("--seeds", "2", "--limit", "40"),
        *("--report", report, "--jobs", jobs, "-o", "json"),
    )
    assert done.returncode == 0, done.stderr
    rows = {row["policy"]: row for row in json.loads(done.stdout)["policies"]}
    assert set(rows) == {"fifo", "elastic-fifo", "afs-l"}
    assert report.read_text().lower().startswith("<!doctype html>")
    assert jobs.stat().st_size > 0


def test_quota_holds_in_a_simulation_as_it_would_on_a_cluster(tmp_path: Path) -> None:
    """Eight of 32 GPUs for the only queue that has jobs, and the others lend it four more at most."""
    queues, timeline = tmp_path / "queues.yaml", tmp_path / "timeline.jsonl"
    queues.write_text(QUOTA)
    done = batuta(
        *("simulate", "-w", "sample", "-c", "4x8", "--queues", queues, "--timeline", timeline),
        *("--limit", "40", "-o", "json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] == 40
    assert max(json.loads(line)["used_gpus"] for line in timeline.read_text().splitlines()) == 12


def test_jobs_of_a_trace_that_name_no_queue_have_what_quotas_leave(tmp_path):
    queues = tmp_path / "queues.yaml"
    queues.write_text('queues: [{name: vision, quota: {"*": 32}}]')
    options = ("simulate", "-w", "sample", "--limit", "5", "-c", "4x8", "--queues", queues, "-o", "json")
    done = batuta(*options)
    assert json.loads(done.stdout)["finished"] == 0
    assert "quotas leave it none of the 32 GPUs" in done.stdout
    queues.write_text('queues: [{name: vision, quota: {"*": 16}}]')
    assert json.loads(batuta(*options).stdout)["finished"] == 5


def test_what_is_wrong_with_a_file_of_quota_is_told_before_anything_runs(tmp_path: Path) -> None:
    queues = tmp_path / "queues.yaml"
    queues.write_text('queues: [{name: a, quota: {"*": -1}}, {name: "a b"}]')
    done = batuta("compare", "-p", "fifo", "--queues", queues)
    assert done.returncode == 2
    assert f"{queues}:1:33: quota.* must be" in done.stderr
    assert "'a b'" in done.stderr


def test_explain_tells_the_story_of_a_job_with_reasons_and_numbers() -> None:
    done = batuta("simulate", "-p", "tiresias", "--explain", "job-0042", "-o", "json")
    story = json.loads(done.stdout)["explain"]
    assert story[0]["command"].startswith("start")
    assert all(chapter["reason"].isupper() and chapter["evidence"]["capacity"] == 32 for chapter in story)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["-p", "fofi"], ["unknown policy 'fofi'"]),
        (["-p", "elastic-fifa"], ["did you mean elastic-fifo"]),
        (["-w", "gone.csv"], ["gone.csv: no such file"]),
        (["-c", "0x4"], ["0x4"]),
        (["-c", "banana"], ["banana"]),
        (["--round", "3q"], ["--round '3q' is not a duration"]),
        (["--round", "0s"], ["--round must be longer"]),
        (["--explain", "nobody"], ["no job 'nobody'"]),
        (["--report", "/dev/null/out.html"], ["/dev/null"]),
        (["--jobs", "out.xlsx"], ["out.xlsx"]),
        (
            ["-p", "fofi", "-w", "gone.csv", "-c", "4x-1", "--restart", "soon"],
            ["fofi", "gone.csv", "4x-1", "'soon'"],
        ),
    ],
)
def test_bad_options_are_refused_all_at_once_with_exit_code_2(given: list[str], expected: list[str]) -> None:
    done = batuta("simulate", *given)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for words in expected:
        assert words in done.stderr


def test_a_broken_trace_is_refused_with_every_line_and_leaves_no_output(tmp_path: Path) -> None:
    trace, out = tmp_path / "jobs.csv", tmp_path / "out.html"
    trace.write_text(
        "job_id,submission_time,duration,num_gpu\na,0,100,1\nb,0,nan,1\na,5,100,2\nc,10,100,-3\nd,ten,100,1\n"
    )
    done = batuta("simulate", "-w", trace, "-c", "2x4", "--report", out)
    assert done.returncode == 2
    assert [int(line) for line in re.findall(r"jobs\.csv:(\d+)", done.stderr)] == [3, 4, 5, 6]
    assert not out.exists()


def test_ctrl_c_says_what_is_complete_and_leaves_no_broken_file(tmp_path: Path) -> None:
    workload, report = tmp_path / "long.jsonl", tmp_path / "out.html"
    assert batuta("trace", "generate", "--jobs", "20000", "--seed", "1", workload).returncode == 0
    words = ["compare", "-w", str(workload), "-c", "8x8", "-p", "elastic-fifo,afs-l", "--report", str(report)]
    with subprocess.Popen(
        [*BATUTA, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while running.poll() is None and len(children.read_text().split()) < 2:
            time.sleep(0.05)
        time.sleep(1)  # both are at work now
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "interrupted: 0 of 2 runs are complete" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == [workload]


def test_help_names_the_verbs_and_each_verb_has_examples() -> None:
    assert "simulate" in batuta("--help").stdout
    for verb in ("simulate", "compare"):
        assert "batuta " + verb in batuta(verb, "--help").stdout


def test_a_pipe_that_closes_early_is_no_error() -> None:
    done = subprocess.run(
        f"{BATUTA[0]} -c '{BATUTA[2]}' policies | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("fifo")
    assert "Traceback" not in done.stderr
