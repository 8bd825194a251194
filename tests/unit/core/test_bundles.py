"""Shares that go together on a card: a waiting one joins the fullest with room, as a plain search says."""

from random import Random

import numpy as np

from batuta.core.cluster import Node
from batuta.core.job import Share
from batuta.core.shared_gpus import bundle_shares
from batuta.core.world import World
from tests.support.worlds import make_job, make_world

CARDS_MIB = {"a": (1000, 2000), "b": (1500,)}


def arbitrary_world(random: Random) -> World:
    """Two types, cards of two sizes in one of them, shares of all shapes, some of which have a card."""
    nodes = [
        Node(f"n{k}", 4, gpu_type=kind, gpu_memory_mib=random.choice(CARDS_MIB[kind])) for k, kind in enumerate("aab")
    ]
    shares = [
        Share(random.choice([0, 100, 250, 400, 700]), random.choice([0, 10, 10, 30, 50, 90]))
        for _ in range(random.randint(1, 40))
    ]
    jobs = [make_job(f"j{k:02}", share=share) for k, share in enumerate(shares)]
    runs = {f"j{k:02}": f"n{k // 4}:{k % 4}" for k in range(min(len(jobs), random.randint(0, 12)))}
    return make_world(nodes, runs, jobs)


def plainly(world: World, gpu_type: list[int], eligible: list[bool]) -> list[set[int]]:
    """Rows by card: every card that has room is compared for every share."""
    jobs, nodes = world.jobs, world.nodes
    cards: list[tuple[int, int, list[int]]] = []
    rows = [row for row in range(jobs.n) if jobs.placements[row] is not None]
    for row in rows:
        node = jobs.placements[row].spans[0].node  # type: ignore[union-attr]
        cards.append((gpu_type[row], nodes.nodes[nodes.index[node]].gpu_memory_mib, [row]))

    def used(card: tuple[int, int, list[int]]) -> tuple[int, int]:
        shares = [jobs.jobs[row].share or Share() for row in card[2]]
        return sum(share.compute_percent for share in shares), sum(share.memory_mib for share in shares)

    for row in range(jobs.n):
        share = jobs.jobs[row].share
        if jobs.placements[row] is not None or share is None or not eligible[row]:
            continue
        fitting = [
            card
            for card in cards
            if card[0] == gpu_type[row]
            and used(card)[0] + share.compute_percent <= 100
            and used(card)[1] + share.memory_mib <= card[1]
        ]
        if fitting:
            max(fitting, key=used)[2].append(row)
        else:
            smallest = min(node.gpu_memory_mib for node in nodes.nodes if node.gpu_type == "ab"[gpu_type[row]])
            cards.append((gpu_type[row], smallest, [row]))
    return [set(card[2]) for card in cards]


def test_shares_join_the_fullest_card_with_room() -> None:
    for seed in range(150):
        random = Random(seed)
        world = arbitrary_world(random)
        count = world.jobs.n
        running = [placement is not None for placement in world.jobs.placements]
        held = world.jobs.gpu_type.tolist()
        gpu_type = [kind if kind >= 0 else random.randrange(2) for kind in held]
        eligible = [runs or random.random() < 0.9 for runs in running]

        bundles = bundle_shares(world, np.array(gpu_type), np.array(eligible), np.zeros(count, dtype=np.bool_))

        # Whoever stands for a bundle gives its number to all others in it.
        number = np.arange(1, count + 1) * ~bundles.hidden
        bundles.spread(number)
        found = [set(np.flatnonzero(number == one).tolist()) for one in range(1, count + 1)]
        expected = plainly(world, gpu_type, eligible)
        alone = [{row} for row in range(count) if not eligible[row]]
        assert sorted(map(sorted, filter(None, found))) == sorted(map(sorted, expected + alone)), seed


def test_nobody_joins_a_card_of_which_more_is_taken_than_it_has() -> None:
    """Given a card that others have filled beyond its end; when a share comes; then it stands alone."""
    jobs = [make_job(name, share=Share(10, 80)) for name in "ab"] + [make_job("c", share=Share(10, 0))]
    world = make_world([Node("n0", 2)], {"a": "n0:0", "b": "n0:0"}, jobs)
    everybody = np.ones(3, dtype=np.bool_)

    bundles = bundle_shares(world, np.zeros(3, dtype=np.int64), everybody, ~everybody)

    assert bundles.hidden.tolist() == [False, True, False]
