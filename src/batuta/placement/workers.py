"""Worker indices: whoever stays on its GPUs keeps its number, newcomers take the numbers that became free."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.core.bitsets import mask_of
from batuta.core.cluster import Placement, Span
from batuta.core.node_table import NodeTable
from batuta.placement.choose_gpus import choose_gpus

NO_GPUS = Placement(())
"""What a job holds that has not started."""


def keep_order(table: NodeTable, held: Placement, chosen: Mapping[int, int], step: int) -> Placement:
    """The chosen GPUs (a set per node) in worker order: who stays keeps its order, if possible its index."""
    index, left = table.index, dict(chosen)
    if step == 1 and (rest := _rest_of(table, held, chosen)) is not None:
        return rest
    slots: list[Span | None] = []
    for worker in held.workers(step):
        i, mask = index[worker.node], mask_of(worker.gpus)
        stays = len(worker.gpus) == step and not mask & ~left.get(i, 0)
        slots.append(worker if stays else None)
        if stays:
            left[i] &= ~mask
    fresh = [span for i, mask in left.items() if mask for span in _replicas(table, i, mask, step)]
    fresh.reverse()
    order = [slot or fresh.pop() for slot in slots if slot or fresh]
    return joined([*order, *reversed(fresh)])


def _rest_of(table: NodeTable, held: Placement, chosen: Mapping[int, int]) -> Placement | None:
    """What is left of a job that only gives up GPUs; None if it also gets some. Most spans stay whole."""
    index, spans, gpus = table.index, list[Span](), 0
    for span in held.spans:
        mask = mask_of(span.gpus)
        kept = mask & chosen.get(index[span.node], 0)
        gpus += kept.bit_count()
        if kept == mask:
            spans.append(span)
        elif kept:
            spans.append(Span(span.node, tuple([gpu for gpu in span.gpus if kept >> gpu & 1])))
    return joined(spans) if gpus == sum(mask.bit_count() for mask in chosen.values()) else None


def _replicas(table: NodeTable, i: int, mask: int, step: int) -> tuple[Span, ...]:
    node = table.nodes[i]
    gpus = choose_gpus(node.nvlink, node.numa, mask, mask.bit_count()).gpus
    return tuple(Span(node.name, gpus[k : k + step]) for k in range(0, len(gpus), step))


def joined(spans: list[Span]) -> Placement:
    """A placement of these spans; neighbours on the same node become one."""
    result: list[Span] = []
    for span in spans:
        if result and result[-1][0] == span[0]:
            span = Span(span.node, result.pop().gpus + span.gpus)
        result.append(span)
    return Placement(tuple(result))


def begins_with(placement: Placement, held: Placement) -> bool:
    """Whether all workers that a job had are where they were, and new ones come after them."""
    *first, last = held.spans
    end = len(first)
    node, gpus = placement.spans[end] if end < len(placement.spans) else ("", ())
    return placement.spans[:end] == tuple(first) and node == last.node and gpus[: len(last.gpus)] == last.gpus


def whole_replicas(held: Placement, step: int) -> Placement:
    """What a job that lost GPUs can still use: the rest of a replica that is no longer whole is left out."""
    if step == 1 or all(len(span.gpus) % step == 0 for span in held.spans):
        return held
    return joined([worker for worker in held.workers(step) if len(worker.gpus) == step])
