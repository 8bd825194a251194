"""A journal is looked at for damage and growth, while a server writes it or not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from batuta.core import event as ev
from batuta.engine.soundness import Finding, Severity
from batuta.store import integrity
from batuta.store.integrity import check_disk_space, check_journal
from batuta.store.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of a thousand events, one each minute."""
    found = tmp_path / "journal.db"
    with SqliteStore(found) as store:
        for minute in range(1000):
            store.journal.append(ev.TimePassed(1e9 + 60.0 * minute))
        store.journal.commit()
    return found


def look(path: Path, **options: bool) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_journal(path, **options)}


def test_a_sound_journal(path):
    found = look(path)
    assert found["journal"].severity is Severity.OK
    assert "events 1 to 1,000" in found["journal"].found
    assert found["journal growth"].found == "1,440 events a day"


def test_it_is_looked_at_while_somebody_writes_it(path):
    with SqliteStore(path) as store:
        store.journal.append(ev.TimePassed(2e9))
        assert "1 to 1,000" in look(path)["journal"].found
        store.journal.commit()
        assert "1 to 1,001" in look(path)["journal"].found


def test_a_journal_that_is_not_there_yet(tmp_path):
    assert look(tmp_path / "journal.db")["journal"].severity is Severity.NOTE
    assert not (tmp_path / "journal.db").exists()


def test_one_changed_character_in_an_event_is_found(path):
    with SqliteStore(path) as store:
        store.database.write_now([("UPDATE events SET body = replace(body, 'clock', 'clack') WHERE seq = 321", ())])
    found = look(path)["journal"]
    assert found.severity is Severity.ERROR
    assert "event 321 of" in found.found
    assert "batuta restore" in found.fix


def test_damage_is_found(path):
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(20_000))
    found = look(path)["journal"]
    assert (found.severity, "move it away" in found.fix) == (Severity.ERROR, True)


@pytest.mark.parametrize("content", [b"hello", b"x" * 10_000])
def test_what_is_no_journal_is_an_error(tmp_path, content):
    (tmp_path / "journal.db").write_bytes(content)
    assert look(tmp_path / "journal.db")["journal"].severity is Severity.ERROR


def test_the_file_of_another_program(tmp_path):
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
        other.execute("CREATE TABLE t (a)")
        other.commit()
    found = look(tmp_path / "journal.db")["journal"]
    assert (found.severity, "another program's" in found.found) == (Severity.ERROR, True)


def test_a_large_journal_is_looked_through_when_asked(path, monkeypatch):
    monkeypatch.setattr(integrity, "SLOW_BYTES", 10)
    assert look(path)["journal"].severity is Severity.NOTE
    assert look(path, full=True)["journal"].severity is Severity.OK


def test_growth_is_told(path, monkeypatch):
    monkeypatch.setattr(integrity, "MUCH_PER_DAY", 1000)
    monkeypatch.setattr(integrity, "_STALE_EVENTS", 100)
    told = [one for one in check_journal(path) if one.check == "journal growth"]
    assert [one.severity for one in told] == [Severity.WARNING, Severity.WARNING]
    assert "no snapshot since event 0" in told[0].found
    assert "1,440 events a day" in told[1].found


def test_a_write_ahead_log_that_nobody_takes_over(path, monkeypatch):
    monkeypatch.setattr(integrity, "LARGE_WAL_BYTES", 1000)
    with SqliteStore(path) as store:
        store.journal.append(ev.TimePassed(2e9))
        store.journal.commit()
        (found,) = [one for one in check_journal(path) if one.check == "journal growth"]
    assert (found.severity, "write-ahead log" in found.found) == (Severity.WARNING, True)


# ------------------------------------------------------------------------------------------------- the disk


@pytest.mark.parametrize(
    ("options", "severity", "words"),
    [
        ("size=1m", "error", "0.0 GiB free"),
        ("size=100m", "warning", "0.1 GiB free"),
        ("size=100m,nr_inodes=50", "error", "more files"),
    ],
)
def test_a_disk_that_is_nearly_full(tmp_path, options, severity, words):
    """A real one: a file system in memory, mounted where only this test sees it."""
    unshare = shutil.which("unshare")
    code = (
        "import sys; from pathlib import Path; from batuta.store.integrity import check_disk_space\n"
        "found = check_disk_space(Path(sys.argv[1]))\n"
        "print(found.severity.value, found.found, found.fix, sep='|')"
    )
    script = f'mount -t tmpfs -o {options} none "$1" && exec "$2" -c "$3" "$1"'
    if unshare is None:
        pytest.skip("no unshare on the PATH")
    done = subprocess.run(
        [unshare, "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        pytest.skip(f"no mounts in a namespace here: {done.stderr.strip()[-100:]}")
    told, found, fix = done.stdout.strip().split("|")
    assert (told, words in found, fix.startswith("make room")) == (severity, True, True)


def test_a_disk_with_room_and_one_that_is_gone(tmp_path):
    assert check_disk_space(tmp_path).severity in (Severity.OK, Severity.WARNING)
    assert check_disk_space(tmp_path / "none").severity is Severity.ERROR
