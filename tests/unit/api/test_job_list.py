"""Pages of jobs: whatever is asked for, the same as going through all of them."""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.api import models
from batuta.api.job_list import JobQuery, page_of_jobs, read_cursor, write_cursor
from batuta.api.responses import HttpProblem, to_json
from batuta.api.snapshot import StillView, WorldSnapshot, key_of
from batuta.api.views import view_job
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import Job, JobState
from batuta.core.world import World
from tests.support.snapshots import snapshot_of
from tests.support.stories import Story


@pytest.fixture(scope="module")
def snapshot() -> WorldSnapshot:
    world = World()
    for event in islice(Story(4), 2500):
        apply(world, event)
    assert world.past
    assert world.jobs.n
    return snapshot_of(world)


def expected(snapshot: WorldSnapshot, wanted: JobQuery, newest: bool) -> list[str]:
    """All jobs that match, one by one."""
    found: list[tuple[Job, JobState, float | None]] = []
    for row, job in enumerate(snapshot.jobs):
        if wanted.active is not False:
            found.append((job, snapshot.states[row], None))
    for _, past in snapshot.past:
        if wanted.active is not True:
            found.append((past.job, past.state, past.end_s))
    kept = [
        job
        for job, state, end_s in found
        if (not wanted.state or state in wanted.state)
        and (not wanted.user or job.user == wanted.user)
        and (not wanted.queue or job.queue == wanted.queue)
        and (
            wanted.since_s is None or job.submit_s >= wanted.since_s or (end_s is not None and end_s >= wanted.since_s)
        )
    ]
    return [job.id for job in sorted(kept, key=key_of, reverse=newest)]


FILTERS = st.builds(
    JobQuery,
    state=st.lists(st.sampled_from(JobState), max_size=3),
    active=st.sampled_from((None, True, False)),
    queue=st.sampled_from(("", "default", "research", "nowhere")),
    since_s=st.none() | st.floats(0, 50_000),
)


@given(wanted=FILTERS, limit=st.integers(1, 60), newest=st.booleans())
def test_pages_have_all_that_match_once_and_in_order(
    snapshot: WorldSnapshot, wanted: JobQuery, limit: int, newest: bool
) -> None:
    found: list[str] = []
    cursor: str | None = ""
    order = "newest" if newest else "oldest"
    while cursor is not None:
        query = wanted.model_copy(update={"cursor": cursor, "limit": limit, "order": order})
        page = json.loads(page_of_jobs(snapshot, query, 1e6))
        assert len(page["jobs"]) <= limit
        found += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        assert page["total"] == len(expected(snapshot, wanted, newest))
    assert found == expected(snapshot, wanted, newest)


def test_every_job_is_as_the_contract_says(snapshot: WorldSnapshot) -> None:
    page = json.loads(page_of_jobs(snapshot, JobQuery.model_construct(limit=5000), 1e6))
    models.JobPage.model_validate(page)
    assert page["next"] is None
    assert page["total"] == len(snapshot.jobs) + len(snapshot.past)


def test_a_cursor_comes_back_as_it_was() -> None:
    for key in ((1.5, 3, "17"), (0.1 + 0.2, 0, "é"), (1e300, -1, "")):
        text = write_cursor(key)
        assert text is not None
        assert read_cursor(text) == key
    assert write_cursor(None) is None


@given(st.text() | st.binary().map(lambda data: data.hex()))
def test_no_text_breaks_the_cursor(text: str) -> None:
    with suppress(HttpProblem):
        assert isinstance(read_cursor(text)[2], str)


def test_a_list_shows_each_job_as_it_is_shown_alone(snapshot: WorldSnapshot) -> None:
    page = json.loads(page_of_jobs(snapshot, JobQuery.model_construct(limit=5000), 1e6))
    for job in page["jobs"]:
        assert job == json.loads(to_json(view_job(snapshot, job["id"], 1e6)))


def test_what_an_earlier_snapshot_showed_is_used_as_long_as_it_is_true() -> None:
    """Views outlive snapshots: a job that has changed since must not be shown as it was."""
    world, plan, known = World(), None, dict[str, StillView]()
    everything, reused = JobQuery.model_construct(limit=5000), 0
    for number, event in enumerate(islice(Story(5), 600)):
        apply(world, event)
        plan = event.plan if isinstance(event, ev.Planned) else plan
        if number % 7:
            continue
        fresh, before = snapshot_of(world, plan), dict(known)
        later = replace(fresh, known=known, shown={})
        assert page_of_jobs(later, everything, 1e6) == page_of_jobs(fresh, everything, 1e6)
        reused += sum(later.shown[row] is before.get(job.id) for row, job in enumerate(later.jobs))
    assert reused > 100
