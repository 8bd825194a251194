"""What the agent writes on nodes and pods."""

import json

from batuta.backends.kube import names
from batuta.gpu.profiler import export as notes
from batuta.gpu.profiler.export import node_annotations, pod_annotations
from batuta.gpu.profiler.usage import StepReport
from tests.unit.gpu.profiler.scenes import A, Node, gpu, process


def measured() -> Node:
    return Node({1: A})


def test_the_agent_and_the_binder_mean_the_same_annotation():
    assert notes.NODE_UTILISATION == names.UTILISATION
    assert notes.POD_USAGE == names.POD_USAGE
    assert notes.PREFIX == names.GPU_PREFIX


def test_a_node_carries_its_gpus_and_how_busy_they_are():
    node = measured()
    profiler = node.profiler()
    node.run(profiler, 4, gpu(0, 0.5, process(1), power_w=200.4, temperature_c=51), gpu(1, None))
    found = node_annotations(profiler.usage())
    assert json.loads(found["batuta.dev/gpu.devices"]) == [
        {"index": 0, "uuid": "GPU-0", "model": "A100", "memoryMib": 40960},
        {"index": 1, "uuid": "GPU-1", "model": "A100", "memoryMib": 40960},
    ]
    said = json.loads(found["batuta.dev/gpu.utilisation"])
    assert said["time"] == node.time_s
    first, second = said["gpus"]
    assert first == {
        "index": 0,
        "utilisation": 0.5,
        "peak": 0.5,
        "memoryUsedMib": 1000,
        "powerW": 200,
        "temperatureC": 51,
        "owners": 1,
    }
    assert "utilisation" not in second  # unknown, and not idle


def test_a_pod_carries_what_it_uses_and_how_its_job_behaves():
    node = measured()
    profiler = node.profiler()
    node.run(profiler, 40, gpu(0, 0.95, process(1)))
    for k in range(3):
        profiler.report_step("a", StepReport(1000 + k, k * 10, 100), "team")
    ((owner, found),) = pod_annotations(profiler.usage()).items()
    assert owner == A
    usage, job = (json.loads(found[key]) for key in (notes.POD_USAGE, notes.POD_JOB))
    assert usage == {
        "time": 900,
        "gpus": [0],
        "utilisation": {"mean": 0.95, "p95": 0.95, "peak": 0.95, "dutyCycle": 1.0},
        "memoryMib": 500,
    }
    assert (job["name"], job["type"], job["stage"], job["bottleneck"]) == ("a", "training", "steady", "gpu")
    assert (job["iteration"], job["stepTimeS"], job["finishTime"]) == (20, 0.1, 1010)


def test_a_pod_that_does_the_same_all_the_time_keeps_its_annotations_for_minutes():
    node = measured()
    profiler = node.profiler()
    node.run(profiler, 60, gpu(0, 0.9, process(1)))
    first = pod_annotations(profiler.usage())
    node.run(profiler, 30, gpu(0, 0.9, process(1)))
    assert pod_annotations(profiler.usage()) == first
    node.run(profiler, 300, gpu(0, 0.9, process(1)))
    assert pod_annotations(profiler.usage()) != first
