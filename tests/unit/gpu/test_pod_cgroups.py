"""From the text of /proc/PID/cgroup to the pod, in every spelling that nodes have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.gpu.pod_owners import pods_of

UID = "6f1c0a2e-9d3b-4c58-8a77-0123456789ab"
OTHER = "11111111-2222-3333-4444-555555555555"
HASH = "0123456789abcdef0123456789abcdef"
ID = "a1" * 32
INNER = "b2" * 32


def systemd(uid: str) -> str:
    return uid.replace("-", "_")


HERE = (UID,)
V2_SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd(UID)}.slice"
V1_CGROUPFS = "\n".join(
    f"{number}:{names}:/kubepods/burstable/pod{UID}/{ID}"
    for number, names in (
        (12, "pids"),
        (11, "memory"),
        (4, "cpu,cpuacct"),
        (3, "devices"),
        (1, "name=systemd"),
    )
)

IN_A_POD = {
    # cgroup v2, cgroupfs driver
    "v2, cgroupfs, containerd, burstable": f"0::/kubepods/burstable/pod{UID}/{ID}",
    "v2, cgroupfs, containerd, besteffort": f"0::/kubepods/besteffort/pod{UID}/{ID}",
    "v2, cgroupfs, containerd, guaranteed": f"0::/kubepods/pod{UID}/{ID}",
    "v2, cgroupfs, CRI-O": f"0::/kubepods/besteffort/pod{UID}/crio-{ID}",
    "v2, cgroupfs, a group made by the container": f"0::/kubepods/burstable/pod{UID}/{ID}/worker/gpu",
    # cgroup v2, systemd driver
    "v2, systemd, containerd, burstable": f"0::{V2_SLICE}/cri-containerd-{ID}.scope",
    "v2, systemd, containerd, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{systemd(UID)}.slice/cri-containerd-{ID}.scope"
    ),
    "v2, systemd, containerd, besteffort": (
        "0::/kubepods.slice/kubepods-besteffort.slice/"
        f"kubepods-besteffort-pod{systemd(UID)}.slice/cri-containerd-{ID}.scope"
    ),
    "v2, systemd, CRI-O": f"0::{V2_SLICE}/crio-{ID}.scope",
    "v2, systemd, CRI-O with crun": f"0::{V2_SLICE}/crio-{ID}.scope/container",
    "v2, systemd, cri-dockerd": f"0::{V2_SLICE}/docker-{ID}.scope",
    "v2, systemd in the container": f"0::{V2_SLICE}/cri-containerd-{ID}.scope/init.scope",
    "v2, systemd, a service in the container": (f"0::{V2_SLICE}/cri-containerd-{ID}.scope/system.slice/train.service"),
    # cgroup v1
    "v1, cgroupfs, containerd": V1_CGROUPFS,
    "v1, systemd, containerd": f"11:memory:{V2_SLICE}/cri-containerd-{ID}.scope\n0::/",
    "v1, systemd, CRI-O": f"5:devices:{V2_SLICE}/crio-{ID}.scope\n1:name=systemd:{V2_SLICE}/crio-{ID}.scope",
    "v1, some controllers at the root": f"9:perf_event:/\n8:memory:/kubepods/pod{UID}/{ID}\n7:rdma:/",
    "v1, named by systemd only": f"4:memory:/\n1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}",
    "hybrid, version 2 elsewhere": f"0::/system.slice/containerd.service\n6:memory:/kubepods/pod{UID}/{ID}",
    "v1, kubelet and containerd disagree about systemd": (
        f"11:memory:/system.slice/containerd.service/kubepods-burstable-pod{systemd(UID)}.slice:cri-containerd:{ID}"
    ),
    "v1, kubelet and CRI-O disagree about systemd": (
        f"11:memory:/kubepods-besteffort-pod{systemd(UID)}.slice:crio:{ID}"
    ),
    # A cluster whose nodes are containers
    "kind, v2, cgroupfs": f"0::/docker/{INNER}/kubelet/kubepods/burstable/pod{UID}/{ID}",
    "kind, v2, systemd": (
        f"0::/system.slice/docker-{INNER}.scope/kubelet.slice/kubelet-kubepods.slice/"
        f"kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{systemd(UID)}.slice/"
        f"cri-containerd-{ID}.scope"
    ),
    "kind, v1": f"11:memory:/docker/{INNER}/kubelet/kubepods/besteffort/pod{UID}/{ID}",
    # Seen from a container that has its own root of control groups
    "another pod of the same class": f"0::/../../pod{UID}/{ID}",
    "another pod of another class": f"0::/../../../burstable/pod{UID}/{ID}",
    "another pod, systemd": f"0::/../../kubepods-besteffort-pod{systemd(UID)}.slice/crio-{ID}.scope",
    "another pod of another class, systemd": (
        f"0::/../../../kubepods-burstable.slice/kubepods-burstable-pod{systemd(UID)}.slice/cri-containerd-{ID}.scope"
    ),
    # Containers that a pod starts itself
    "Docker in a pod": f"0::/kubepods/burstable/pod{UID}/{ID}/docker/{INNER}",
    "Podman in a pod": f"0::{V2_SLICE}/crio-{ID}.scope/libpod-{INNER}.scope",
    "a group that is being removed": f"0::/kubepods/burstable/pod{UID}/{ID} (deleted)",
}

ON_THE_HOST = {
    "nothing": "",
    "the root": "0::/",
    "a session": "0::/user.slice/user-1000.slice/session-3.scope",
    "a service": "0::/system.slice/nvidia-persistenced.service",
    "the kubelet": "0::/system.slice/kubelet.service",
    "containerd": "12:memory:/system.slice/containerd.service\n0::/system.slice/containerd.service",
    "a container without a pod": f"0::/system.slice/docker-{ID}.scope",
    "a container without a pod, cgroupfs": f"0::/docker/{ID}",
    "podman of a user": (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"),
    "all pods together": "0::/kubepods.slice",
    "all pods of a class": "0::/kubepods/burstable",
    "a user's folder that is called like a pod": f"0::/user.slice/pod{UID}/{ID}",
    "a service that is called like a pod": f"0::/system.slice/kubepods-pod{systemd(UID)}.slice/x.scope",
    "a folder that is called like a class": f"0::/burstable/pod{UID}/{ID}",
    "a pod whose uid is too short": f"0::/kubepods/burstable/pod{UID[:-1]}/{ID}",
    "a pod whose uid is none": f"0::/kubepods/burstable/podfoo/{ID}",
    "the host, seen from a container": "0::/../../../../system.slice/sshd.service",
    "a host's folder, seen from a container": f"0::/../../../../user.slice/pod{UID}/{ID}",
    "hierarchies that disagree": f"5:memory:/kubepods/pod{UID}/{ID}\n4:devices:/kubepods/pod{OTHER}/{INNER}",
    "lines that are none": f"memory:/kubepods/pod{UID}/{ID}\n:::\nx:y:/kubepods/pod{UID}/{ID}",
    "a relative path": f"0::kubepods/pod{UID}/{ID}",
}


@pytest.mark.parametrize("text", IN_A_POD.values(), ids=IN_A_POD.keys())
def test_a_process_in_a_pod_is_found_there(text: str):
    assert pods_of(text)[:1] == HERE


@pytest.mark.parametrize("text", ON_THE_HOST.values(), ids=ON_THE_HOST.keys())
def test_a_process_of_the_host_is_in_no_pod(text: str):
    assert pods_of(text) == ()


def test_a_static_pod_is_known_by_the_hash_of_its_file():
    assert pods_of(f"0::/kubepods/burstable/pod{HASH}/{ID}") == (HASH,)
    named = f"0::/kubepods.slice/kubepods-pod{HASH}.slice/cri-containerd-{ID}.scope"
    assert pods_of(named) == (HASH,)


@pytest.mark.parametrize(
    "rest", ["", f"/crio-conmon-{ID}.scope", "/init.scope"], ids=["the pod itself", "conmon", "another group"]
)
def test_what_is_beside_the_pods_of_a_pod_is_the_pods(rest: str):
    assert pods_of(f"0::{V2_SLICE}{rest}") == (UID,)


def test_a_cluster_within_a_pod_names_both_pods_the_outer_one_first():
    text = f"0::/kubepods/burstable/pod{UID}/{ID}/kubelet/kubepods/pod{OTHER}/{INNER}"
    assert pods_of(text) == (UID, OTHER)


@given(st.text(max_size=300))
def test_no_text_is_too_odd(text: str):
    pods_of(text)


@given(st.lists(st.sampled_from(["kubepods", "burstable", "..", "x", f"pod{UID}", ID, "docker"]), max_size=7))
def test_a_pod_needs_the_kubelets_folder_above_it(parts: list[str]):
    found = pods_of("0::/" + "/".join(parts))
    if "kubepods" not in parts and ".." not in parts:
        assert found == ()
    assert set(found) <= {UID}
