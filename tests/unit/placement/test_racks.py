"""Which rack a job should go to: the same as by a look at every rack, however much changed in between."""

from random import Random

from batuta.core.cluster import Node
from batuta.core.layout import Layout
from batuta.placement.attempt import PROFILES_KEPT, racks_by_fit
from batuta.placement.cluster_state import ClusterState
from tests.support.worlds import make_job, make_world


def plainly(layout: Layout, gpus: int, step: int, nodes: int) -> list[int]:
    """Every rack by itself: how many nodes from the emptiest on, and how much room all together."""
    found = []
    for order, rack in enumerate(layout.table.by_rack.values()):
        here = [layout.free[i].bit_count() for i in range(len(layout.free)) if (nodes & rack) >> i & 1]
        sizes = sorted((free - free % step for free in here if free >= step), reverse=True)
        if sum(sizes) >= gpus:
            count = next(k for k in range(len(sizes) + 1) if sum(sizes[:k]) >= gpus)
            found.append((count, sum(sizes), order, rack))
    return [rack for *_, rack in sorted(found)]


def test_racks_come_as_if_each_were_looked_at() -> None:
    """Given a cluster that fills and empties; when racks are asked for; then none is out of place."""
    for seed in range(20):
        random = Random(seed)
        nodes = [
            Node(f"n{k:02}", random.choice([4, 8]), rack=f"r{random.randrange(6)}", gpu_memory_mib=1000)
            for k in range(random.randint(1, 30))
        ]
        room = ClusterState(make_world(nodes).layout.fork(), {})
        everywhere, taken = room.layout.usable, list[tuple[int, int]]()
        for _ in range(60):
            job = make_job("j", gpus_per_replica=random.choice([1, 1, 2, 4]))
            i = random.randrange(len(nodes))
            if free := room.layout.free[i]:
                taken.append((i, free & -free))
                room.layout.take(*taken[-1], job)
            if taken and random.random() < 0.4:
                room.give_back(*taken.pop(random.randrange(len(taken))), job)
            some = everywhere if random.random() < 0.5 else random.getrandbits(len(nodes)) & everywhere
            gpus = random.randint(1, 24)

            racks = list(racks_by_fit(room, job, gpus, some))

            assert racks == plainly(room.layout, gpus, job.gpus_per_replica, some)


def test_what_is_remembered_about_racks_is_bounded() -> None:
    nodes = [Node(f"n{k:02}", 8, rack=f"r{k % 4}") for k in range(12)]
    room = ClusterState(make_world(nodes).layout.fork(), {})
    for some in range(1, 4 * PROFILES_KEPT):
        list(racks_by_fit(room, make_job("j"), 4, some))

    assert len(room.racks) <= PROFILES_KEPT
