"""Starts a run: its folders, its port, its record, then all its replicas in one go."""

from __future__ import annotations

from pathlib import Path

from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.live_run import LiveRun
from batuta.backends.local.mounts import CannotMount, link_mounts
from batuta.backends.local.place_plan import plan_replicas, rank_count, workdir_of
from batuta.backends.local.ports import NoPortFree
from batuta.backends.local.run_record import RunRecord
from batuta.backends.local.site import Site
from batuta.core.cluster import Placement
from batuta.core.job import Job
from batuta.spec.task import Task


class CannotLaunch(Exception):
    """Nothing was started, and why. It may be possible later."""


def launch_run(
    site: Site,
    files: JobFiles,
    task: Task,
    job: Job,
    placement: Placement,
    number: int,
    now_s: float,
    limit_s: float | None,
) -> LiveRun:
    """The run number `number` of a job, just started; see its `trouble` when not all of it could be.

    CannotLaunch when nothing could be started, because the disk is full for example; CannotMount when it
    never can be.
    """
    ranks = rank_count(job, placement)
    record = RunRecord(job.id, number, placement, ranks, port=0, started_s=now_s)
    owner = record.run_id(0)
    try:
        if not site.machine.knows(placement):
            raise CannotLaunch(f"this machine does not have {_shown(placement)}")
        files.prepare(number, site.blanks)
        if task.file_mounts:
            link_mounts(task.file_mounts, workdir_of(task, files), Path.home())
        record = record.at_port(site.ports.reserve(owner)[0])
        specs = plan_replicas(site.machine, files, task, job, record, limit_s)
        return LiveRun.start(files, record, specs)
    except CannotMount:
        files.discard_run(number)
        raise
    except (CannotLaunch, OSError, NoPortFree, ValueError) as problem:
        site.ports.release(owner)
        files.discard_run(number)
        raise CannotLaunch(f"it could not be started: {problem}") from problem


def _shown(placement: Placement) -> str:
    return ", ".join(f"{span.node}:{','.join(map(str, span.gpus))}" for span in placement.spans)
