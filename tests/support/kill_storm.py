"""kill -9 of a server whose machine fails around it: half of its lives are short of descriptors, in a third the disk
is full, in a fifth the clock jumps. The whole storm is a process of its own, with a small disk that no other process
sees, in a control group that bounds processes and memory: python -m tests.support.kill_storm SEED KILLS FOLDER.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.aftermath import courses, read_journal, what_is_wrong_in, what_is_wrong_with
from tests.support.busy_run import draw_lives, with_faults
from tests.support.busy_time import BusyTime
from tests.support.machine_faults import SmallDisk, WallClock
from tests.support.outer_cgroup import outer_cgroup, shell_prefix
from tests.support.process_table import wait_for_none

DISK_MIB = 96
_REPO = Path(__file__).parents[2]


@dataclass(frozen=True)
class Storm:
    """What came of it."""

    kills: int
    faults: dict[str, int]  # lives by fault
    jobs: int
    ended: dict[str, int]  # jobs by state
    repeats: int  # requests that had to be sent again
    gave_up: int  # servers that ended by themselves at their start, with an error, because of a fault
    took_s: float
    wrong: list[str]  # what was lost, doubled, left over or torn, as sentences
    report: str


def run_storm(seed: int, kills: int, folder: Path, within_s: float = 3600.0) -> Storm:
    """Run one in a process of its own. Raises AssertionError with all that it said when it does not come to an end."""
    disk = folder / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={DISK_MIB}m,mode=700 batuta-storm "{disk}" && exec "$@"'
    with outer_cgroup(f"storm-{seed}") as groups, (folder / "said").open("w+") as said:
        command = [*shell_prefix(groups), "unshare", "--mount", "sh", "-c", mount, "sh"]
        command += [sys.executable, "-m", "tests.support.kill_storm", str(seed), str(kills), str(folder)]
        done = subprocess.run(
            command, cwd=_REPO, stdout=subprocess.PIPE, stderr=said, text=True, timeout=within_s, check=False
        )
        said.seek(0)
        assert done.returncode == 0, f"the storm did not come to its end:\n{said.read()[-20_000:]}"
    return Storm(**json.loads(done.stdout.splitlines()[-1]))


def main(seed: int, kills: int, folder: Path) -> None:
    lives = with_faults(seed, draw_lives(seed, kills, full_disks=True))
    disk = folder / "disk"
    busy = BusyTime(seed, lives, disk / "home", folder, SmallDisk(disk), WallClock(folder))
    busy.run()
    wrong = list(_what_is_wrong(busy))
    ended = [job.state for job in busy.told.values()]
    storm = Storm(
        kills=kills,
        faults=dict(busy.faults),
        jobs=len(busy.jobs),
        ended={state: ended.count(state) for state in sorted(set(ended))},
        repeats=busy.users.repeats,
        gave_up=len(busy.gave_up),
        took_s=busy.took_s,
        wrong=wrong,
        report=busy.report(wrong, read_journal(busy.home)[1]) if wrong else "",
    )
    sys.stdout.write(json.dumps(asdict(storm)) + "\n")


def _what_is_wrong(busy: BusyTime) -> Iterator[str]:
    users = busy.users
    yield from users.trouble
    told = {job.name: job.id for job in busy.told.values()}
    yield from (f"{job.name} was not accepted" for job in busy.jobs if job.name not in users.ids)
    yield from (f"lost: {name}, job {job}" for name, job in users.ids.items() if told.get(name) != job)
    yield from (f"doubled: {name}, job {job}" for name, job in told.items() if users.ids.get(name) != job)
    if len(busy.told) != len(told):
        yield f"doubled: {len(busy.told)} jobs have {len(told)} names"
    yield from (f"left over: {one}" for one in wait_for_none(busy.home))
    if busy.exit_code != 0:
        yield f"the last server has ended with {busy.exit_code}"
    world, events = read_journal(busy.home)
    found = courses(busy.jobs, users.ids, users.cancelled, busy.told, events, busy.home, busy.seen)
    full_s = () if busy.disk is None else busy.disk.full_s
    for course in found:
        sentences = what_is_wrong_with(course, after_faults=True, full_s=full_s)
        yield from (f"{course}: {sentence}" for sentence in sentences)
    yield from what_is_wrong_in(world, events)
    yield from (f"still alive in the journal: {job}" for job in world.jobs.ids)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
