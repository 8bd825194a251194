"""The picture of `top` fits its screen."""

import pytest
from rich.console import Console

from batuta.apitypes.resources import Cluster, Gpu, GpuCounts, Gpus, GpuTenant, Job, Node
from batuta.cli.top import ClusterView, colour_of, render


def picture(nodes: int = 2, jobs: int = 3) -> ClusterView:
    gpus = (
        Gpu(0, jobs=(GpuTenant("1"),)),
        Gpu(1, jobs=(GpuTenant("123456"),)),
        Gpu(2),
        Gpu(3, healthy=False),
        Gpu(4, jobs=(GpuTenant("1"), GpuTenant("2"))),
    )
    return ClusterView(
        Cluster("0.1", "fifo", True, GpuCounts(10, 6, 2, 2), {"RUNNING": 2, "PENDING": 0}, "disk full", now_s=0.0),
        [Node(f"node-{k}", "cordoned" if k else "ready", gpus=gpus) for k in range(nodes)],
        [Job(str(k), f"job-{k}", state="RUNNING", gpus=Gpus(1, 1, 1, 1)) for k in range(jobs)],
        [(0.0, f"job {k} starts") for k in range(9)],
    )


def shown(what: ClusterView, width: int, height: int | None) -> list[str]:
    out = Console(width=width, no_color=True)
    with out.capture() as caught:
        out.print(render(what, width, height))
    return [line.rstrip() for line in caught.get().splitlines()]


def test_all_of_it():
    text = "\n".join(shown(picture(), 120, None))
    for part in (
        "6/10 GPUs used",
        "2 RUNNING",
        "trouble: disk full",
        "3456",
        "·",
        "✗",
        "2×",
        "cordoned",
        "job-2",
    ):
        assert part in text
    assert "0 PENDING" not in text
    assert "job 8 starts" in text
    assert "job 2 starts" not in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 20)])
def test_it_fits(width, height):
    lines = shown(picture(nodes=50, jobs=200), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any("more" in line for line in lines)


def test_an_empty_cluster():
    empty = ClusterView(Cluster(now_s=0.0), [], [], [])
    assert any("no job is running" in line for line in shown(empty, 80, 24))


def test_neighbours_differ_in_colour():
    assert colour_of("1") != colour_of("2")
    assert colour_of("abc") == colour_of("abc")
