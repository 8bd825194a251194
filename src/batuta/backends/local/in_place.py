"""Another number of workers without a restart, for jobs that look up their hosts while they run.

Horovod's driver asks the discovery script every second, and starts and ends workers by itself. They inherit
`CUDA_VISIBLE_DEVICES` from it and take the GPU with their number: so the GPUs of the new place have to be the
first of those that the job was started with. Everything else is a restart, as for all jobs.
"""

from __future__ import annotations

from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.place_plan import Machine, write_hosts
from batuta.backends.local.run_record import RunRecord
from batuta.core.cluster import Placement
from batuta.core.job import Job, JobKind


def can_change_in_place(machine: Machine, job: Job, record: RunRecord, wanted: Placement) -> bool:
    """Whether the run can go on at another place as it is."""
    if job.kind is not JobKind.HOROVOD_ELASTIC or not machine.knows(wanted):
        return False
    # By node and number: devices of virtual nodes have equal names.
    had = [(span.node, gpu) for span in record.first.spans for gpu in span.gpus]
    gets = [(span.node, gpu) for span in wanted.spans for gpu in span.gpus]
    return gets == had[: len(gets)]


def change_in_place(files: JobFiles, record: RunRecord, wanted: Placement) -> RunRecord:
    """Tells the run of its new hosts. OSError when that is not possible."""
    write_hosts(files.control(record.number), wanted)
    return record.moved_to(wanted)
