"""Nodes and GPUs as metrics, and how well jobs lie on them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from batuta.api.metric_families import gauge
from batuta.api.parts import NodeFacts
from batuta.api.picture import Picture
from batuta.api.views import count_gpus

MOST_NODES = 2_000
"""Nodes that have series of their own, in the order in which they came."""
MOST_GPUS = 8_000
"""GPUs whose use has a series of its own."""
STATES = ("ready", "cordoned", "lost")


def node_metrics(picture: Picture, facts: NodeFacts) -> Iterator[Metric]:
    gpus = {(state,): count for state, count in count_gpus(picture).items()}
    yield gauge("batuta_gpus", "GPUs: total is the sum of the others.", ["state"], gpus)
    states = [_state_of(picture, i) for i in range(len(picture.nodes))]
    counts = {(state,): states.count(state) for state in STATES}
    yield gauge("batuta_nodes", "Nodes by state.", ["state"], counts)
    yield from _single_nodes(picture, states[:MOST_NODES])
    yield from _use(picture, facts)
    yield from _placement(picture)


def _state_of(picture: Picture, i: int) -> str:
    if picture.lost >> i & 1:
        return "lost"
    return "cordoned" if picture.cordoned >> i & 1 else "ready"


def _single_nodes(picture: Picture, states: list[str]) -> Iterator[Metric]:
    values: dict[tuple[str, str], int] = {}
    for node, healthy, free in zip(picture.nodes[: len(states)], picture.healthy, picture.free, strict=False):
        works, unused = healthy.bit_count(), (healthy & free).bit_count()
        values[node.name, "used"] = works - unused
        values[node.name, "free"] = unused
        values[node.name, "unhealthy"] = node.gpus - works
    yield gauge("batuta_node_gpus", "GPUs of a node.", ["node", "state"], values)
    names = (node.name for node in picture.nodes)
    serves = {(name,): int(state == "ready") for name, state in zip(names, states, strict=False)}
    yield gauge(
        "batuta_node_ready",
        "1 when a node may get new jobs, 0 when it is cordoned or lost.",
        ["node"],
        serves,
    )


def _use(picture: Picture, facts: NodeFacts) -> Iterator[Metric]:
    values: dict[tuple[str, str], float] = {}
    for node in picture.nodes[:MOST_NODES]:
        if len(values) + node.gpus > MOST_GPUS:
            break
        values |= {(node.name, str(gpu)): share for gpu, share in facts.utilisation(node.name).items()}
    yield gauge("batuta_gpu_utilisation_ratio", "How busy a GPU is, as measured.", ["node", "gpu"], values)


def _placement(picture: Picture) -> Iterator[Metric]:
    """How well jobs lie: pieces of nodes are of little use, and jobs that cross nodes are slower."""
    free = [(own & ok).bit_count() for own, ok in zip(picture.free, picture.healthy, strict=True)]
    pieces = sum(own for own, node in zip(free, picture.nodes, strict=True) if own < node.gpus)
    total = sum(free)
    yield gauge(
        "batuta_fragmentation_ratio",
        "Share of the free GPUs that lie on nodes of which others are in use.",
        [],
        {(): pieces / total if total else 0.0},
    )
    yield gauge(
        "batuta_largest_free_block_gpus",
        "Free GPUs of the node that has most of them.",
        [],
        {(): max(free, default=0)},
    )
    largest = max((node.gpus for node in picture.nodes), default=0)
    spread = [held.size for held in picture.placements if held is not None and len(held.spans) > 1]
    fits = sum(size <= largest for size in spread)
    yield gauge(
        "batuta_cross_node_jobs",
        "Jobs on more than one node, by whether one node would be enough for them.",
        ["fits_one_node"],
        {("yes",): fits, ("no",): len(spread) - fits},
    )
