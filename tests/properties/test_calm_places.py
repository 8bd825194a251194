"""Real use only breaks ties: no place is wider, emptier or impossible for it, and stale reports are none."""

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node, Placement
from batuta.core.utilisation import STALE_S
from batuta.core.world import World
from batuta.placement import TopologyPlacer
from batuta.placement.cluster_state import crossings, group_masks
from tests.support.examples import examples
from tests.support.worlds import NOW_S, make_job, make_world, place

GPUS = 4
NVLINK = st.sampled_from([(), (0, 0, 1, 1), (0, 0, 0, 1)])
TENTHS = st.one_of(st.none(), st.integers(0, 10).map(lambda tenths: tenths / 10))
USE = st.dictionaries(st.integers(0, 5), st.tuples(*[TENTHS] * GPUS), max_size=6)
HELD = st.lists(st.integers(0, GPUS), min_size=6, max_size=6)


def make(nvlink: tuple[int, ...], held: list[int], wanted: int, used: dict, beside: int) -> World:
    nodes = [Node(f"n{k}", GPUS, nvlink=nvlink, memory_mib=8000) for k in range(6)]
    running = {f"r{k}": f"n{k}:{'0123'[:count]}" for k, count in enumerate(held) if count}
    others = [make_job(name, len(text) - 3) for name, text in running.items()]
    new = make_job("new", wanted, submit_s=1.0, memory_mib_per_gpu=beside)
    world = make_world(nodes, running, [*others, new])
    for k, gpus in used.items():
        apply(world, ev.GpusUsed(NOW_S, f"n{k}", gpus))
    return world


def found(world: World, wanted: int) -> Placement | None:
    return place(TopologyPlacer(), world, {"new": wanted}).placements.get(world.jobs.row("new"))


def shape(world: World, placement: Placement) -> list[tuple[int, int, int, list[int]]]:
    """How full the nodes were, what is taken of each, over how many groups, and what groups keep."""
    nodes, result = world.nodes, []
    for span in placement.spans:
        i, mask = nodes.index[span.node], sum(1 << gpu for gpu in span.gpus)
        left = world.layout.free[i] & ~mask
        rest = sorted((group & left).bit_count() for group in group_masks(nodes.nodes[i].nvlink))
        free = world.layout.free[i].bit_count()
        result.append((free, len(span.gpus), crossings(nodes.nodes[i].nvlink, mask), rest))
    return sorted(result)


@settings(max_examples=examples(150))
@given(nvlink=NVLINK, held=HELD, wanted=st.integers(1, 9), used=USE, beside=st.sampled_from([0, 500]))
def test_a_place_is_as_close_and_as_tight_as_without_any_report(nvlink, held, wanted, used, beside):
    world, blind = make(nvlink, held, wanted, used, beside), make(nvlink, held, wanted, {}, beside)
    seen, unseen = found(world, wanted), found(blind, wanted)
    assert (seen is None) == (unseen is None)
    if seen is not None and unseen is not None:
        assert shape(world, seen) == shape(blind, unseen)


@settings(max_examples=examples(150))
@given(held=HELD, used=USE)
def test_one_gpu_is_the_least_used_of_all_on_nodes_that_are_as_full(held, used):
    world = make((), held, 1, used, 0)
    placement = found(world, 1)
    if placement is None:
        return
    ((node, (gpu,)),) = placement.spans
    free = world.layout.free

    def busy(i: int, k: int) -> float:
        known = used.get(i, (None,) * GPUS)[k]
        return 0.5 if known is None else known

    own = world.nodes.index[node]
    alike = [i for i in range(6) if free[i].bit_count() == free[own].bit_count()]
    least = min(busy(i, k) for i in alike for k in range(GPUS) if free[i] >> k & 1)
    assert busy(own, gpu) == least


@settings(max_examples=examples(50))
@given(held=HELD, wanted=st.integers(1, 9), used=USE)
def test_stale_reports_are_as_good_as_none(held, wanted, used):
    world, blind = make((), held, wanted, used, 0), make((), held, wanted, {}, 0)
    for one in (world, blind):
        apply(one, ev.TimePassed(NOW_S + STALE_S + 1.0))
    assert found(world, wanted) == found(blind, wanted)
