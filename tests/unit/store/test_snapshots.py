import threading
from itertools import islice

import pytest

from batuta.core.apply import apply
from batuta.core.event import Event, JobEnded, JobForgotten, JobSubmitted, TimePassed
from batuta.core.job import JobState
from batuta.core.world import World
from batuta.store.errors import CodecError, RecoveryError, StoreError
from batuta.store.store import Store
from tests.support.deep import deep
from tests.support.store_places import rewrite_event
from tests.support.stories import Story
from tests.support.walks import Walk
from tests.support.worlds import make_job


def play(store: Store, events, *snapshots: int, world: World | None = None) -> World:
    """Writes the events, and a snapshot after each of these numbers; returns the World of them all."""
    world = world or World()
    for event in events:
        apply(world, event)
        store.journal.append(event)
        if store.journal.last_seq in snapshots:
            store.save_snapshot(world, store.journal.commit())
    store.journal.commit()
    return world


def kept(store: Store) -> list[int]:
    return [row[0] for row in store.database.rows("SELECT seq FROM snapshots ORDER BY seq")]


def damage(store: Store, sql: str, *values: object) -> None:
    store.database.write_now([(sql, values)])


def test_an_empty_journal_is_an_empty_world(store):
    found = store.recover()
    assert (found.seq, found.snapshot_seq, found.unusable) == (0, 0, ())
    assert deep(found.world) == deep(World())


@pytest.mark.parametrize("policy", ["fifo", "elastic-tiresias"])
@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_and_what_came_later_is_the_same_as_everything(place, seed, policy):
    walk = Walk(seed, policy).go(250)
    with place.open() as store:
        play(store, walk.events, 100, 170, 240)
    with place.open() as store:
        found = store.recover()
        assert (found.seq, found.snapshot_seq) == (len(walk.events), 240)
        assert deep(found.world) == deep(walk.world)
        damage(store, "DELETE FROM snapshots")
        found = store.recover()
        assert found.snapshot_seq == 0
        assert deep(found.world) == deep(walk.world)


def test_the_last_two_are_kept(store):
    play(store, islice(Story(1), 500), 100, 200, 300, 400)
    assert kept(store) == [300, 400]


def test_a_snapshot_of_the_same_event_twice(store):
    world = play(store, islice(Story(1), 300), 100, 300)
    store.save_snapshot(world, 300)
    assert kept(store) == [100, 300]
    assert deep(store.snapshots.load_latest().world) == deep(world)


def test_a_snapshot_is_of_what_is_durable(store):
    world = play(store, islice(Story(1), 50))
    event = TimePassed(1e6)
    apply(world, event)
    store.journal.append(event)
    for seq in (51, 0, 999):
        with pytest.raises(StoreError, match=f"event {seq} is not committed"):
            store.save_snapshot(world, seq)
    store.journal.commit()
    store.save_snapshot(world, 51)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE snapshots SET image = substr(image, 1, 100) WHERE seq = 400",
        "UPDATE snapshots SET image = digest, digest = image WHERE seq = 400",
        "UPDATE snapshots SET past_count = past_count - 1 WHERE seq = 400",
        "UPDATE snapshots SET first_past = first_past + 1 WHERE seq = 400",
        "UPDATE past_jobs SET body = body || ' ' WHERE number = (SELECT max(number) FROM past_jobs)",
        "UPDATE past_jobs SET body = '{', crc = 0 WHERE number = (SELECT max(number) FROM past_jobs)",
        "DELETE FROM past_jobs WHERE number = (SELECT max(number) FROM past_jobs)",
    ],
)
def test_a_damaged_snapshot_falls_back_to_the_one_before(place, sql):
    with place.open() as store:
        world = play(store, islice(Story(2), 500), 300, 400)
        damage(store, sql)
    with place.open() as store:
        found = store.recover()
        assert found.snapshot_seq == 300
        assert len(found.unusable) == 1
        assert found.unusable[0].startswith("snapshot 400: ")
        assert deep(found.world) == deep(world)
        # The next snapshot does not build on the damage.
        store.save_snapshot(found.world, 500)
        again = store.recover()
        assert (again.snapshot_seq, again.unusable) == (500, ())
        assert deep(again.world) == deep(world)


def test_without_a_sound_snapshot_everything_is_replayed(place):
    with place.open() as store:
        world = play(store, islice(Story(1), 500), 300, 400)
        damage(store, "UPDATE past_jobs SET crc = 1 WHERE number = 1")
    with place.open() as store:
        found = store.recover()
        assert (found.snapshot_seq, len(found.unusable)) == (0, 2)
        assert deep(found.world) == deep(world)
        store.save_snapshot(found.world, 500)
        assert store.journal.prune(before_seq=500) == 0, "of the two snapshots one is damaged"
        event = TimePassed(1e6)
        play(store, [event], 501, world=found.world)
        assert store.journal.prune(before_seq=500) == 499
        assert deep(store.recover().world) == deep(found.world)
        assert store.recover().snapshot_seq == 501


def test_without_snapshot_and_beginning_there_is_no_world(store):
    play(store, islice(Story(1), 500), 300, 400)
    assert store.journal.prune(before_seq=200) == 199
    damage(store, "UPDATE snapshots SET digest = ?", b"\0")
    with pytest.raises(RecoveryError, match=r"no snapshot can be read .* before number 200 .*checksum is wrong"):
        store.recover()


def test_a_gap_in_the_journal_is_not_jumped_over(store):
    play(store, islice(Story(1), 500), 300)
    damage(store, "DELETE FROM events WHERE seq = 350")
    with pytest.raises(RecoveryError, match="no event 350, the next is 351"):
        store.recover()


def test_an_event_that_does_not_fit_is_named(store):
    play(store, islice(Story(1), 100))
    rewrite_event(store.database, 50, store.journal.texts_after(0, 1)[0].json)
    with pytest.raises(RecoveryError, match=r"event 50 does not fit .*n000 exists already"):
        store.recover()


def test_a_snapshot_that_is_not_there(store):
    with pytest.raises(CodecError, match="not there"):
        store.snapshots.load(7)


def test_jobs_that_are_over_are_written_once(store):
    story = iter(Story(1))
    world = play(store, islice(story, 1000), 1000)
    before = store.database.rows("SELECT number, job FROM past_jobs ORDER BY number")
    assert [job for _, job in before] == list(world.past)
    damage(store, "UPDATE past_jobs SET crc = -crc")
    play(store, islice(story, 100), 1100, world=world)
    after = store.database.rows("SELECT number, job, crc FROM past_jobs ORDER BY number")
    assert [row[:2] for row in after[: len(before)]] == before
    assert {crc < 0 for *_, crc in after[: len(before)]} == {True}, "some were written again"
    assert {crc < 0 for *_, crc in after[len(before) :]} == {False}
    damage(store, "UPDATE past_jobs SET crc = -crc WHERE crc < 0")
    assert deep(store.snapshots.load(1100)) == deep(world)


@pytest.mark.parametrize("which", ["oldest", "some", "all"])
def test_a_world_may_let_go_of_jobs_that_are_over(store, which):
    story = iter(Story(1))
    world = play(store, islice(story, 1000), 900, 1000)
    names = list(world.past)
    for job in {"oldest": names[:20], "some": names[3::2], "all": names}[which]:
        del world.past[job]
    play(store, islice(story, 200), 1100, 1200, world=world)
    for seq in (1200, 1100):
        loaded = store.snapshots.load(seq)
        assert list(loaded.past) == list(world.past)[: len(loaded.past)]
    assert deep(store.snapshots.load(1200)) == deep(world)
    play(store, islice(story, 20), 1220, world=world)
    (count,) = store.database.rows("SELECT count(*) FROM past_jobs")[0]
    assert count == len(world.past), "those that no snapshot has are gone"


@pytest.mark.parametrize("others", [0, 2])
def test_a_job_with_the_id_of_one_that_was_forgotten_is_another_job(store, others):
    def life(job: str, state: JobState) -> list[Event]:
        return [JobSubmitted(1.0, make_job(job)), JobEnded(1.0, job, state)]

    early = [event for k in range(others) for event in life(f"early{k}", JobState.SUCCEEDED)]
    world = play(store, [*early, *life("a", JobState.FAILED), *life("b", JobState.FAILED)], 2 * others + 4)
    forgotten = [JobForgotten(1.0, "a"), JobForgotten(1.0, "b")]
    later = [*forgotten, *life("a", JobState.SUCCEEDED), *life("b", JobState.SUCCEEDED)]
    play(store, later, 2 * others + 10, world=world)
    loaded = store.snapshots.load(2 * others + 10)
    assert deep(loaded.past) == deep(world.past)


def test_another_thread_saves_while_the_engine_goes_on(place):
    with place.open() as store:
        world, story = World(), iter(Story(1))
        threads: list[threading.Thread] = []
        for _ in range(20):
            play(store, islice(story, 50), world=world)
            thread = threading.Thread(target=store.save_snapshot, args=(world.fork(), store.journal.durable_seq))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        assert kept(store) == [950, 1000]
        found = store.recover()
        assert (found.snapshot_seq, found.unusable) == (1000, ())
        assert deep(found.world) == deep(world)
