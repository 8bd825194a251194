"""A journal and a state directory that do not belong together are told apart; job numbers are used once."""

import re
from pathlib import Path

import pytest

from batuta.store.errors import StateDirError
from batuta.store.identity import BLOCK, JobFolder, Mark, StateMark, adopt, find_mismatch, set_aside
from batuta.store.state_dir import StateDir

OWN, OTHER = "0a" * 16, "0b" * 16


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "home")
    state.prepare(0)
    return state


def folder(state: StateDir, job: str, journal: str | None = OWN) -> JobFolder:
    path = state.jobs / job
    path.mkdir()
    return JobFolder(job, path, journal)


def test_a_new_directory_takes_any_journal(state):
    assert find_mismatch(None, OWN, 0, [], lambda _: False).reasons == ()


def test_a_directory_of_a_version_without_marks_takes_a_journal_that_knows_its_jobs(state):
    found = [folder(state, "1", None), folder(state, "2", None)]
    assert find_mismatch(None, OWN, 9, found, {"1", "2"}.__contains__).reasons == ()
    assert find_mismatch(None, OWN, 9, found, {"1"}.__contains__).strays == (found[1],)


@pytest.mark.parametrize(
    ("journal", "seq", "jobs", "reason"),
    [
        (None, 0, (), "journal.db is gone; it had at least 120 events"),
        (OTHER, 500, (), f"journal.db is another one: its id is {OTHER}, the directory's is {OWN}"),
        (OWN, 119, (), "journal.db was cut: it ends at event 119, and had at least 120"),
        (OWN, 120, ("3",), "a folder is in jobs/ (3) of jobs that the journal does not know"),
        (OTHER, 500, ("1", "3"), "2 folders are in jobs/ (1, 3) of jobs of another journal"),
    ],
)
def test_what_does_not_match_is_said_with_the_ways_out(state, journal, seq, jobs, reason):
    folders = [folder(state, job) for job in jobs]
    found = find_mismatch(Mark(OWN, 120), journal, seq, folders, {"1", "2"}.__contains__)
    assert reason in found.reasons
    said = str(found.error(state.path))
    assert reason in said
    assert all(
        way in said for way in ("batuta restore FILE", "batuta up --set-aside", "--home DIR", "Nothing was changed")
    )


def test_a_journal_that_has_come_further_than_the_mark_is_the_same(state):
    folders = [folder(state, "1"), folder(state, "2", None)]
    assert find_mismatch(Mark(OWN, 120), OWN, 121, folders, {"1", "2"}.__contains__).reasons == ()


def test_the_mark_follows_the_journal_and_outlives_the_server(state):
    mark = StateMark(state)
    assert mark.found is None
    adopt(mark, OWN, 5)
    mark.reached(70)
    mark.reached(60)
    assert StateMark(state).found == Mark(OWN, 70)
    assert (state.path / "mark").stat().st_mode & 0o777 == 0o600


def test_a_number_is_covered_by_the_mark_before_it_is_given_out(state):
    mark = StateMark(state)
    adopt(mark, OWN, 0)
    for number in (1, 2, BLOCK, BLOCK + 1):
        assert mark.take_number(number) == number
        again = StateMark(state).found
        assert again is not None
        assert again.number >= number


def test_numbers_that_a_lost_journal_gave_out_are_not_used_again(state):
    mark = StateMark(state)
    adopt(mark, OWN, 0)
    mark.take_number(1)
    adopt(mark, OTHER, 0, [])
    assert mark.take_number(1) == BLOCK + 1
    assert mark.take_number(BLOCK + 2) == BLOCK + 2


def test_where_the_mark_was_lost_too_the_folders_say_which_numbers_were_used(state):
    mark = StateMark(state)
    adopt(mark, OWN, 0, [folder(state, "41", None), folder(state, "not-a-number", None)])
    assert mark.take_number(1) == 42


def test_a_mark_that_cannot_be_read_is_no_new_directory(state):
    state.write_secret("{", "mark")
    with pytest.raises(StateDirError, match=r"mark cannot be read.*remove it if"):
        StateMark(state)


def test_what_is_set_aside_is_moved_and_never_into_what_was_set_aside_before(state):
    first = folder(state, "1")
    (first.path / "checkpoint").write_text("one")
    place = set_aside(state, [first.path], 1e9)
    assert (place / "jobs" / "1" / "checkpoint").read_text() == "one"
    again = set_aside(state, [folder(state, "1").path], 1e9)
    assert again != place
    assert re.fullmatch(r"20010909T014640Z(-2)?", again.name)
    assert (place / "jobs" / "1" / "checkpoint").read_text() == "one"
    assert not (state.jobs / "1").exists()
