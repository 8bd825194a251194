"""What a pod asks for, as kube-scheduler adds it up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from batuta.backends.kube import objects
from batuta.backends.kube.binder.requests import amount, is_guaranteed, is_resized, pod_requests, units
from batuta.backends.kube.bounded_text import read_gpus


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("0.5", 1),
        ("1500m", 2),
        ("1Ki", 1024),
        ("1.5Gi", 1_610_612_736),
        ("1k", 1000),
        ("2e3", 2000),
        ("1E", 10**18),
        ("12E2", 1200),
        (".5M", 500_000),
        ("nonsense", 0),
        ("99999999999E", 2**62),
    ],
)
def test_a_quantity_is_rounded_up_to_a_whole_number(text: str, value: int) -> None:
    assert units("memory", amount(text)) == value


@pytest.mark.parametrize(("text", "milli"), [("1", 1000), ("250m", 250), ("0.1", 100), ("100u", 1)])
def test_cpus_are_counted_in_thousandths(text: str, milli: int) -> None:
    assert units("cpu", amount(text)) == milli


def spec_of(**spec: Any) -> objects.Pod:
    return msgspec.convert({"spec": spec}, objects.Pod)


def container(name: str = "c", **requests: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests}}


def sidecar(**requests: str) -> dict[str, Any]:
    return {**container("side", **requests), "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "cpu_milli"),
    [
        ({"containers": [container(cpu="1"), container(cpu="500m")]}, 1500),
        # An init container that needs more than all others together sets the size.
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3")]}, 3000),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="500m")]}, 1000),
        # A sidecar runs beside the containers, and beside the init containers after it.
        ({"containers": [container(cpu="1")], "initContainers": [sidecar(cpu="1")]}, 2000),
        (
            {"containers": [container(cpu="1")], "initContainers": [sidecar(cpu="1"), container(cpu="3")]},
            4000,
        ),
        (
            {"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), sidecar(cpu="1")]},
            3000,
        ),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, 1250),
        # Resources of the whole pod stand for those of its containers.
        ({"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "4"}}}, 4000),
        (
            {"containers": [container()], "resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "1"}},
            5000,
        ),
    ],
)
def test_containers_init_containers_sidecars_and_overhead_add_up(spec: dict[str, Any], cpu_milli: int) -> None:
    assert pod_requests(spec_of(**spec)) == {"cpu": cpu_milli}


def test_resources_of_the_whole_pod_do_not_replace_devices() -> None:
    one = spec_of(
        containers=[container(**{"nvidia.com/gpu": "2", "cpu": "1"})],
        resources={"requests": {"cpu": "4", "nvidia.com/gpu": "9"}},
    )

    assert pod_requests(one) == {"cpu": 4000, "nvidia.com/gpu": 2}


def test_zeros_and_what_no_node_is_asked_for_are_left_out() -> None:
    assert pod_requests(spec_of(containers=[container(cpu="0", storage="1Gi", memory="1")])) == {"memory": 1}


def resized(spec: str, actual: str, allocated: str, condition: str = "") -> objects.Pod:
    conditions = [{"type": "PodResizePending", "reason": condition}] if condition else []
    return msgspec.convert(
        {
            "spec": {"nodeName": "n", "containers": [container("c", cpu=spec)]},
            "status": {
                "conditions": conditions,
                "containerStatuses": [
                    {
                        "name": "c",
                        "resources": {"requests": {"cpu": actual}},
                        "allocatedResources": {"cpu": allocated},
                    }
                ],
            },
        },
        objects.Pod,
    )


@pytest.mark.parametrize(
    ("one", "cpu_milli"),
    [
        (resized("1", "2", "2"), 2000),
        (resized("3", "2", "2"), 3000),
        (resized("3", "1", "2"), 3000),
        # A resize that the kubelet will never do does not count.
        (resized("9", "1", "2", "Infeasible"), 2000),
        (resized("9", "1", "2", "Deferred"), 9000),
    ],
)
def test_a_pod_that_is_resized_in_place_holds_the_most_of_what_it_had_and_gets(
    one: objects.Pod, cpu_milli: int
) -> None:
    assert is_resized(one)
    assert pod_requests(one) == {"cpu": cpu_milli}


def test_a_running_pod_that_is_not_resized_is_known_as_such() -> None:
    assert not is_resized(resized("1", "1", "1"))


def qos(requests: dict[str, str], limits: dict[str, str]) -> objects.PodSpec:
    return spec_of(containers=[{"name": "c", "resources": {"requests": requests, "limits": limits}}]).spec


@pytest.mark.parametrize(
    ("spec", "guaranteed"),
    [
        (qos({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}), True),
        (qos({}, {"cpu": "1", "memory": "1Gi"}), True),
        (qos({"cpu": "1000m", "memory": "1024Mi"}, {"cpu": "1", "memory": "1Gi"}), True),
        (qos({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}), False),
        (qos({"cpu": "1"}, {"cpu": "1"}), False),
        (qos({}, {}), False),
    ],
)
def test_a_pod_is_guaranteed_when_its_requests_are_its_limits(spec: objects.PodSpec, guaranteed: bool) -> None:
    assert is_guaranteed(spec) is guaranteed


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("0,1", (0, 1)), (" 3 , 2 ", (3, 2)), ("", ()), ("x", ()), ("1,-2", ()), ("1,1", (1,)), ("9" * 4301, ())],
    ids=lambda value: str(value)[:12],
)
def test_the_annotation_of_gpus_is_read_or_counts_as_absent(text: str, gpus: tuple[int, ...]) -> None:
    assert read_gpus({"batuta.dev/gpus": text}) == gpus
