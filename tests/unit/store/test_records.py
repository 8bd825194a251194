import hashlib
import threading

import pytest

from batuta.core.event import TimePassed
from batuta.store.errors import DamagedRowError
from batuta.store.records import IdempotencyRecord, Role, hash_of


@pytest.mark.parametrize("name", ["tasks", "results"])
def test_texts_of_jobs_become_durable_with_the_journal(store, place, name):
    table = getattr(store, name)
    assert table.get("a") is None
    table.stage("a", '{"run": "ü"}')
    assert table.get("a") == '{"run": "ü"}'
    assert store.database.rows(f"SELECT * FROM {name}") == []
    store.journal.append(TimePassed(1.0))
    store.journal.commit()
    table.stage("b", "lost")
    store.close()
    with place.open() as again:
        table = getattr(again, name)
        assert (table.get("a"), table.get("b")) == ('{"run": "ü"}', None)
        table.stage("a", "2")
        assert table.get("a") == "2"
        again.journal.commit()
        assert again.database.rows(f"SELECT * FROM {name}")[0][:2] == ("a", "2")


def test_a_text_that_cannot_be_stored_spoils_no_commit(store):
    for table in (store.tasks, store.results):
        with pytest.raises(UnicodeEncodeError):
            table.stage("a", "\ud800")
    with pytest.raises(UnicodeEncodeError):
        store.idempotency.claim("k", "\ud800", 1.0)
    store.tasks.stage("\ud800", "x")
    store.journal.commit()
    assert store.tasks.get("\ud800") == "x"


def test_a_task_that_was_changed_on_the_disk_is_not_run(store):
    store.tasks.stage("7", '{"run":"echo 1"}')
    store.journal.commit()
    store.database.write_now([("UPDATE tasks SET task_json = replace(task_json, '1', '2')", ())])
    with pytest.raises(DamagedRowError, match=r"row 7 of tasks in .* is damaged"):
        store.tasks.get("7")
    store.database.write_now([("UPDATE tasks SET crc = NULL", ())])
    assert store.tasks.get("7") == '{"run":"echo 2"}', "versions without checksums wrote tasks, too"


def test_settings_are_durable_at_once(store, place):
    store.settings.put("policy", "fifo")
    store.settings.put("policy", "elastic-tiresias")
    store.close()
    with place.open() as again:
        assert again.database.rows("SELECT * FROM settings") == [("policy", "elastic-tiresias")]
        assert again.settings.remove("policy")
        assert not again.settings.remove("policy")
        assert again.settings.get("policy") is None


def test_a_token_is_known_by_its_hash_only(store, place):
    token = store.tokens.create("ada", Role.ADMIN, 100.0)
    other = store.tokens.create("grace", Role.VIEWER, 200.0)
    assert token.startswith("batuta_")
    assert len(token) > 40
    found = store.tokens.find(token)
    assert found is not None
    assert (found.user, found.role, found.created_s) == ("ada", Role.ADMIN, 100.0)
    assert found.hash == hash_of(token) == hashlib.sha256(token.encode()).hexdigest()
    assert [own.user for own in store.tokens.all()] == ["ada", "grace"]
    for wrong in ("", token[:-1], found.hash, "\ud800", "' OR 1=1 --"):
        assert store.tokens.find(wrong) is None
    assert store.tokens.revoke(found.hash)
    assert not store.tokens.revoke(found.hash)
    assert store.tokens.find(token) is None
    columns = store.database.rows("SELECT * FROM tokens")
    assert other not in str(columns), "it is nowhere but with its bearer"


def test_a_key_stands_for_the_job_that_it_made_first(store, place):
    assert store.idempotency.find("k") is None
    assert store.idempotency.claim("k", "job-1", 10.0, "digest") == IdempotencyRecord("job-1", "digest", True)
    assert store.idempotency.claim("k", "job-2", 11.0, "other") == IdempotencyRecord("job-1", "digest", False)
    store.journal.commit()
    assert store.idempotency.claim("k", "job-3", 12.0) == IdempotencyRecord("job-1", "digest", False)
    assert store.idempotency.claim("late", "job-4", 20.0).is_new
    store.close()
    with place.open() as again:
        assert again.idempotency.find("k") == IdempotencyRecord("job-1", "digest", False)
        assert again.idempotency.find("late") is None, "it was not committed"
        assert again.idempotency.claim("new", "job-5", 30.0).is_new
        again.journal.commit()
        assert again.idempotency.forget(before_s=20.0) == 1
        assert again.idempotency.find("k") is None
        assert again.idempotency.find("new") == IdempotencyRecord("job-5", "", False)


def test_two_at_once_make_one_job(store):
    claims: list[IdempotencyRecord] = []
    barrier = threading.Barrier(8)

    def submit(number: int) -> None:
        barrier.wait()
        claims.append(store.idempotency.claim("same", f"job-{number}", 1.0))
        store.journal.commit()

    threads = [threading.Thread(target=submit, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(claim.is_new for claim in claims) == 1
    assert len({claim.job for claim in claims}) == 1
