"""What the agent writes on nodes and pods."""

import json

from batuta.backends.kube import names
from batuta.gpu.owners import Owner
from batuta.gpu.profiler import export as notes
from batuta.gpu.profiler.export import node_annotations
from batuta.gpu.profiler.usage import StepReport
from tests.unit.gpu.profiler.scenes import A, Node, gpu, process


def measured() -> Node:
    return Node({1: A})


def test_the_agent_and_its_readers_mean_the_same_annotations():
    assert notes.NODE_UTILISATION == names.UTILISATION
    assert notes.NODE_PODS == names.PODS_USAGE


def test_a_node_carries_its_gpus_and_how_busy_they_are():
    node = measured()
    profiler = node.profiler()
    node.run(profiler, 4, gpu(0, 0.5, process(1), power_w=200.4, temperature_c=51), gpu(1, None))
    found = node_annotations(profiler.usage(), {})
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


def test_a_node_carries_what_its_pods_use_and_how_their_jobs_behave():
    node = measured()
    profiler = node.profiler()
    node.run(profiler, 40, gpu(0, 0.95, process(1)))
    for k in range(3):
        profiler.report_step("a", StepReport(1000 + k, k * 10, 100), "team")
    said = json.loads(node_annotations(profiler.usage(), {f"{A.namespace}/{A.pod}": "uid-a"})[notes.NODE_PODS])
    assert said["time"] == node.time_s
    ((job, pods),) = ((one["job"], one["pods"]) for one in said["jobs"])
    figures = {"mean": 0.95, "p95": 0.95, "peak": 0.95, "dutyCycle": 1.0}
    assert pods == {"uid-a": {"gpus": [0], "utilisation": figures, "memoryMib": 500}}
    assert (job["name"], job["type"], job["stage"], job["bottleneck"]) == ("a", "training", "steady", "gpu")
    assert (job["iteration"], job["stepTimeS"], job["finishTime"]) == (20, 0.1, 1010)


def test_a_pod_that_the_api_server_has_not_told_of_is_left_out():
    node = measured()
    profiler = node.profiler()
    node.run(profiler, 4, gpu(0, 0.95, process(1)))
    assert json.loads(node_annotations(profiler.usage(), {})[notes.NODE_PODS])["jobs"] == []


def test_pods_that_do_not_fit_are_left_out_and_the_others_stay():
    owners = {pid: Owner(f"{pid}-{'x' * 240}", f"{pid}", "team") for pid in range(1, 200)}
    node = Node(owners)
    profiler = node.profiler()
    node.run(profiler, 4, gpu(0, 0.5, *map(process, owners)))
    uids = {f"team/{pid}": f"uid-{pid}" for pid in owners}
    text = node_annotations(profiler.usage(), uids)[notes.NODE_PODS]
    assert len(text.encode()) <= notes.LONGEST_PODS_BYTES + 40
    assert 0 < len(json.loads(text)["jobs"]) < len(owners)
