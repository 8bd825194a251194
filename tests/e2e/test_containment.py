"""Jobs that fork, fill memory or write without end, beside one that works: they end, and it goes on as before.

All of it happens inside an outer control group with bounds of its own: a limit that fails must not take the machine.
"""

from collections.abc import Iterator

import pytest

from batuta.backends.local.cgroups import CgroupsV1, find_cgroups
from tests.support.contained import FILLS, FORKS, SPEED, WRITES, Contained
from tests.support.local_replicas import wait_until
from tests.support.outer_cgroup import groups_below, outer_cgroup
from tests.support.server_process import PlainServers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def contained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contained]:
    folder = tmp_path_factory.mktemp("contained")
    with outer_cgroup("contained") as groups, PlainServers(folder) as servers:
        made = Contained(servers, folder / "home", groups)
        yield made
        made.cancel(made.works)
        wait_until(lambda: not groups_below(groups), within_s=20.0, what=f"groups are left: {groups_below(groups)}")
        unbounded = find_cgroups(made.home)
        assert isinstance(unbounded, CgroupsV1)
        assert not [base for name, base in unbounded.base.items() if name not in groups and base.exists()]


def test_fork_bomb_is_stopped_with_that_reason_and_harms_no_one(contained: Contained):
    ratio, job = contained.speed_beside("bomb", FORKS)
    found = contained.end_of(job)
    assert found.reason is not None
    assert (found.state, found.reason.code, found.restarts) == ("FAILED", "PROCESS_LIMIT", 0)
    assert "stopped: more than 300 processes and threads" in found.detail
    with contained.client as client:
        assert any("more than 300 processes" in line for line in client.logs(job.id))
        explained = client.explain(job.id)
        assert explained.reason is not None
        assert "more than 300 processes and threads" in explained.reason.sentence
    assert ratio >= SPEED


def test_job_that_fills_memory_is_stopped_with_that_reason_and_harms_no_one(contained: Contained):
    ratio, job = contained.speed_beside("hog", FILLS)
    found = contained.end_of(job)
    assert found.reason is not None
    assert (found.state, found.reason.code) == ("FAILED", "MEMORY_LIMIT")
    assert "out of memory: limit 0.25 GiB" in found.detail
    assert ratio >= SPEED


def test_job_that_writes_without_end_leaves_the_others_their_speed(contained: Contained):
    ratio, job = contained.speed_beside("writer", WRITES)
    contained.cancel(job)
    assert ratio >= SPEED


def test_groups_of_jobs_are_adopted_after_kill_nine_and_removed_at_their_end(contained: Contained):
    bomb = contained.submit("late-bomb", f"sleep 3; {FORKS}", labels={"batuta.dev/pids-limit": 100})
    wait_until(lambda: any(f"b-{bomb.id}-" in name for name in groups_below(contained.groups)))
    contained.server.kill()
    assert any(f"b-{bomb.id}-" in name for name in groups_below(contained.groups))
    contained.server = contained.start()
    found = contained.end_of(bomb)
    assert found.reason is not None
    assert (found.reason.code, found.reason.evidence) == ("PROCESS_LIMIT", {"limit": 100.0})
    wait_until(lambda: not any(f"b-{bomb.id}-" in name for name in groups_below(contained.groups)))
