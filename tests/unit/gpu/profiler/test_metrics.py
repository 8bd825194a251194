"""The agent's metrics, as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families

from batuta.gpu.owners import Owner
from batuta.gpu.profiler.export import render_metrics
from batuta.gpu.profiler.usage import NodeUsage
from tests.unit.gpu.profiler.scenes import A, B, Node, gpu, process


def usage(*jobs: Owner) -> NodeUsage:
    node = Node(dict(enumerate(jobs)))
    profiler = node.profiler()
    node.run(profiler, 3, gpu(0, 0.5, *(process(pid, 0.25) for pid in node.owned)), gpu(1, None))
    return profiler.usage()


def series(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text + "\n")
    }


def test_a_gpu_with_one_owner_carries_its_labels():
    found = series(render_metrics(usage(A), 3, 0))
    labels, value = found["batuta_gpu_utilisation_ratio"][0]
    assert value == 0.5
    assert labels == {
        "gpu": "0",
        "uuid": "GPU-0",
        "model": "A100",
        "node": "n",
        "job": "a",
        "pod": "a-0",
        "namespace": "team",
    }
    assert found["batuta_gpu_memory_bytes"][0][1] == 40_960 * 2**20
    assert found["batuta_gpu_samples"][0][1] == 3


def test_what_is_not_known_is_left_out():
    found = series(render_metrics(usage(A), 3, 0))
    assert [labels["gpu"] for labels, _ in found["batuta_gpu_utilisation_ratio"]] == ["0"]
    assert "batuta_gpu_sm_activity_ratio" not in found


def test_sharers_have_series_of_their_own_and_their_gpu_belongs_to_neither():
    found = series(render_metrics(usage(A, B), 3, 0))
    assert found["batuta_gpu_utilisation_ratio"][0][0]["job"] == ""
    pods = found["batuta_gpu_pod_utilisation_ratio"]
    assert [(labels["pod"], labels["uuid"], value) for labels, value in pods] == [
        ("a-0", "GPU-0", 0.25),
        ("b-0", "GPU-0", 0.25),
    ]


def test_names_that_need_quotes_get_them():
    odd = Owner('a"b\\c\n', "p", "n")
    (labels, _), *_ = series(render_metrics(usage(odd), 1, 0))["batuta_gpu_utilisation_ratio"]
    assert labels["job"] == odd.job
