"""Shares held by MPS and by the kernel: what a node can do, and what the control program is told.

There is no NVIDIA driver here. A stand-in for its control program writes down what it is told, and what the
kernel has as files are plain files. So this shows what Batuta says to them, not what they do.
"""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batuta.gpu.device_plugin.allocation import ContainerRequest, Grant
from batuta.gpu.device_plugin.enforcement import ContainerSpec, MpsEnforcer
from batuta.gpu.share.mps import (
    CONTROL,
    Capability,
    CgroupUnavailable,
    EnforcementMode,
    MpsDaemon,
    detect_capability,
    pod_cgroup,
)
from batuta.spec.problem import InputError
from tests.gpu.device_plugin.books import card, pod

REGION = "nvidia/0000:3b:00.0/vidmem"
MIB = 1 << 20
STAND_IN = """#!/bin/sh
# Writes down its words, what is typed into it, and which daemon is meant; says what a control program would.
said=$(cat)
printf '{"words": "%s", "said": "%s", "pipe": "%s", "devices": "%s"}\\n' \
    "$*" "$said" "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_VISIBLE_DEVICES" >> "$RECORD"
case "$*" in
    "-p 3 -h") echo "$HELP" ;;
    -d*) touch "$CUDA_MPS_PIPE_DIRECTORY/control" /dev/shm/cuda.shm.stand-in ;;
    *) [ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ] || { echo "no daemon" >&2; exit 1; } ;;
esac
"""
OLD_HELP, NEW_HELP = "unknown option", "usage: server namespace client"

Recorded = Callable[[], list[dict[str, str]]]


def mps_daemon(folder: Path, protocol: int = 2, **more: Any) -> MpsDaemon:
    """A daemon of GPU-0 that takes a folder of the test for the node's shared memory."""
    shm = folder.parent / f"{folder.name}-shm"
    shm.mkdir(exist_ok=True)
    return MpsDaemon("GPU-0", 2560, folder, protocol, shm=shm, **more)


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The stand-in on PATH; what it was told."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root and unshare: a daemon has mounts of its own")
    program, record = tmp_path / "bin" / CONTROL, tmp_path / "record"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("RECORD", str(record))
    monkeypatch.setenv("HELP", OLD_HELP)

    def told() -> list[dict[str, str]]:
        lines = record.read_text().splitlines() if record.exists() else []
        record.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    return told


def cgroups(folder: Path, controllers: str = "cpu dmem", capacity: str = f"{REGION} 17179869184\n") -> Path:
    """A cgroup tree of version 2 with one pod, as the kubelet makes it under systemd."""
    pod_folder = folder / "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid_a.slice"
    pod_folder.mkdir(parents=True)
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "dmem.capacity").write_text(capacity)
    for each in (folder, folder / "kubepods.slice", pod_folder.parent):
        (each / "cgroup.subtree_control").write_text("cpu memory")
    return folder


class TestWhatANodeCanDo:
    @pytest.mark.parametrize(
        ("regions", "protocol", "mode"),
        [
            ({"0000:3b:00.0": REGION}, 3, EnforcementMode.DMEM),
            ({"0000:3b:00.0": REGION}, 2, EnforcementMode.MPS),
            ({}, 3, EnforcementMode.MPS),
            ({}, 2, EnforcementMode.MPS),
            ({"0000:3b:00.0": REGION}, 0, EnforcementMode.PRELOAD),
            ({}, 0, EnforcementMode.PRELOAD),
        ],
    )
    def test_auto_is_the_strictest_that_works(
        self, regions: dict[str, str], protocol: int, mode: EnforcementMode
    ) -> None:
        assert Capability(regions, protocol).choose(EnforcementMode.AUTO) is mode

    def test_a_wish_that_cannot_be_had_says_all_that_is_missing(self) -> None:
        with pytest.raises(InputError, match=r"dmem .* and MPS v3 .*--mode preload works here"):
            Capability().choose(EnforcementMode.DMEM)
        assert Capability({"0000:3b:00.0": REGION}, 3).choose(EnforcementMode.PRELOAD) is EnforcementMode.PRELOAD

    def test_the_kernel_and_the_control_program_are_asked(
        self, tmp_path: Path, control: Recorded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree = cgroups(tmp_path / "cgroups")
        assert detect_capability(tree) == Capability({"0000:3b:00.0": REGION}, 2)
        monkeypatch.setenv("HELP", NEW_HELP)
        assert detect_capability(tree).mps_protocol == 3
        assert detect_capability(tree, "no-such-program").mps_protocol == 0
        assert [one["words"] for one in control()] == ["-p 3 -h"] * 2

    @pytest.mark.parametrize(
        ("controllers", "capacity"),
        [("cpu memory", REGION), ("dmem", "drm/0000:03:00.0/vram0 1\n"), ("dmem", "")],
    )
    def test_a_controller_without_regions_of_the_driver_is_none(
        self, tmp_path: Path, controllers: str, capacity: str
    ) -> None:
        assert detect_capability(cgroups(tmp_path / "c", controllers, capacity), "no-such-program") == Capability()
        assert detect_capability(tmp_path / "version-1", "no-such-program") == Capability()


class TestDaemons:
    def test_a_daemon_of_the_second_protocol_is_started_once_and_told_by_uuid(
        self, tmp_path: Path, control: Recorded
    ) -> None:
        daemon = mps_daemon(tmp_path / "mps")
        daemon.ensure()
        told = control()
        assert [one["words"] or one["said"] for one in told] == [
            "get_default_active_thread_percentage",
            "-d",
            "set_default_device_pinned_mem_limit GPU-0 2560M",
            "set_default_active_thread_percentage 100",
        ]
        assert {(one["pipe"], one["devices"]) for one in told} == {(str(tmp_path / "mps/pipe"), "GPU-0")}
        daemon.ensure()
        assert [one["said"] for one in control()] == ["get_default_active_thread_percentage"]

    def test_a_daemon_of_the_third_protocol_gets_a_file(self, tmp_path: Path, control: Recorded) -> None:
        import tomllib

        mps_daemon(tmp_path / "mps", protocol=3).ensure()
        path = tmp_path / "mps" / "mps.toml"
        assert [one["words"] for one in control()] == ["server list", f"-d -p 3 -a {path}"]
        assert tomllib.loads(path.read_text()) == {
            "schema_version": "1.0",
            "servers": {
                "batuta": {
                    "allowed_devices": "GPU-0",
                    "pinned_memory_limit": "2560M",
                    "active_thread_percentage": "100",
                }
            },
            "features": {"memacct": {"enabled": True}},
        }

    def test_without_the_control_program_there_is_a_way_out(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="--mode preload needs none"):
            mps_daemon(tmp_path / "mps", control="no-such-program").ensure()

    @pytest.mark.parametrize("protocol", [2, 3])
    def test_a_daemon_has_shared_memory_of_its_own(self, tmp_path: Path, control: Recorded, protocol: int) -> None:
        daemon = mps_daemon(tmp_path / "mps", protocol)
        daemon.ensure()
        assert [path.name for path in daemon.shared_memory.iterdir()] == ["cuda.shm.stand-in"]
        assert daemon.shared_memory.stat().st_mode & 0o7777 == 0o1777
        assert not Path("/dev/shm/cuda.shm.stand-in").exists()

    def test_a_folder_that_another_user_has_put_there_is_refused(self, tmp_path: Path, control: Recorded) -> None:
        daemon = mps_daemon(tmp_path / "mps")
        daemon.shared_memory.parent.symlink_to("/tmp")
        with pytest.raises(InputError, match="is not a folder of this user"):
            daemon.ensure()


def grant(**more: Any) -> Grant:
    asked = replace(pod("a", 8, 30), containers=(ContainerRequest("main", 8, 30), ContainerRequest("side", 4)), **more)
    return Grant(asked, asked.containers[0], replace(card(0), pci="0000:3b:00.0"))


class TestContainers:
    def test_a_client_of_mps_is_told_its_limits(self, tmp_path: Path, control: Recorded) -> None:
        daemon = mps_daemon(tmp_path / "mps")
        outfit = MpsEnforcer({"GPU-0": daemon}, ContainerSpec())
        answer = outfit.container_response(grant())
        assert not outfit.needs_pre_start
        assert answer.envs == {
            "NVIDIA_VISIBLE_DEVICES": "GPU-0",
            "CUDA_VISIBLE_DEVICES": "GPU-0",
            "CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
        }
        # and it meets the daemon in the folder of its card, not in the node's shared memory
        assert {(mount.container_path, mount.host_path) for mount in answer.mounts} == {
            (str(daemon.pipe), str(daemon.pipe)),
            ("/dev/shm", str(daemon.shared_memory)),
        }
        soft = outfit.container_response(grant(is_soft=True))
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in soft.envs

    def test_the_kernel_holds_the_memory_of_a_pod_before_its_containers_start(
        self, tmp_path: Path, control: Recorded
    ) -> None:
        tree = cgroups(tmp_path / "cgroups")
        daemons = {"GPU-0": mps_daemon(tmp_path / "mps", 3)}
        outfit = MpsEnforcer(daemons, ContainerSpec(), {"0000:3b:00.0": REGION}, tree)
        assert outfit.needs_pre_start
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in outfit.container_response(grant(uid="uid-a")).envs
        outfit.pre_start(grant(uid="uid-a"))
        folder = pod_cgroup("uid-a", tree)
        assert (folder / "dmem.max").read_text() == f"{REGION} {12 * 256 * MIB}\n"
        assert (folder.parent / "cgroup.subtree_control").read_text() == "+dmem"

    def test_a_pod_that_cannot_be_held_does_not_start(self, tmp_path: Path, control: Recorded) -> None:
        tree = cgroups(tmp_path / "cgroups")
        daemons = {"GPU-0": mps_daemon(tmp_path / "mps", 3)}
        with pytest.raises(CgroupUnavailable, match="no cgroup of pod uid-gone"):
            MpsEnforcer(daemons, ContainerSpec(), {"0000:3b:00.0": REGION}, tree).pre_start(grant(uid="uid-gone"))
        with pytest.raises(CgroupUnavailable, match=r"no region of GPU 0 at 0000:3b:00\.0"):
            MpsEnforcer(daemons, ContainerSpec(), {}, tree).pre_start(grant(uid="uid-a"))

    @pytest.mark.parametrize("path", ["kubepods/pod{uid}", "kubepods/besteffort/pod{uid}", "root/kubepods/pod{uid}"])
    def test_the_cgroup_of_a_pod_is_found_under_the_other_driver_too(self, tmp_path: Path, path: str) -> None:
        folder = tmp_path / path.format(uid="0f1c-22")
        folder.mkdir(parents=True)
        assert pod_cgroup("0f1c-22", tmp_path) == folder


def test_device_files_are_passed_on_where_no_runtime_does(tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    asked = grant()
    passed = ContainerSpec(tmp_path).container_response(replace(asked, card=replace(asked.card, minor=1))).devices
    assert [one.container_path for one in passed] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]
    assert ContainerSpec().container_response(asked).devices == ()
