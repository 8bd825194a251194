"""What a new server makes of the runs that it finds on disk, and of what the World says should run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from batuta.backends.local import processes
from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.job_run import JobRun
from batuta.backends.local.live_run import LiveRun
from batuta.backends.local.run_record import read_record
from batuta.core.cluster import Placement
from batuta.core.job import JobId
from batuta.core.job_table import Phase
from batuta.core.world import World

_WITHIN_S = 15.0
_UNSETTLED = frozenset((Phase.STARTING, Phase.RESIZING))


@dataclass(frozen=True, slots=True)
class Held:
    """What the World says of a living job."""

    placement: Placement | None
    phase: Phase

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do for it, unless something of it runs."""
        return self.placement is None and self.phase is not Phase.STOPPING


def held_in(world: World) -> dict[JobId, Held]:
    """What `resume` wants to know, from a World that was recovered."""
    jobs = world.jobs
    return {
        job: Held(placement, jobs.phase_of(row))
        for row, (job, placement) in enumerate(zip(jobs.ids, jobs.placements, strict=True))
    }


def recover(machine: JobRun, files: JobFiles, held: Held, now_s: float) -> None:
    """Brings a job's machine to where the last server left it; to drive it does the rest.

    The World was durable before any command was carried out: what it says is wanted. What runs is on disk,
    and so is how it ended, if it did.
    """
    machine.is_ending = held.phase is Phase.STOPPING
    machine.wanted = None if machine.is_ending else held.placement
    numbers = files.run_numbers()
    clear_runs(files, numbers[:-1])
    record = read_record(files, numbers[-1]) if numbers else None
    if held.phase is Phase.BROKEN:
        # It has lost GPUs, and nobody has decided yet what to do about it.
        machine.wanted = None if record is None else record.placement
    machine.remember(now_s, record)
    if record is not None:
        machine.adopt(LiveRun.find(files, record), is_announced=held.phase not in _UNSETTLED)
    else:
        clear_runs(files, numbers[-1:])  # nothing was started: its record was not even written


def clear_runs(files: JobFiles, numbers: Iterable[int]) -> None:
    """Ends runs that nobody wants, whatever is left of them, and forgets them."""
    numbers = list(numbers)
    found = [folder for number in numbers for folder in files.run(number).glob("[0-9]*")]
    alive = [replica for folder in found if (replica := processes.adopt(folder)) is not None]
    for replica in alive:
        processes.kill(replica)
    give_up = time.monotonic() + _WITHIN_S
    while any(replica.is_running for replica in alive) and time.monotonic() < give_up:
        time.sleep(0.01)
    for folder in found:
        processes.bury(folder)
    for number in numbers:
        files.discard_run(number)
