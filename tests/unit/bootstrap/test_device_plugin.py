"""What `batuta device-plugin` is told, and what it makes of the pods of its node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batuta.backends.kube import names, objects
from batuta.bootstrap.device_plugin import DevicePluginOptions, serve_devices, share_pod
from batuta.gpu.device_plugin.allocation import ContainerRequest
from batuta.gpu.device_plugin.inventory import UNIT_MIB, Resource
from batuta.spec.problem import InputError


def container(name: str, restart: str = "", **limits: str) -> Any:
    asked = {f"batuta.dev/gpu-{word}": n for word, n in limits.items()}
    return objects.Container(name=name, resources=objects.Resources(limits=asked), restart_policy=restart)


def test_node_and_scheduler_mean_the_same_by_a_share() -> None:
    assert (Resource.MEMORY, Resource.COMPUTE) == (names.SHARE_MEMORY, names.SHARE_COMPUTE)
    assert UNIT_MIB == names.SHARE_UNIT_MIB


def test_a_pod_is_read_with_what_each_container_wants() -> None:
    pod = objects.Pod(
        metadata=objects.Meta(
            name="p",
            namespace="team",
            uid="u",
            resource_version="42",
            annotations={names.GPUS: "3", names.SHARE_LIMITS: "soft"},
        ),
        spec=objects.PodSpec(
            init_containers=[container("setup", memory="2"), container("helper", "Always", memory="1")],
            containers=[container("main", memory="4", compute="30"), container("log")],
        ),
        status=objects.PodStatus(
            phase="Pending",
            conditions=[objects.Condition(type="PodScheduled", last_transition_time="2026-01-02T03:04:05Z")],
        ),
    )
    found = share_pod(pod)
    assert (str(found), found.card, found.version, found.is_waiting, found.is_soft) == (
        "team/p",
        3,
        42,
        True,
        True,
    )
    assert found.bound_s == 1767323045.0
    assert found.containers == (
        ContainerRequest("setup", 2, is_init=True),
        ContainerRequest("helper", 1),
        ContainerRequest("main", 4, 30),
    )


@pytest.mark.parametrize("text", ["", "x", "0,y"])
def test_a_card_that_cannot_be_read_was_not_decided_on(text: str) -> None:
    pod = objects.Pod(metadata=objects.Meta(annotations={names.GPUS: text}))
    assert share_pod(pod).card is None


def test_all_that_is_wrong_with_the_options_is_said_at_once(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    options = DevicePluginOptions("", kubelet_folder=nowhere, vgpu=nowhere, memory_percent=50)
    with pytest.raises(InputError) as caught:
        serve_devices(options)
    said = str(caught.value)
    for word in ("--memory: from 100", "which node is this?", "is no folder", "--vgpu"):
        assert word in said
