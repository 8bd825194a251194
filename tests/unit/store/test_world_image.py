from dataclasses import fields
from typing import Any

import pytest

from batuta.core.apply import apply
from batuta.core.curve import CurvePool, SizeSetPool
from batuta.core.decide import decide
from batuta.core.event import JobSubmitted, NodeAdded
from batuta.core.job import Share
from batuta.core.job_table import JobTable
from batuta.core.layout import Layout
from batuta.core.node_table import NodeTable
from batuta.core.world import World, WorldCaches
from batuta.store.codec import pack_arrays, unpack_arrays
from batuta.store.errors import CodecError
from batuta.store.snapshots import decode_world, encode_world
from tests.support.deep import deep
from tests.support.invariants import fingerprint
from tests.support.stories import Story
from tests.support.walks import Walk
from tests.support.worlds import make_job, make_nodes

FOLLOWS, DRAWN = "follows from what is drawn", "is drawn"
SLOTS = {
    World: {
        **dict.fromkeys(("caches", "cordoned", "ill", "jobs", "layout", "lost", "nodes", "now_s"), DRAWN),
        **dict.fromkeys(
            ("avoided", "demand_generation", "idle", "leaving", "loads", "others", "trials", "usage"), DRAWN
        ),
        **dict.fromkeys(("flavors", "policy", "progress", "quota", "version"), DRAWN),
        "past": "is kept by the snapshots, job by job",
        "forgotten": "counts from when its owner took the World up",
    },
    WorldCaches: {
        **dict.fromkeys(("open_capacity", "reach"), DRAWN),
        **dict.fromkeys(("effective_from", "effective_quota", "most"), "is worked out again when it is read"),
    },
    JobTable: {
        **dict.fromkeys(("_f", "_i", "curves", "jobs", "outlooks", "placements", "queues", "size_sets"), DRAWN),
        "checkpoints": DRAWN,
        **dict.fromkeys(("broken", "crowd_s", "held_back", "irregular", "moving", "narrow", "picky"), DRAWN),
        **dict.fromkeys(("_keys", "beside", "cpu_only", "elastic", "ids", "key_of", "n"), FOLLOWS),
        **dict.fromkeys(("sharing", "short", "total_max", "type_lists", "unsaved"), FOLLOWS),
    },
    NodeTable: {
        **dict.fromkeys(("nodes", "types"), DRAWN),
        **dict.fromkeys(("all", "by_label", "by_rack", "by_size", "by_type", "index", "largest"), FOLLOWS),
        **dict.fromkeys(("by_key", "models", "rack_of", "tainted", "type_of"), FOLLOWS),
        "_matching": "is worked out again when it is read",
    },
    Layout: {
        **dict.fromkeys(("buckets", "cards", "cpus_milli", "free", "healthy", "memory_mib", "usable"), DRAWN),
        **dict.fromkeys(("table", "total_free"), FOLLOWS),
        "_lent": "is never set in a World's own layout",
    },
    CurvePool: dict.fromkeys(("flat", "limit", "places", "used"), DRAWN),
    SizeSetPool: {"places": DRAWN, "matrix": FOLLOWS},
}


@pytest.mark.parametrize("kind", SLOTS, ids=lambda kind: kind.__name__)
def test_nothing_about_a_world_is_forgotten(kind):
    """A new slot of the World is listed here with how a snapshot keeps it; raise VERSION if need be."""
    assert {one.name for one in fields(kind)} == set(SLOTS[kind])


@pytest.mark.parametrize("policy", ["fifo", "elastic-tiresias"])
@pytest.mark.parametrize("seed", range(6))
def test_a_world_comes_back_whatever_happened(seed, policy):
    walk = Walk(seed, policy)
    for _ in range(15):
        walk.go(12)
        twin = decode_world(encode_world(walk.world))
        twin.past, twin.forgotten = dict(walk.world.past), walk.world.forgotten
        assert fingerprint(twin) == fingerprint(walk.world)
        assert deep(twin) == deep(walk.world)


@pytest.mark.parametrize("seed", range(4))
def test_a_world_that_came_back_goes_on_in_the_same_way(seed):
    walk = Walk(seed).go(80)
    twin = decode_world(encode_world(walk.world))
    twin.past, twin.forgotten = dict(walk.world.past), walk.world.forgotten
    known = len(walk.events)
    walk.go(80)
    for event in walk.events[known:]:
        apply(twin, event)
    assert deep(twin) == deep(walk.world)
    now_s = walk.now_s + 1
    assert decide(twin, now_s, walk.rules) == decide(walk.world, now_s, walk.rules)


def test_an_image_is_independent():
    walk = Walk(1).go(60)
    before, twin = deep(walk.world), decode_world(encode_world(walk.world))
    apply(twin, JobSubmitted(walk.now_s, make_job("new")))
    twin.jobs.remaining_s[:] = 7.0
    assert deep(walk.world) == before


def test_an_empty_world():
    assert deep(decode_world(encode_world(World()))) == deep(World())


def test_more_nodes_than_a_number_in_text_has_digits():
    """A set of 20,000 nodes is an integer of more decimal digits than Python is willing to write or read."""
    world = World()
    world.cordoned = world.lost = 1 << 20_000
    assert decode_world(encode_world(world)).lost == world.lost


def test_what_a_later_version_adds_begins_as_for_a_new_job():
    world = World()
    apply(world, NodeAdded(0.0, make_nodes(4)[0]))
    apply(world, JobSubmitted(0.0, make_job("a", 2)))
    header, arrays = unpack_arrays(encode_world(world))
    del arrays["f.restart_s"], arrays["i.gpu_type"], header["counters"]["narrow"]
    arrays["i.mood"] = arrays["i.gpus"]
    assert deep(decode_world(pack_arrays(header, arrays))) == deep(world)


def test_what_follows_from_the_jobs_is_counted_again_and_not_stored():
    """An image of a version that did not count it opens as well, and says the same."""
    world = World()
    apply(world, NodeAdded(0.0, make_nodes(4)[0]))
    asked: dict[str, dict[str, Any]] = {
        "any": {},
        "fast": {"gpu_types": (("H100", 2.0),)},
        "fast too": {"gpu_types": (("H100", 2.0),)},
        "share": {"share": Share(compute_percent=50)},
    }
    for name, what in asked.items():
        apply(world, JobSubmitted(0.0, make_job(name, 1, **what)))
    header, arrays = unpack_arrays(encode_world(world))
    assert not {"sharing", "type_lists"} & (header.keys() | header["counters"].keys() | arrays.keys())
    twin = decode_world(pack_arrays(header, arrays)).jobs
    assert (twin.sharing, twin.type_lists) == (1, {(): 2, (("H100", 2.0),): 2})


def test_an_image_of_another_format_is_refused():
    header, arrays = unpack_arrays(encode_world(World()))
    with pytest.raises(CodecError, match="format 99"):
        decode_world(pack_arrays(header | {"v": 99}, arrays))


@pytest.mark.parametrize("key", ["jobs", "placements", "layout", "curves", "nodes", "version", "reach"])
def test_a_damaged_image_is_refused(key):
    header, arrays = unpack_arrays(encode_world(Walk(1).go(60).world))
    with pytest.raises(CodecError, match="damaged"):
        decode_world(pack_arrays({name: own for name, own in header.items() if name != key}, arrays))
    with pytest.raises(CodecError, match="placements"):
        decode_world(pack_arrays(header | {"placements": header["placements"][1:]}, arrays))


def test_a_story_of_many_jobs():
    world = World()
    for _, event in zip(range(3000), Story(3), strict=False):
        apply(world, event)
    twin = decode_world(encode_world(world))
    twin.past = world.past
    assert deep(twin) == deep(world)
