"""Soft shares may be promised more compute than a card has, up to what its node says; memory never is."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core.cluster import Node, Span
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import Share
from batuta.core.world import World
from batuta.placement import TopologyPlacer
from batuta.policies.fifo import ElasticFifo
from tests.support.examples import examples
from tests.support.invariants import check_layout
from tests.support.worlds import NOW_S, carry_out, make_job, make_world

MEMORY_MIB = 1000
RULES = SchedulerProfile(ElasticFifo(), TopologyPlacer())
SHARES = st.lists(
    st.builds(
        Share,
        memory_mib=st.sampled_from([0, 100, 300, 600]),
        compute_percent=st.integers(1, 100),
        soft=st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


def running(shares: list[Share], promised: int) -> World:
    """All that has found a place on three cards, by the rules of a server."""
    nodes = [Node("n0", 3, gpu_memory_mib=MEMORY_MIB, gpu_compute_percent=promised)]
    jobs = [make_job(f"j{k:02}", share=share, submit_s=float(k)) for k, share in enumerate(shares)]
    world = make_world(nodes, {}, jobs)
    for _ in range(3):
        carry_out(world, decide(world, NOW_S, RULES).commands, NOW_S)
    return world


@settings(max_examples=examples(60))
@given(shares=SHARES, promised=st.sampled_from([100, 130, 150, 400]))
def test_hard_shares_are_kept_and_no_card_is_promised_beyond_its_bounds(shares, promised):
    world = running(shares, promised)
    check_layout(world)
    hard: Counter[Span] = Counter()
    soft: Counter[Span] = Counter()
    memory: Counter[Span] = Counter()
    for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
        if placement is not None and job.share is not None:
            card = placement.spans[0]
            (soft if job.share.soft else hard)[card] += job.share.compute_percent
            memory[card] += job.share.memory_mib
    for card in memory:
        assert memory[card] <= MEMORY_MIB
        assert hard[card] <= 100
        assert hard[card] + soft[card] <= promised or not soft[card]
        assert hard[card] + soft[card] * 100 / promised <= 100
