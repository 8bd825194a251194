"""`batuta agent` as a process, on virtual GPUs."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from batuta.gpu.vgpu.inject import FaultSpec, inject
from tests.support.gpu_work import WITHIN_S, end, start_agent, work
from tests.support.kube.control_plane import wait_until
from tests.support.kube.ports import free_ports
from tests.support.vgpu import VirtualNode

BATUTA = [sys.executable, "-m", "batuta"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def once(node: VirtualNode, *words: str) -> "subprocess.CompletedProcess[str]":
    return node.run([*BATUTA, "agent", "--once", "--interval", "0.5", *words])


def series(port: int, name: str) -> dict[str, float]:
    """The values of a metric, by the labels as they are written."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {
        labels: float(value) for labels, value in re.findall(rf"^batuta_gpu_{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
    }


def test_once_shows_gpus_and_the_jobs_on_them(node: VirtualNode, stack: ExitStack):
    # given a job on GPU 1, and a process of nobody on GPU 0
    work(stack, node, 1, mib=2048, job="train-7")
    work(stack, node, 0, mib=100, busy_ms=0, rest_ms=50)
    time.sleep(1.0)  # NVML tells of the last second, and half of that would be before the job began
    # when an agent looks once
    said = once(node)
    # then a table shows both GPUs, and the job on its own
    assert said.returncode == 0, said.stderr
    rows = [line.split() for line in said.stdout.splitlines()]
    first, second = (next(row for row in rows if row[:2] == [gpu, "T4"]) for gpu in "01")
    assert (first[2], first[3], first[-1]) == ("0%", "100/15360MiB", "–")
    assert (second[3], second[-1]) == ("2048/15360MiB", "train-7")
    assert int(second[2].rstrip("%")) > 50
    # and JSON has all of it
    found = json.loads(once(node, "-o", "json").stdout)
    assert [job["job"] for job in found["jobs"]] == ["train-7"]
    assert found["jobs"][0]["pods"][0]["owner"] == {"job": "train-7", "pod": "0", "namespace": ""}


def test_without_nvml_it_says_what_to_do():
    env = {name: value for name, value in os.environ.items() if name not in ("BATUTA_VGPU", "LD_LIBRARY_PATH")}
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a GPU")
    for words in (["--once"], []):
        said = subprocess.run(
            [*BATUTA, "agent", *words], env=env, capture_output=True, text=True, check=False, timeout=WITHIN_S
        )
        assert said.returncode == 2
        assert "no NVML on this machine" in said.stderr
        assert "batuta vgpu run node.vgpu -- batuta agent" in said.stderr
        assert "Traceback" not in said.stderr


def test_all_that_is_wrong_with_the_options_is_said_at_once(node: VirtualNode):
    said = once(node, "--interval", "0", "--report-every", "9999", "--metrics-port", "0")
    assert said.returncode == 2
    for word in ("--interval 0", "--report-every 9999", "--metrics-port 0"):
        assert word in said.stderr


def test_metrics_follow_a_job_from_its_beginning_to_its_end(node: VirtualNode, stack: ExitStack):
    # given an agent
    (port,) = free_ports(1)
    agent = start_agent(stack, node, "--node", "n1", "--interval", "0.2", "--metrics-port", str(port))
    idle = wait_until(lambda: series(port, "utilisation_ratio"), "the first look", WITHIN_S)
    assert len(idle) == 2
    assert all('node="n1"' in labels and 'job=""' in labels for labels in idle)
    # when a job works on a GPU, then its metrics carry its name
    job = work(stack, node, 1, job="train-7")
    wait_until(
        lambda: any(value > 0.5 for value in series(port, "job_utilisation_ratio").values()),
        "the job to be busy",
        WITHIN_S,
    )
    (labels,) = series(port, "pod_memory_bytes")
    assert 'gpu="1"' in labels
    assert 'job="train-7",pod="0"' in labels
    # when a GPU falls off the bus, then it has no utilisation
    inject(node.path, 0, FaultSpec(xid=79))
    wait_until(
        lambda: [labels[:7] for labels in series(port, "utilisation_ratio")] == ['gpu="1"'],
        "the lost GPU to be silent",
        WITHIN_S,
    )
    # when the job has ended, then nothing is said of it any more
    end(job)
    wait_until(lambda: not series(port, "job_utilisation_ratio"), "the job to be gone", WITHIN_S)
    # when the agent is told to end, then it ends well
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(WITHIN_S) == 0


def test_what_a_job_reports_is_in_the_metrics(node: VirtualNode, stack: ExitStack, tmp_path: Path):
    # given a job that reports a step every two seconds
    reports = [{"time": 1000 + 2 * k, "step": k + 1, "total_steps": 100} for k in range(5)]
    (tmp_path / "progress").write_text("".join(f"{json.dumps(one)}\n" for one in reports))
    work(stack, node, 0, job="train-7", progress=tmp_path / "progress")
    # when an agent looks
    (port,) = free_ports(1)
    start_agent(stack, node, "--interval", "0.2", "--report-every", "1", "--metrics-port", str(port))
    # then it tells where the job is, how fast, and when it will be done
    wait_until(lambda: series(port, "job_step"), "the job's step", WITHIN_S)
    found = [list(series(port, f"job_{name}").values()) for name in ("step", "step_seconds")]
    assert found == [[5.0], [2.0]]
    assert list(series(port, "job_finish_timestamp_seconds").values()) == [1008 + 95 * 2]


def test_what_dcgm_exporter_knows_is_in_the_metrics(node: VirtualNode, stack: ExitStack):
    # given an exporter beside the agent
    uuid = node.read()[1].uuid
    page = f'DCGM_FI_PROF_SM_ACTIVE{{gpu="1",UUID="{uuid}",device="nvidia1"}} 0.625'
    (node.path.parent / "metrics").write_text(f"{page}\n")
    serve_files = partial(SimpleHTTPRequestHandler, directory=node.path.parent)
    exporter = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), serve_files))
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    stack.callback(exporter.shutdown)
    (port,) = free_ports(1)
    words = ("--interval", "0.2", "--report-every", "1", "--metrics-port", str(port))
    # when the agent is told where it is
    start_agent(stack, node, *words, "--dcgm", f"http://127.0.0.1:{exporter.server_port}/metrics")
    # then SM activity, which NVML does not tell, is among its own series
    found = wait_until(lambda: series(port, "sm_activity_ratio"), "SM activity", WITHIN_S)
    ((labels, value),) = found.items()
    assert f'uuid="{uuid}"' in labels
    assert value == 0.625


def test_a_port_that_is_taken_is_said(node: VirtualNode, stack: ExitStack):
    (port,) = free_ports(1)
    start_agent(stack, node, "--interval", "0.5", "--metrics-port", str(port))
    wait_until(lambda: series(port, "samples_total"), "the port", WITHIN_S)
    said = node.run([*BATUTA, "agent", "--metrics-port", str(port)])
    assert said.returncode == 2
    assert f"cannot listen at 0.0.0.0:{port}" in said.stderr
    assert "--metrics-port" in said.stderr
