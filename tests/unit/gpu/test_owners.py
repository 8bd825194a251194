"""Whose a process is, with real processes and a /proc of the test's own making."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.gpu.owners import LocalOwners, Owner, read_environment, read_work
from batuta.gpu.pod_owners import PodOwners

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")

UID = "6f1c0a2e-9d3b-4c58-8a77-0123456789ab"
INNER = "11111111-2222-3333-4444-555555555555"
CONTAINER = "a1" * 32
OWNER = Owner("train", "train-0", "team-a")


class FakeProc:
    """A folder like /proc: processes with a start time and control groups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, pid: int, control_groups: str = "", started: int = 7, state: str = "S") -> None:
        home = self.folder / str(pid)
        home.mkdir(exist_ok=True)
        fields = [state, *["0"] * 10, "200", "100", *["0"] * 6, str(started), "0"]
        (home / "stat").write_text(f"{pid} (a (strange) name) {' '.join(fields)}")
        (home / "cgroup").write_text(control_groups)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.folder / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.fixture
def replica() -> Iterator["subprocess.Popen[str]"]:
    env = os.environ | {"BATUTA_JOB_ID": "job-7", "BATUTA_REPLICA": "2"}
    started = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "up\n"
    yield started
    if started.poll() is None:
        started.communicate()


class TestPods:
    def owners(self, proc: FakeProc) -> PodOwners:
        owners = PodOwners(proc.folder)
        owners.update_pods([({UID}, OWNER)])
        return owners

    def test_a_process_in_a_known_pod_is_its_pods(self, proc: FakeProc):
        proc.put(10, f"0::/kubepods/burstable/pod{UID}/{CONTAINER}")
        assert self.owners(proc).of(10) == OWNER

    def test_a_process_of_the_host_is_nobodys(self, proc: FakeProc):
        proc.put(10, "0::/system.slice/nvidia-persistenced.service")
        assert self.owners(proc).of(10) is None

    def test_a_pod_that_the_api_server_does_not_know_is_nobodys(self, proc: FakeProc):
        proc.put(10, f"0::/kubepods/burstable/pod{INNER}/{CONTAINER}")
        assert self.owners(proc).of(10) is None

    def test_a_pod_that_is_told_of_later_is_found_then(self, proc: FakeProc):
        owners = PodOwners(proc.folder)
        proc.put(10, f"0::/kubepods/burstable/pod{UID}/{CONTAINER}")
        assert owners.of(10) is None
        owners.update_pods([({UID}, OWNER)])
        assert owners.of(10) == OWNER

    @pytest.mark.parametrize("ours", [UID, INNER])
    def test_of_two_clusters_one_in_the_other_ours_is_the_one_that_we_know(self, proc: FakeProc, ours: str):
        owners = PodOwners(proc.folder)
        owners.update_pods([({ours}, OWNER)])
        proc.put(10, f"0::/kubepods/pod{UID}/{CONTAINER}/kubelet/kubepods/pod{INNER}/{CONTAINER}")
        assert owners.of(10) == OWNER

    def test_another_process_with_the_same_pid_is_asked_anew(self, proc: FakeProc):
        owners = self.owners(proc)
        proc.put(10, f"0::/kubepods/burstable/pod{UID}/{CONTAINER}", started=7)
        assert owners.of(10) == OWNER
        proc.put(10, "0::/user.slice", started=8)
        assert owners.of(10) is None

    def test_a_process_that_has_ended_is_nobodys(self, proc: FakeProc):
        owners = self.owners(proc)
        proc.put(10, f"0::/kubepods/burstable/pod{UID}/{CONTAINER}")
        assert owners.of(10) == OWNER
        proc.put(10, f"0::/kubepods/burstable/pod{UID}/{CONTAINER}", state="Z")
        assert owners.of(10) is None
        proc.end(10)
        assert owners.of(10) is None

    def test_what_the_kubelet_says_counts_for_pods_that_are_known(self, proc: FakeProc):
        owners = self.owners(proc)
        owners.update_assigned({"GPU-1": ("team-a", "train-0"), "GPU-2": ("team-a", "who")})
        assert owners.by_gpu() == {"GPU-1": OWNER}


class TestLocal:
    def test_a_replica_is_known_by_its_environment(self, replica: "subprocess.Popen[str]"):
        owners = LocalOwners()
        assert owners.of(replica.pid) == Owner("job-7", "2")
        replica.communicate()
        assert owners.of(replica.pid) is None

    def test_another_process_of_the_machine_is_nobodys(self):
        assert "BATUTA_JOB_ID" not in read_environment(1)
        assert LocalOwners().of(1) is None


def test_the_work_of_a_process_is_that_of_the_kernel(replica: "subprocess.Popen[str]"):
    spent = os.times()
    own, younger = read_work(os.getpid()), read_work(replica.pid)
    assert own is not None
    assert younger is not None
    assert own.cpu_s == pytest.approx(spent.user + spent.system, abs=0.1)
    assert 0 < own.start_ticks <= younger.start_ticks


def test_names_of_processes_may_look_like_anything(proc: FakeProc):
    proc.put(10, started=99)
    work = read_work(10, proc.folder)
    assert work is not None
    assert (work.start_ticks, work.cpu_s * os.sysconf("SC_CLK_TCK")) == (99, 300)
