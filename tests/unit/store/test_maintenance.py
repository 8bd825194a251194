from batuta.core.apply import apply
from batuta.core.event import NodeAdded, TimePassed
from batuta.core.world import World
from batuta.store.store import JournalMaintenance, Store
from tests.support.observed import SetTime
from tests.support.worlds import make_nodes


def take(store: Store, world: World, count: int) -> None:
    for number in range(count):
        event = TimePassed(world.now_s + number)
        store.journal.append(event)
        apply(world, event)
    store.journal.commit()


def begin(store: Store) -> World:
    world = World()
    event = NodeAdded(0.0, make_nodes(2)[0])
    store.journal.append(event)
    apply(world, event)
    store.journal.commit()
    return world


def test_a_snapshot_is_saved_when_enough_has_happened(store: Store) -> None:
    world = begin(store)
    upkeep = JournalMaintenance(store, 0, SetTime().observed(), every=10)
    upkeep.after_step(world)
    assert store.recover().snapshot_seq == 0
    take(store, world, 10)
    upkeep.after_step(world)
    upkeep.finish(world)
    assert store.recover().snapshot_seq == 11


def test_a_clean_end_saves_what_has_happened_since(store: Store) -> None:
    world = begin(store)
    take(store, world, 3)
    JournalMaintenance(store, 0, SetTime().observed()).finish(world)
    assert (store.recover().snapshot_seq, store.recover().world.now_s) == (4, world.now_s)


def test_a_world_that_is_ahead_of_the_journal_is_not_saved(store: Store) -> None:
    """The disk was full at the end, say: what was not written has not happened for the next server."""
    world = begin(store)
    take(store, world, 3)
    event = TimePassed(world.now_s + 1)
    store.journal.append(event)
    apply(world, event)
    JournalMaintenance(store, 0, SetTime().observed()).finish(world)
    found = store.recover()
    assert (found.snapshot_seq, found.world.version) == (0, world.version - 1)


def test_old_events_go_after_a_while(store: Store) -> None:
    world, time = begin(store), SetTime(1.0)
    upkeep = JournalMaintenance(store, 0, time.observed(), every=10, keep_s=5.0)
    for _ in range(3):
        take(store, world, 10)
        upkeep.after_step(world)
        upkeep.finish(world)
    time.passes(world.now_s + 4_000)
    upkeep.after_step(world)
    upkeep.finish(world)
    assert store.journal.first_seq > 1
    assert store.recover().world.now_s == world.now_s


def test_no_event_and_no_key_goes_because_the_clock_jumped(store: Store) -> None:
    world, time = begin(store), SetTime(1_000.0)
    store.idempotency.claim("key", "1", 1_000.0)
    upkeep = JournalMaintenance(store, 0, time.observed(), every=10, keep_s=86_400.0)
    for _ in range(3):
        take(store, world, 10)
        upkeep.after_step(world)
        upkeep.finish(world)
    for jump_s in (1e9, -2e9, 1e9):
        time.jumps(jump_s)
        time.passes(4_000.0)
        upkeep.after_step(world)
        upkeep.finish(world)
        assert store.journal.first_seq == 1
        assert store.idempotency.find("key") is not None


def test_now_and_then_it_is_told_which_event_is_durable(store: Store) -> None:
    world, time, told = begin(store), SetTime(1.0), list[int]()
    upkeep = JournalMaintenance(store, 0, time.observed())
    store.on_durable = told.append
    for _ in range(3):
        take(store, world, 1)
        upkeep.after_step(world)
        upkeep._worker.join(10.0)
    assert told == [2]
    time.passes(10.0)
    upkeep.after_step(world)
    upkeep._worker.join(10.0)
    assert told == [2, 4]
    take(store, world, 1)
    upkeep.finish(world)
    assert told == [2, 4, 5]
