"""GPUs that fail under real jobs of a real server: jobs go on elsewhere, and GPUs that are well come back."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from batuta.client.errors import ClientError
from tests.support.health_server import HealthServer, write_rules
from tests.support.server_process import ForkServer, ServerProcess
from tests.support.vgpu import compiler

TRAINS = f"exec {sys.executable} -m batuta.demo.trainer --steps 1000000 --work-ms 20"
SECONDS_S = 15.0
"""It takes two or three; a machine that runs other tests as well takes longer."""
ON_BUS, LOST = "Xid 79: GPU has fallen off the bus", "lost: GPU does not answer any more"
"""What the kernel log says, and NVML, which may be heard first: then the GPU is taken out by its word."""
Start = Callable[..., HealthServer]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only")


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    compiler()
    with ForkServer(tmp_path_factory.mktemp("forks")) as forks:
        yield forks


@pytest.fixture
def start(forks: ForkServer, tmp_path: Path) -> Iterator[Start]:
    """Starts a server with rules whose limits are other than usual."""
    with ExitStack() as started:

        def begin(nodes: int, gpus: int, limits: dict[str, str] | None = None) -> HealthServer:
            usual = {"probation": "1s", "longest_probation": "4s"}
            rules = write_rules(tmp_path / "rules.yaml", **usual | (limits or {}))
            server = HealthServer.start(
                forks, tmp_path, nodes=nodes, gpus=gpus, health_rules=str(rules), open_metrics=True
            )
            started.callback(server.close)
            return server

        yield begin


def test_a_node_with_a_gpu_off_the_bus_loses_its_jobs_and_comes_back_when_it_has_proved_itself(start: Start):
    # given a job on four of five nodes
    server = start(5, 2)
    job = server.submit(TRAINS, num_nodes=4, resources={"accelerators": "virtual:2"})
    ill = server.until_running(job).placement[1].node
    # when a GPU of one falls off the bus
    server.harm(ill, 1, "--xid", "79")
    harmed_s = time.monotonic()
    # then within seconds the job runs on with all its GPUs, without that node, which says why it is out
    moved = server.until(
        lambda: server.job(job),
        lambda found: found.state == "RUNNING" and ill not in [place.node for place in found.placement],
    )
    assert time.monotonic() - harmed_s < SECONDS_S
    assert moved.gpus.now == 8
    found = server.until(lambda: server.health(ill), lambda found: found.reason == ON_BUS)
    assert (found.state, found.who, found.remedy) == ("ill", "health", "reboot")
    node = server.node(ill)
    assert node.state == "unhealthy"
    assert not any(gpu.healthy for gpu in node.gpus)
    # and one who says that it is mended, when it is not, is not believed
    server.cli.ok("nodes", "mended", ill)
    found = server.until(lambda: server.health(ill), lambda found: found.remedy == "replace")
    assert found.state == "ill"
    assert "GPU is lost" in found.reason
    # but when it is, it passes its burn-in and its probation, and is back
    server.harm(ill, 1, "--heal")
    server.cli.ok("nodes", "mended", ill)
    back = server.until_health(ill, "healthy")
    assert back.reason == "passed burn-in and probation"
    server.until(lambda: server.node(ill), lambda found: all(gpu.healthy for gpu in found.gpus))
    # all of which people can read
    told = server.cli.ok("events")
    for sentence in (
        f"node {ill} is ill ({ON_BUS})",
        f"node {ill} is in its burn-in",
        f"node {ill} is on probation",
        f"GPU 1 of node {ill} works again",
    ):
        assert sentence in told
    assert any(f"GPU 1 of node {ill} failed ({why})" in told for why in (ON_BUS, LOST))


def test_an_application_error_restarts_its_job_and_in_three_jobs_it_is_the_gpus_fault(start: Start):
    server = start(2, 1)
    for number in range(3):
        # given a job, each time another, on the same GPU
        job = server.submit(TRAINS)
        runs = server.until_running(job)
        assert [place.node for place in runs.placement] == ["node-0"]
        # when it meets a page fault
        server.harm("node-0", 0, "--xid", "31")
        # then it begins again, and nothing is out of service
        if number < 2:
            server.until_running(job, restarts=1)
            assert server.health("node-0", 0).state == "suspect"
            assert server.node("node-0").gpus[0].healthy
            server.cli.ok("cancel", job, "-y")
            server.until_state(job, "CANCELLED")
    # but in the third job it is the GPU's fault: the job goes on elsewhere
    moved = server.until_running(job, restarts=1)
    assert [place.node for place in moved.placement] == ["node-1"]
    # and the GPU is reset, tested and back, without anybody's help
    told = "Xid 31: MMU page fault, in 3 different jobs"
    assert f"GPU 0 of node node-0 failed ({told})" in server.cli.ok("events")
    assert server.until_health("node-0", "healthy", gpu=0).who == "health"


def test_a_job_whose_last_gpu_fails_leaves_it_although_there_is_no_other(start: Start):
    server = start(1, 1)
    job = server.submit(TRAINS)
    server.until_running(job)
    server.harm("node-0", 0, "--xid", "62")  # it computes on, as if nothing had happened
    server.until(lambda: server.job(job), lambda found: found.state == "PENDING" or found.restarts)
    # it is reset as soon as the job has left, and has the job again after its probation
    assert server.until_running(job, restarts=1).placement[0].node == "node-0"


def test_what_humans_cordon_stays_cordoned(start: Start):
    server = start(5, 1)
    # given a node that somebody has cordoned, and one that falls ill first
    server.cli.ok("nodes", "cordon", "node-0")
    server.harm("node-0", 0, "--xid", "48")
    server.until(lambda: server.node("node-0"), lambda node: not node.gpus[0].healthy)
    # when it has been ill, was mended and is well again
    server.until_health("node-0", "healthy", gpu=0)
    # then it is as cordoned as before, and says by whom
    node = server.node("node-0")
    assert node.state == "cordoned"
    assert node.cordoned_by
    # and the same for a cordon that comes while it is ill
    server.harm("node-1", 0, "--xid", "79")
    server.until_health("node-1", "ill")
    server.cli.ok("nodes", "cordon", "node-1")
    server.harm("node-1", 0, "--heal")
    server.cli.ok("nodes", "mended", "node-1")
    server.until_health("node-1", "healthy")
    assert server.node("node-1").state == "cordoned"
    # until somebody lifts it
    server.cli.ok("nodes", "uncordon", "node-1")
    assert server.node("node-1").state == "ready"


def test_with_half_of_a_pool_failing_the_guard_rail_holds(start: Start):
    server = start(8, 1)
    # when four of eight nodes fail, of which two may go
    for number in range(4):
        server.harm(f"node-{number}", 0, "--xid", "79")
    names = [f"node-{number}" for number in range(4)]
    found = server.until(
        lambda: {name: server.health(name) for name in names},
        lambda found: all(one.state == "ill" for one in found.values()),
    )
    # then two are out, and two stay in service
    held = [name for name, one in found.items() if one.held]
    assert len(held) == 2
    assert all(server.node(name).gpus[0].healthy for name in held)
    # which is an alert for people, and for Prometheus
    text = server.metrics()
    assert "batuta_health_held 2.0" in text
    assert 'batuta_health_targets{state="ill"} 4.0' in text
    assert "no more than 25% of its pool may be taken out" in server.cli.ok("events")
    # when somebody's word puts one of them back, the next goes
    (out, *_) = (name for name in names if name not in held)
    server.cli.ok("nodes", "uncordon", out)
    assert server.health(out).who != "health"
    server.until(lambda: [server.health(name).held for name in held], lambda waits: sorted(waits) == [False, True])


def test_what_a_job_prints_before_it_fails_is_understood(start: Start):
    server = start(1, 1, {"restarts": "1"})
    # given a job that cannot find its GPU, and may not fail a single time
    job = server.submit("echo 'RuntimeError: CUDA error: invalid device ordinal'; exit 1")
    # then it has another try, and fails for good when that does not help
    assert server.until_state(job, "FAILED").restarts == 1
    assert server.health("node-0", 0).state == "suspect"
    assert "a GPU that the job was given is not there" in server.health("node-0", 0).reason
    # while one that just fails has none
    plain = server.submit("exit 1")
    assert server.until_state(plain, "FAILED").restarts == 0


def test_no_error_counts_twice_or_not_at_all_however_often_the_server_is_killed(start: Start):
    server = start(1, 3, {"incident": "1ms"})
    lines = 0
    for _ in range(4):
        for gpu in range(3):
            lines += 1
            server.harm("node-0", gpu, "--xid", "13")
        server.restart_after(ServerProcess.kill)

    def counted() -> int:
        return sum(server.health("node-0", gpu).incidents for gpu in range(3))

    server.until(counted, lambda found: found >= lines)
    server.restart_after(ServerProcess.end)
    server.harm("node-0", 0, "--xid", "13")
    assert server.until(counted, lambda found: found > lines) == lines + 1


def test_who_is_ill_stays_out_over_a_restart(start: Start):
    server = start(3, 1)
    server.harm("node-2", 0, "--xid", "79")
    before = server.until(lambda: server.health("node-2"), lambda found: found.reason == ON_BUS)
    server.restart_after(ServerProcess.kill)
    after = server.health("node-2")
    # NVML may have been heard in between, so that there are more incidents.
    assert (after.state, after.reason, after.since_s) == ("ill", ON_BUS, before.since_s)
    assert not server.node("node-2").gpus[0].healthy
    with pytest.raises(ClientError, match="node-1 is not ill; what is: node-2"), server.client as client:
        client.mended("node-1")
