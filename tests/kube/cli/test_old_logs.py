"""The output of pods that are gone, from a Loki: a stand-in, see tests/support/loki_stand_in.py."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.cli.command_line import Batuta
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.nodes import NodeShape
from tests.support.loki_stand_in import LokiStandIn


@pytest.fixture
def loki() -> Iterator[LokiStandIn]:
    with LokiStandIn() as running:
        yield running


def test_what_a_job_printed_outlives_its_pods_and_the_job(
    batuta: Batuta,
    cluster: ControlPlane,
    namespace: str,
    add_nodes: AddNodes,
    loki: LokiStandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a job that ran, when its pods are gone, then Loki tells what they printed, and who tells it."""
    add_nodes(1, NodeShape(gpus=4))
    earlier_ns = time.time_ns() - 3600 * 10**9
    loki.keep_job(namespace, "train", "0", earlier_ns, "an earlier job of that name")
    batuta.launch(tmp_path)
    batuta.waits_for("train", "RUNNING")
    loki.keep_job(namespace, "train", "0", time.time_ns(), "one", 'batuta-report {"step": 3}', "two")
    loki.keep_job(namespace, "train", "1", time.time_ns(), "three")
    batuta("cancel", "train")
    batuta.waits_for("train", "CANCELLED")
    cluster.kubectl("delete", "pods", "-n", namespace, "--all", "--grace-period=0", "--force")

    without = batuta("logs", "train", "--no-follow")
    assert (without.code, without.out) == (0, "")
    assert f"pods of replica 0 of job {namespace}/train are gone: --loki URL" in without.err

    said = batuta("logs", "train", "--loki", loki.url)
    assert (said.code, said.out) == (103, "one\ntwo\n")
    assert f"what follows is from Loki at {loki.url}" in said.err

    monkeypatch.setenv("BATUTA_LOKI", f"{loki.url}/loki/api/v1/push")
    monkeypatch.setenv("BATUTA_LOKI_TENANT", "team-a")
    assert batuta("logs", "train", "--no-follow", "--node-rank", "1").out == "three\n"
    assert loki.headers[-1]["X-Scope-OrgID"] == "team-a"
    assert batuta("logs", "train", "--no-follow", "--tail", "1").out == "two\n"
    nothing = batuta("logs", "train", "--no-follow", "--since", f"{time.time() + 30:.0f}")
    assert (nothing.code, nothing.out) == (0, "")
    assert "Loki has nothing of replica 0" in nothing.err

    cluster.kubectl("delete", "unifiedjob", "-n", namespace, "train")
    forgotten = batuta("logs", "train", "--no-follow")
    assert (forgotten.code, forgotten.out) == (0, "an earlier job of that name\none\ntwo\n")
    assert "there is no job train" in forgotten.err
    never = batuta("logs", "never", "--no-follow")
    assert never.code == 102
    assert "there is no job never" in never.err


def test_a_loki_that_fails_is_named_with_the_reason(
    batuta: Batuta,
    namespace: str,
    loki: LokiStandIn,
) -> None:
    """Given a job that nobody knows any more, when Loki does not let us in, then that is the answer."""
    loki.refuse = [(401, "no org id")]
    said = batuta("logs", "old", "--no-follow", "--loki", loki.url)
    assert said.code == 1
    assert "does not let us in (401: no org id): $BATUTA_LOKI_TOKEN" in said.err
    said = batuta("logs", "old", "--loki", "ftp://loki")
    assert said.code == 1
    assert "is not the address of a Loki" in said.err
